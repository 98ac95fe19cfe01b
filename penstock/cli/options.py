"""Options that every command accepts, before or after its name: database, output format, colors, --yes."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints
from uuid import UUID

import typer
from typer.core import TyperGroup
from typer.models import ArgumentInfo, ParameterInfo

from penstock.errors import Conflict, Invalid, NotFound, NotMigrated
from penstock.settings import settings

# Other modules are imported where they are used: `penstock --help` needs neither the database nor its driver.
if TYPE_CHECKING:
    from penstock.postgres import db


class Output(StrEnum):
    """Output format of data."""

    text = "text"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


@dataclass(frozen=True, slots=True)
class Options:
    """Values of the global options."""

    database: str | None = None
    output: Output = Output.text
    no_color: bool = False
    yes: bool = False


_DEFAULT = Options()
_current: ContextVar[Options] = ContextVar("penstock_options", default=_DEFAULT)

_PANEL = "Global options"
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="PostgreSQL connection URL. Default: DATABASE_URL, otherwise the embedded server in .penstock.",
        rich_help_panel=_PANEL,
    ),
]
OutputOption = Annotated[
    Output | None,
    typer.Option("-o", "--output", help="Output format. Default: text.", rich_help_panel=_PANEL),
]
NoColorOption = Annotated[bool, typer.Option("--no-color", help="Disable colors.", rich_help_panel=_PANEL)]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Skip confirmation prompts.", rich_help_panel=_PANEL)
]
TenantOption = Annotated[str | None, typer.Option(help="Tenant name or id.")]
TenantArgument = Annotated[
    str, typer.Argument(metavar="TENANT", show_default=False, help="Tenant name or id.")
]
SHARED = {"database": DatabaseOption, "output": OutputOption, "no_color": NoColorOption, "yes": YesOption}


def current_options() -> Options:
    """The global options of the running command."""
    return _current.get()


@contextmanager
def using_options(
    database: str | None = None, output: Output | None = None, no_color: bool = False, yes: bool = False
) -> Generator[None]:
    """Apply these global options within the block, on top of the current ones."""
    token = _current.set(_merged(database, output, no_color, yes))
    try:
        yield
    finally:
        _current.reset(token)


def set_options(database: str | None, output: Output | None, no_color: bool, yes: bool) -> None:
    """Apply these global options to the rest of the command, on top of the current ones."""
    _current.set(_merged(database, output, no_color, yes))


def _merged(database: str | None, output: Output | None, no_color: bool, yes: bool) -> Options:
    base = current_options()
    return replace(
        base,
        database=database or base.database,
        output=output or base.output,
        no_color=no_color or base.no_color,
        yes=yes or base.yes,
    )


class WithDefault(TyperGroup):
    """A group whose first command is the default: `penstock limits` runs `penstock limits ls`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def command(
    group: typer.Typer, name: str, **extra: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command of a group and add the global options.

    An async function whose first parameter is `pool` receives a connection pool.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        group.command(name, **extra)(_with_shared_options(function))
        return function

    return register


def _with_shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    from penstock.cli import job_options

    parameters = dict(inspect.signature(function).parameters)
    needs_pool = parameters.pop("pool", None) is not None
    hints = get_type_hints(function, include_extras=True)
    # `**options: Unpack[BulkOptions]` stands for the options of that table.
    unpacked = [name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD]
    table: type | None = get_args(hints[parameters.pop(unpacked[0]).name])[0] if unpacked else None
    of_table = job_options.parameters_of(table) if table else []

    def run(**values: Any) -> Any:
        shared = {name: values.pop(name) for name in SHARED}
        given = {p.name: values.pop(p.name) for p in of_table}
        try:
            with using_options(**shared):
                if table:
                    values |= job_options.read_options(table, given)
                return asyncio.run(_with_pool(function, values)) if needs_pool else function(**values)
        except BrokenPipeError:
            discard_output()

    own = [
        p.replace(annotation=_readable(name, hints[name]), kind=p.KEYWORD_ONLY)
        for name, p in parameters.items()
    ]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=annotation,
            default=False if annotation in (NoColorOption, YesOption) else None,
        )
        for name, annotation in SHARED.items()
    ]
    run.__doc__ = function.__doc__
    run.__annotations__ = {p.name: p.annotation for p in (*own, *of_table, *added)}
    run.__signature__ = inspect.Signature([*own, *of_table, *added])  # pyright: ignore[reportFunctionMemberAccess]
    return run


def _readable(name: str, annotation: Any) -> Any:
    """The annotation, whose help and errors read alike in all commands: names in capitals, ids by example."""
    declared, *extra = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    info: Any = next((item for item in extra if isinstance(item, ParameterInfo)), None)
    if info is None:
        return annotation
    if isinstance(info, ArgumentInfo) and info.metavar is None:
        info.metavar = name.upper()
    if UUID in (declared, *get_args(declared)):
        info.parser = _id_of
    return annotation


def _id_of(text: str | UUID) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not an id such as 01a1f052-d047-7a8a-b5a5-f77a3fbadd2d"
        ) from None


async def tenant_id_of(pool: db.Pool, text: str) -> UUID:
    """The id of the tenant with this name or id."""
    from penstock.contract import tenants

    found = await tenants.find(pool, name=text)
    if not found:
        raise NotFound(f"tenant {text!r} not found", code="unknown_tenant", hint="See `penstock tenants ls`.")
    if len(found) > 1:
        raise Conflict(f"{len(found)} tenants are named {text!r}", hint="Use the tenant's id instead.")
    return found[0].id


def discard_output() -> None:
    """Discard further output: the reader closed the pipe, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _with_pool(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    from penstock.postgres import db

    address = dsn()
    await asyncio.to_thread(_reach, address)
    async with db.pool(address, name="penstock cli", max_size=2) as pool:
        return await function(pool, **values)


def _reach(address: str) -> None:
    import psycopg

    from penstock.postgres import db

    # The pool would retry for 30 seconds and then not report the cause.
    try:
        db.connect(address, name="penstock cli", wait_seconds=0).close()
    except psycopg.ProgrammingError as error:
        raise Invalid(
            f"invalid database URL: {error}".strip(),
            hint="Use the form postgresql://user:password@host/database.",
        ) from error


def dsn(*, make: bool = False) -> str:
    """The database URL. `make` creates an embedded database if there is none."""
    from penstock.postgres import embedded

    if given := current_options().database or settings().database_url:
        return given
    if not make and not embedded.of(settings().home).folder.exists():
        raise NotMigrated(
            f"no database: DATABASE_URL is not set and {settings().home} contains no embedded database",
            code="no_database",
            hint="Set DATABASE_URL, or create an embedded database with `penstock migrate`.",
        )
    return embedded.dsn(settings().home)
