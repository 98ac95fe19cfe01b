"""The minimum cost of a request with the same parts: FastAPI, psycopg_pool, and one statement.

`python -m bench.bare PORT` serves it as `penstock serve` serves the API.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import uvicorn
from fastapi import FastAPI, HTTPException
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

from penstock import server

TABLE = """
create table bare_jobs (
  id uuid primary key default gen_random_uuid(), type text not null, params jsonb not null,
  tasks jsonb not null, created_at timestamptz not null default now())"""
POOL_SIZE = 10


class Job(BaseModel):
    type: str
    params: dict[str, Any] = {}
    tasks: list[dict[str, Any]] = []


class Started(BaseModel):
    id: UUID


def create(dsn: str) -> FastAPI:
    how = {"autocommit": True, "row_factory": dict_row}
    pool = AsyncConnectionPool(dsn, min_size=POOL_SIZE, max_size=POOL_SIZE, kwargs=how, open=False)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncGenerator[None]:
        async with pool:
            yield

    app = FastAPI(lifespan=running)

    @app.post("/jobs", status_code=201)
    async def start(job: Job) -> Started:
        async with pool.connection() as conn:
            cursor = await conn.execute(
                "insert into bare_jobs (type, params, tasks) values (%s, %s, %s) returning id",
                (job.type, Jsonb(job.params), Jsonb(job.tasks)),
            )
            row: Any = await cursor.fetchone()
        return Started(id=row["id"])

    @app.get("/jobs/{job_id}")
    async def get(job_id: UUID) -> dict[str, Any]:
        async with pool.connection() as conn:
            cursor = await conn.execute("select * from bare_jobs where id = %s", (job_id,))
            row: Any = await cursor.fetchone()
        if row is None:
            raise HTTPException(404)
        return row

    return app


if __name__ == "__main__":
    uvicorn.run(
        create(os.environ["BENCH_DSN"]), host="127.0.0.1", port=int(sys.argv[1]), **server.UVICORN_OPTIONS
    )
