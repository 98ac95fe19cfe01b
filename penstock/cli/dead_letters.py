"""`penstock dead-letters`: tasks that failed permanently."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.jobs import AllOption, LimitOption, WhichArgument, ids_or_filter
from penstock.cli.options import Output, command, current_options
from penstock.cli.output import Column
from penstock.contract import dead_letters, filters, jobs, tenants
from penstock.errors import EXIT_PARTLY_DONE, NotFound
from penstock.postgres import db
from penstock.types import Attempt, DeadLetter

group = typer.Typer(help="Show, replay or discard tasks that failed permanently.", no_args_is_help=True)

FilterArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILTER", help="Filter, for example: kind:narrate code:timeout error:nova tenant:acme age:1d"
    ),
]

# Each replay writes several rows: this size keeps a call to about a second.
_CHUNK = 500


@command(group, "ls")
async def ls(
    pool: db.Pool,
    filter: FilterArgument = None,
    limit: LimitOption = 50,
    before: Annotated[
        int | None, typer.Option(metavar="ID", help="Only dead letters older than this one.")
    ] = None,
) -> None:
    """List dead letters, newest first."""
    found = await dead_letters.list(pool, filter=" ".join(filter or []), before=before, limit=limit)
    names = await tenants.names(pool, ids=(letter.tenant_id for letter in found))
    columns = [
        Column("ID", lambda letter: str(letter.id), is_right=True),
        Column("KIND", lambda letter: letter.kind),
        Column("TENANT", lambda letter: names.get(letter.tenant_id, str(letter.tenant_id)), is_spare=True),
        Column("REASON", lambda letter: letter.reason, is_spare=True),
        Column("ATTEMPTS", lambda letter: str(letter.attempts), is_right=True),
        Column("AGE", lambda letter: output.age(letter.died_at), is_right=True),
        Column("ERROR", lambda letter: _error(letter), is_wide=True, style="dim"),
    ]
    output.rows(found, columns, empty="No dead letters." if not filter else "No matching dead letters.")
    if current_options().output is Output.text:
        _print_hints(found, limit)


def _print_hints(found: list[DeadLetter], limit: int) -> None:
    causes = Counter((letter.kind, letter.error_code) for letter in found).most_common(1)
    if causes and causes[0][1] > 1:
        (kind, code), count = causes[0]
        again = shlex.join([f"kind:{filters.quoted(kind)}", f"code:{filters.quoted(code)}"])
        output.note(f"{count} have the same cause. Replay them: penstock dead-letters replay {again}", "dim")
    if len(found) == limit:
        output.note(f"{limit} shown. Older ones: --before {found[-1].id}", "dim")


def _error(letter: DeadLetter | Attempt) -> str:
    return f"{letter.error_code}: {letter.error_message or ''}"


@command(group, "show")
async def show(
    pool: db.Pool,
    letter_id: Annotated[int, typer.Argument(metavar="ID", show_default=False, help="Dead letter id.")],
) -> None:
    """Show a dead letter with all its attempts and their errors."""
    letter = await dead_letters.get(pool, letter_id=letter_id)
    attempts = await jobs.attempts(pool, job_id=letter.job_id, task_id=letter.task_id, limit=1000)
    names = await tenants.names(pool, ids=[letter.tenant_id])
    whole = {**output.plain(letter), "history": attempts}
    output.document(whole, lambda: _show(letter, names.get(letter.tenant_id, "?"), attempts))


def _show(letter: DeadLetter, tenant: str, attempts: list[Attempt]) -> None:
    output.fields(
        [
            ("dead letter", str(letter.id)),
            ("task", f"{letter.task_id} ({letter.kind})"),
            ("job", str(letter.job_id)),
            ("tenant", tenant),
            ("reason", f"{letter.reason}, after {output.counted(letter.attempts, 'attempt')}"),
            ("failed", f"{letter.died_at:%Y-%m-%d %H:%M:%S %Z} ({output.age(letter.died_at)} ago)"),
            ("error", _error(letter)),
        ]
    )
    if attempts:
        print()
        output.rows(attempts, _ATTEMPT_COLUMNS, empty="")


_ATTEMPT_COLUMNS = [
    Column("ATTEMPT", lambda attempt: str(attempt.attempt), is_right=True),
    Column("ENDED", lambda attempt: f"{attempt.ended_at:%Y-%m-%d %H:%M:%S}"),
    Column(
        "DURATION",
        lambda attempt: output.duration((attempt.ended_at - attempt.started_at).total_seconds()),
        is_right=True,
    ),
    Column("OUTCOME", lambda attempt: attempt.outcome),
    Column("WORKER", lambda attempt: attempt.worker_id, is_spare=True, style="dim"),
    Column("ERROR", _error, is_wide=True),
]


@command(group, "replay")
async def replay(pool: db.Pool, which: WhichArgument = None, everything: AllOption = False) -> None:
    """Run dead-lettered tasks again with new attempts. Their jobs continue."""
    await _apply_to_each(pool, "replay", which, everything, lambda f: dead_letters.replay(pool, filter=f))


@command(group, "discard")
async def discard(pool: db.Pool, which: WhichArgument = None, everything: AllOption = False) -> None:
    """Discard dead letters. Their tasks stay failed."""
    await _apply_to_each(pool, "discard", which, everything, lambda f: dead_letters.discard(pool, filter=f))


async def _apply_to_each(
    pool: db.Pool,
    verb: str,
    which: list[str] | None,
    everything: bool,
    act: Callable[[Mapping[str, Any]], Awaitable[int]],
) -> None:
    ids, filter = ids_or_filter(which, everything, int)
    selected = ids or [letter.id async for letter in _matching(pool, filter)]
    if selected and not ids:
        output.confirm(f"{verb.capitalize()} {output.counted(len(selected), 'dead letter')}?")
    done = 0
    for start in range(0, len(selected), _CHUNK):
        done += await act({"ids": selected[start : start + _CHUNK]})
    result = {"matched": len(selected), "done": done}
    output.document(
        result, lambda: print(f"{done} of {output.counted(len(selected), 'dead letter')} {verb}ed")
    )
    if ids and not done:
        raise NotFound(f"dead letter {', '.join(map(str, ids))} not found", code="unknown_dead_letter")
    if done < len(selected):
        # Dead letters of a canceled job cannot be replayed.
        raise typer.Exit(EXIT_PARTLY_DONE)


async def _matching(pool: db.Pool, filter: str) -> AsyncIterator[DeadLetter]:
    before: int | None = None
    while page := await dead_letters.list(pool, filter=filter, before=before, limit=1000):
        for letter in page:
            yield letter
        before = page[-1].id
