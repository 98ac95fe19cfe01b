"""Prompts: versions of a text for a model, one active per name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString
from uuid import UUID

from penstock.errors import NotFound
from penstock.postgres import db
from penstock.types import Prompt, PromptFallback, PromptStats, PromptVersion, TrialRow

_VERSIONS: LiteralString = """\
select name, version, body, variables, model, max_tokens,
  is_active or version = 0 and not exists (
    select from penstock.prompts a where a.name = p.name and a.is_active),
  comment, created_by, created_at, activated_at
from penstock.prompts p where name = coalesce(%s, name) order by name, version desc"""


async def declare(database: db.Database, *, prompts: Sequence[Prompt]) -> None:
    """Store the constants of an app as version 0 of its prompts."""
    constants = [
        {"name": each.name, "body": each.body, "model": each.model, "max_tokens": each.max_tokens}
        for each in prompts
    ]
    await db.call(database, "declare_prompts", p_prompts=db.Json(constants))


async def add(
    database: db.Database,
    *,
    name: str,
    body: str,
    model: str | None = None,
    max_tokens: int | None = None,
    comment: str = "",
    activate: bool = False,
) -> int:
    """Add a version; returns its number."""
    options = {"model": model, "max_tokens": max_tokens, "comment": comment, "activate": activate}
    return await db.value(database, "add_prompt", p_name=name, p_body=body, p_options=db.Json(options))


async def activate(database: db.Database, *, name: str, version: int, expected: int | None = None) -> int:
    """Make a version the active one; 0 is the constant in the code. Returns the version that was active.

    With `expected`, raises Conflict (`prompt_moved`) if another version is active by now.
    """
    return await db.value(database, "activate_prompt", p_name=name, p_version=version, p_expected=expected)


async def rollback(database: db.Database, *, name: str, expected: int | None = None) -> int:
    """Activate the newest earlier version that has been active, or the constant; returns its number."""
    return await db.value(database, "rollback_prompt", p_name=name, p_expected=expected)


async def versions(database: db.Database, *, name: str | None = None) -> list[PromptVersion]:
    """All versions of a prompt, newest first, or of all prompts."""
    return [PromptVersion(*row) for row in await db.rows(database, _VERSIONS, (name,))]


async def version(database: db.Database, *, name: str, version: int | None = None) -> PromptVersion:
    """A version of a prompt; None: the active one."""
    for each in await versions(database, name=name):
        if each.version == version or (version is None and each.is_active):
            return each
    raise NotFound(f"prompt {name!r} has no version {version}", code="unknown_prompt")


async def stats(database: db.Database, *, name: str | None = None, days: int = 30) -> list[PromptStats]:
    """Statistics of the versions of a prompt, or of all prompts, for the last days."""
    rows = await db.call(database, "prompt_stats", p_name=name, p_days=days)
    return [PromptStats(**row) for row in rows]


async def fallbacks(database: db.Database, *, minutes: int = 60) -> list[PromptFallback]:
    """Prompts whose constant was used lately although they have an active version."""
    return [PromptFallback(**row) for row in await db.call(database, "prompt_fallbacks", p_minutes=minutes)]


async def attempt(database: db.Database, *, name: str, version: int, job_id: UUID, rows: int = 20) -> UUID:
    """Run a version on inputs of a past job; returns the id of the job that does it."""
    return await db.value(
        database, "try_prompt", p_name=name, p_version=version, p_job_id=job_id, p_rows=rows
    )


async def trial(database: db.Database, *, job_id: UUID) -> list[TrialRow]:
    """The tasks of a trial beside those of the past job."""
    return [TrialRow(**row) for row in await db.call(database, "prompt_trial", p_job_id=job_id)]


async def active(database: db.Database) -> list[Prompt]:
    """The active version of every prompt that has one."""
    return [_prompt(row) for row in await db.call(database, "active_prompts")]


async def pinned(database: db.Database, *, job_id: UUID) -> list[Prompt]:
    """The versions that the tasks of a job use; empty if the job keeps none."""
    return [_prompt(row) for row in await db.call(database, "pinned_prompts", p_job_id=job_id)]


async def pin(
    database: db.Database, *, task_id: int, worker_id: str, lease: int, names: Sequence[str]
) -> None:
    """Let all tasks of the running task's job use the versions that are active now."""
    await db.call(
        database,
        "pin_prompts",
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_names=list(names),
    )


async def record_uses(database: db.Database, *, uses: Sequence[Mapping[str, Any]]) -> None:
    """Record which versions attempts have used. A repeated line counts once."""
    await db.call(database, "record_prompt_uses", p_uses=db.Json([dict(use) for use in uses]))


def _prompt(row: Mapping[str, Any]) -> Prompt:
    return Prompt(row["name"], row["version"], row["body"], row["model"], row["max_tokens"])
