"""`penstock prompts`: versions of prompts, which one is active, and trials on past inputs."""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.cli import actors, output
from penstock.cli.options import WithDefault, command
from penstock.cli.output import Column
from penstock.contract import costs, jobs, prompts
from penstock.errors import Invalid, TimedOut
from penstock.postgres import db
from penstock.types import ENDED, PromptStats, PromptVersion, TrialRow

group = typer.Typer(
    help="Manage prompts: versions, activation, rollback, trials.\n\nDefault command: ls.", cls=WithDefault
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="Name of the prompt.")]
FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", show_default=False, help="File with the text; - for stdin.")
]
ModelOption = Annotated[str | None, typer.Option(help="Model (default: that of the constant).")]
TokensOption = Annotated[int | None, typer.Option(help="Maximum tokens of the answer.")]
ExpectOption = Annotated[
    int | None, typer.Option(metavar="VERSION", help="Fail if another version is active by now.")
]


@command(group, "ls")
async def ls(pool: db.Pool) -> None:
    """List prompts with their active version and its statistics for the last 30 days."""
    stats = {(each.name, each.version): each for each in await prompts.stats(pool)}
    found = [each for each in await prompts.versions(pool) if each.is_active]
    columns = [Column("NAME", lambda each: each.name), *_columns(stats)]
    output.rows(found, columns, empty="No prompts.")


@command(group, "show")
async def show(
    pool: db.Pool,
    name: NameArgument,
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", help="Version to print (default: list all).")
    ] = None,
) -> None:
    """List the versions of a prompt, or print one."""
    if version is not None:
        found = await prompts.version(pool, name=name, version=version)
        output.document(found, lambda: _show(found))
        return
    stats = {(each.name, each.version): each for each in await prompts.stats(pool, name=name)}
    every = await prompts.versions(pool, name=name)
    people = await actors.names(pool, [each.created_by for each in every])
    columns = [
        *_columns(stats),
        Column("ACTIVE", lambda each: "active" if each.is_active else "", is_status=True),
        Column("BY", lambda each: people[each.created_by], is_spare=True),
        Column("AGE", lambda each: output.age(each.created_at), is_right=True),
        Column("COMMENT", lambda each: each.comment, is_wide=True, style="dim"),
    ]
    output.rows(every, columns, empty=f"No prompt {name}.")


def _columns(stats: dict[tuple[str, int], PromptStats]) -> list[Column]:
    def of(each: PromptVersion) -> PromptStats | None:
        return stats.get((each.name, each.version))

    def failed(each: PromptVersion) -> str:
        return f"{found.failures / found.uses:.1%}" if (found := of(each)) else ""

    def median(each: PromptVersion) -> str:
        return f"{found.median_seconds:.1f} s" if (found := of(each)) and found.median_seconds else ""

    def cost(each: PromptVersion) -> str:
        return output.decimal(found.cost) if (found := of(each)) and found.cost is not None else ""

    return [
        Column("VERSION", lambda each: str(each.version), is_right=True),
        Column("MODEL", lambda each: each.model or ""),
        Column("USES", lambda each: str(found.uses) if (found := of(each)) else "0", is_right=True),
        Column("FAILED", failed, is_right=True),
        Column("MEDIAN", median, is_right=True),
        Column("COST", cost, is_right=True),
    ]


def _show(found: PromptVersion) -> None:
    output.fields(
        [
            ("prompt", f"{found.name}, version {found.version}"),
            ("active", "yes" if found.is_active else "no"),
            ("model", found.model or ""),
            ("max tokens", str(found.max_tokens or "")),
            ("variables", ", ".join(found.variables)),
            ("comment", found.comment),
        ]
    )
    print(f"\n{found.body}")


@command(group, "add")
async def add(
    pool: db.Pool,
    name: NameArgument,
    file: FileArgument,
    model: ModelOption = None,
    max_tokens: TokensOption = None,
    comment: Annotated[str, typer.Option(help="What has changed.")] = "",
    activate: Annotated[bool, typer.Option("--activate", help="Make it the active version.")] = False,
) -> None:
    """Add a version from a file."""
    version = await prompts.add(
        pool, name=name, body=_read(file), model=model, max_tokens=max_tokens, comment=comment,
        activate=activate,
    )  # fmt: skip
    output.document(
        {"name": name, "version": version},
        lambda: output.note(f"{name}: added version {version}{', now active' if activate else ''}."),
    )


@command(group, "activate")
async def activate(
    pool: db.Pool,
    name: NameArgument,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", show_default=False, help="0: the constant in the code.")
    ],
    expect: ExpectOption = None,
) -> None:
    """Make a version the active one. Processes use it within about 5 minutes."""
    before = await prompts.activate(pool, name=name, version=version, expected=expect)
    output.document(
        {"name": name, "version": version, "before": before},
        lambda: output.note(f"{name}: version {version} is active (before: {before})."),
    )


@command(group, "rollback")
async def rollback(pool: db.Pool, name: NameArgument, expect: ExpectOption = None) -> None:
    """Activate the newest earlier version that has been active, or else the constant."""
    version = await prompts.rollback(pool, name=name, expected=expect)
    output.document(
        {"name": name, "version": version}, lambda: output.note(f"{name}: version {version} is active.")
    )


@command(group, "diff")
async def diff(
    pool: db.Pool,
    name: NameArgument,
    old: Annotated[int, typer.Argument(metavar="OLD", show_default=False, help="Version.")],
    new: Annotated[
        int | None, typer.Argument(metavar="NEW", help="Version (default: the active one).")
    ] = None,
) -> None:
    """Show the difference between two versions."""
    one = await prompts.version(pool, name=name, version=old)
    other = await prompts.version(pool, name=name, version=new)
    lines = list(
        difflib.unified_diff(
            _lines(one), _lines(other), f"version {old}", f"version {other.version}", lineterm=""
        )
    )
    output.document({"name": name, "diff": lines}, lambda: print("\n".join(lines) or "No difference."))


def _lines(version: PromptVersion) -> list[str]:
    head = [f"model: {version.model or ''}", f"max_tokens: {version.max_tokens or ''}", ""]
    return [*head, *version.body.splitlines()]


@command(group, "try")
async def attempt(
    pool: db.Pool,
    name: NameArgument,
    file: FileArgument,
    on: Annotated[UUID, typer.Option(metavar="JOB", show_default=False, help="Past job with inputs.")],
    rows: Annotated[int, typer.Option(help="Number of inputs.")] = 20,
    model: ModelOption = None,
    max_tokens: TokensOption = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="Give up waiting after this.")] = 600,
) -> None:
    """Run a new version on inputs of a past job, and compare outputs and costs.

    Adds the file as a version that is not active. The tasks run on your workers, in the tenant of the job,
    and count against its quotas.
    """
    body = _read(file)
    async with db.transaction(pool) as conn:
        version = await _version(conn, name, body, model, max_tokens)
        job_id = await prompts.attempt(conn, name=name, version=version, job_id=on, rows=rows)
    output.note(f"Trying version {version} of {name} in job {job_id}.")
    deadline = time.monotonic() + wait
    while (await jobs.get(pool, job_id=job_id)).status not in ENDED:
        if time.monotonic() > deadline:
            raise TimedOut(f"job {job_id} has not ended", hint="Start a worker that has its kinds.")
        await asyncio.sleep(0.3)
    found = await prompts.trial(pool, job_id=job_id)
    currency = await costs.base_currency(pool)
    result = {"name": name, "version": version, "job_id": job_id, "rows": found}
    output.document(result, lambda: _compare(name, version, found, currency))


async def _version(
    conn: db.Connection, name: str, body: str, model: str | None, max_tokens: int | None
) -> int:
    """The number of the newest version if it is identical, otherwise of a new one."""
    newest = next(iter(await prompts.versions(conn, name=name)), None)
    if (
        newest
        and newest.version
        and (newest.body, newest.model, newest.max_tokens) == (body, model, max_tokens)
    ):
        return newest.version
    return await prompts.add(conn, name=name, body=body, model=model, max_tokens=max_tokens, comment="trial")


def _compare(name: str, version: int, found: list[TrialRow], currency: str) -> None:
    for row in found:
        print(f"task {row.task_id}  {row.kind}  {_text(row.input)}")
        print(f"  before  {_cost(row.cost)}  {_seconds(row.seconds)}  {_text(row.output)}")
        answer = row.new_error or _text(row.new_output)
        print(f"  after   {_cost(row.new_cost)}  {_seconds(row.new_seconds)}  {answer}\n")
    failed = sum(row.new_error is not None for row in found)
    same = sum(row.new_error is None and row.output == row.new_output for row in found)
    before, after = sum(row.cost or 0 for row in found), sum(row.new_cost or 0 for row in found)
    output.note(
        f"{output.counted(len(found), 'row')}: {same} the same, {failed} failed. "
        f"Cost before: {before} {currency}, after: {after} {currency}. "
        f"To use it: penstock prompts activate {name} {version}"
    )


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _cost(amount: Any) -> str:
    return "no cost" if amount is None else output.decimal(amount)


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {file}: {error}", code="usage") from None
