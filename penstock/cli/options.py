"""What every command can be told, before or after its name: where the database is, and how to answer."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Any, get_type_hints
from uuid import UUID

import psycopg
import typer
from typer.core import TyperGroup

from penstock import db, embedded, tenants
from penstock.errors import Conflict, Invalid, NotFound, NotMigrated
from penstock.settings import settings


class Output(StrEnum):
    """How data is printed."""

    text = "text"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


@dataclass(frozen=True, slots=True)
class Options:
    """The options that are the same for every command."""

    database: str | None = None
    output: Output = Output.text
    no_color: bool = False
    yes: bool = False


_DEFAULT = Options()
_chosen: ContextVar[Options] = ContextVar("penstock_options", default=_DEFAULT)

_PANEL = "Options of every command"
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The database. Default: DATABASE_URL, else the embedded PostgreSQL in .penstock",
        rich_help_panel=_PANEL,
    ),
]
OutputOption = Annotated[
    Output | None,
    typer.Option("-o", "--output", help="How to print data. Default: text", rich_help_panel=_PANEL),
]
NoColorOption = Annotated[
    bool, typer.Option("--no-color", help="Print without colours.", rich_help_panel=_PANEL)
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", rich_help_panel=_PANEL)]
TenantOption = Annotated[str | None, typer.Option(help="A tenant, by name or id.")]
TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", show_default=False, help="Its name or id.")]
SHARED = {"database": DatabaseOption, "output": OutputOption, "no_color": NoColorOption, "yes": YesOption}


def chosen() -> Options:
    """What the running command was told."""
    return _chosen.get()


@contextmanager
def choosing(
    database: str | None = None, output: Output | None = None, no_color: bool = False, yes: bool = False
) -> Generator[None]:
    """Add to what was told, for a while."""
    token = _chosen.set(_merged(database, output, no_color, yes))
    try:
        yield
    finally:
        _chosen.reset(token)


def choose(database: str | None, output: Output | None, no_color: bool, yes: bool) -> None:
    """Add to what was told, for good."""
    _chosen.set(_merged(database, output, no_color, yes))


def _merged(database: str | None, output: Output | None, no_color: bool, yes: bool) -> Options:
    base = chosen()
    return replace(
        base,
        database=database or base.database,
        output=output or base.output,
        no_color=no_color or base.no_color,
        yes=yes or base.yes,
    )


class WithDefault(TyperGroup):
    """A group that does its first command when none is named: `penstock limits` is `penstock limits ls`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def command(
    group: typer.Typer, name: str, **extra: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a command of a group, with the options of every command.

    An async function whose first parameter is `pool` gets the database's connections.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        group.command(name, **extra)(_with_shared_options(function))
        return function

    return register


def _with_shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    parameters = dict(inspect.signature(function).parameters)
    needs_pool = parameters.pop("pool", None) is not None
    hints = get_type_hints(function, include_extras=True)

    def run(**values: Any) -> Any:
        shared = {name: values.pop(name) for name in SHARED}
        try:
            with choosing(**shared):
                return asyncio.run(_with_pool(function, values)) if needs_pool else function(**values)
        except BrokenPipeError:
            forget_reader()

    own = [p.replace(annotation=hints[n], kind=p.KEYWORD_ONLY) for n, p in parameters.items()]
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
    run.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
    run.__signature__ = inspect.Signature([*own, *added])  # pyright: ignore[reportFunctionMemberAccess]
    return run


# Reading arguments


async def tenant_id_of(pool: db.Pool, text: str) -> UUID:
    """The tenant of this name or id."""
    found = await tenants.find(pool, name=text)
    if not found:
        raise NotFound(f"There is no tenant {text!r}.", code="unknown_tenant")
    if len(found) > 1:
        raise Conflict(f"{len(found)} tenants are called {text!r}.", hint="Give the id instead.")
    return found[0].id


def amount_of(text: str, name: str = "AMOUNT") -> Decimal:
    """An amount, with every digit that was written."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise Invalid(f"{name} is not a decimal number: {text!r}", code="usage")
    return amount


def amount_or_none(text: str) -> Decimal | None:
    """An amount, or the word none."""
    return None if text == "none" else amount_of(text)


def day_of(text: str | None, name: str) -> date | None:
    """A day such as 2026-03-31."""
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{name} is not a day such as 2026-03-31: {text!r}", code="usage") from None


def moment_of(text: str | None, name: str) -> datetime | None:
    """A day or a time; in UTC, unless it has a zone."""
    try:
        moment = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{name} is not a time such as 2026-03-31T12:00Z: {text!r}", code="usage") from None
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)


def pairs_of(words: list[str]) -> dict[str, str]:
    """Arguments of the form key=value."""
    pairs = dict[str, str]()
    for word in words:
        name, mark, value = word.partition("=")
        if not (name and mark):
            raise Invalid(f"{word!r} is not of the form key=value", code="usage")
        pairs[name] = value
    return pairs


def forget_reader() -> None:
    """Whoever read our output has seen enough, which is no error: the rest goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _with_pool(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    address = dsn()
    await asyncio.to_thread(_reach, address)
    async with db.pool(address, name="penstock cli", max_size=2) as pool:
        return await function(pool, **values)


def _reach(address: str) -> None:
    # The pool would try for half a minute, and then not say why.
    try:
        db.connect(address, name="penstock cli", wait_seconds=0).close()
    except psycopg.ProgrammingError as error:
        raise Invalid(
            f"This is not the address of a database: {error}".strip(),
            hint="Write postgresql://user:password@host/database.",
        ) from error


def dsn(*, make: bool = False) -> str:
    """Where the database is. `make` starts an embedded one even where there was none before."""
    if given := chosen().database or settings().database_url:
        return given
    if not make and not embedded.of(settings().home).folder.exists():
        raise NotMigrated(
            f"There is no database: DATABASE_URL is not set, and {settings().home} holds none.",
            code="no_database",
            hint="Set DATABASE_URL, or make an embedded one with `penstock migrate`.",
        )
    return embedded.dsn(settings().home)
