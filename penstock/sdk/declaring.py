"""Storing the kinds and job types of an app in the database, so that SQL can check and draw their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.contract import bulks, kinds
from penstock.postgres import db
from penstock.sdk.bulk_type import BulkType
from penstock.sdk.job_types import JobType, Task


async def declare_types(
    pool: db.Pool,
    *,
    tasks: Mapping[str, Task[..., Any]],
    job_types: Mapping[str, JobType[...]],
    bulk_types: Mapping[str, BulkType[Any]],
) -> None:
    """Store kinds with their policy, job types with their phases, params and title, and bulk types."""
    await kinds.define(pool, kinds=[task.settings for task in tasks.values()])
    takers = {**tasks, **job_types}.items()
    params = {name: taker.signature.params for name, taker in takers}
    for job_type in job_types.values():
        params[job_type.name] |= {"title": job_type.title}
    await kinds.define_params(pool, params=params)
    for kind in (*job_types.values(), *bulk_types.values()):
        phases = [{"name": name, "weight": weight} for name, weight in kind.all_phases().items()]
        await kinds.define_job_type(pool, name=kind.name, phases=phases, on_failure=kind.on_failure)
    for kind in bulk_types.values():
        await bulks.define_type(pool, name=kind.name, **kind.declared())
