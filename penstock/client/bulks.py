"""Bulk jobs: start from rows or a file, read states and results."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypedDict, Unpack, cast
from uuid import UUID

from penstock.client import watching
from penstock.client.artifacts import FileSource, chunks_of, opened
from penstock.client.core import identifier, path
from penstock.client.jobs import StartedJob
from penstock.client.responses import ServerResponse, read
from penstock.client.transport import IO, Resource, call, listing
from penstock.types import (
    Bulk,
    BulkOptions,
    BulkResult,
    BulkSummary,
    Forecast,
    RowsAdded,
    RowState,
    SourceCheck,
    exact,
)

Id: TypeAlias = UUID | str
_SECONDS = 300.0


class TableOptions(TypedDict, total=False):
    """How to parse a file. Omitted options are detected."""

    name: str | None
    format: str | None
    encoding: str | None
    delimiter: str | None
    sheet: str | None
    header: bool


class UploadOptions(TableOptions, BulkOptions, total=False):
    """How to parse a file, and the options of its job."""


class Bulks(Resource[IO]):
    """Jobs over rows of a file or sheet. Pause, resume, cancel and wait are in `jobs`."""

    # Starting

    @call
    async def start(
        self,
        type: str,
        rows: Iterable[Mapping[str, Any]] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        source: Mapping[str, Any] | None = None,
        **options: Unpack[BulkOptions],
    ) -> StartedJob[IO]:
        """Start a bulk job from rows, which are numbered from 1. `source` describes where they come from.

        Without rows, a worker reads them from `source={"type": "google-sheets", "id": …, "range": …}`.
        """
        key = options.pop("idempotency_key", None)
        body = {
            "type": type,
            "rows": None if rows is None else [dict(row) for row in rows],
            "params": dict(params or {}),
            "source": dict(source or {}),
            **self._chosen(options),
        }
        answer = await self._core.request("POST", "/api/bulks/start", body=body, key=key)
        return StartedJob(self._core, answer.field(UUID, "id"))

    @call
    async def upload(
        self,
        type: str,
        file: FileSource,
        *,
        params: Mapping[str, Any] | None = None,
        **options: Unpack[UploadOptions],
    ) -> StartedJob[IO]:
        """Start a bulk job from a file: CSV, TSV, XLSX or JSONL."""
        key = options.pop("idempotency_key", None)
        query = {
            "type": type,
            "params": json.dumps(dict(params)) if params else None,
            **self._chosen(options),
        }
        answer = await self._send("/api/bulks/upload", file, query, key)
        return StartedJob(self._core, answer.field(UUID, "id"))

    @call
    async def check(self, type: str, file: FileSource, **table: Unpack[TableOptions]) -> SourceCheck:
        """Check a file: line, column and reason of the first 1000 rows that would be refused."""
        return read(SourceCheck, (await self._send("/api/bulks/check", file, {"type": type, **table})).json())

    @call
    async def forecast(
        self,
        type: str,
        file: FileSource,
        *,
        params: Mapping[str, Any] | None = None,
        **options: Unpack[UploadOptions],
    ) -> Forecast:
        """Forecast cost, usage and duration of a job for this file, without starting it."""
        query = {
            "type": type,
            "params": json.dumps(dict(params)) if params else None,
            **self._chosen(options),
        }
        return read(Forecast, (await self._send("/api/bulks/forecast", file, query)).json())

    @call
    async def add_rows(self, job_id: Id, rows: Mapping[int, Mapping[str, Any]]) -> RowsAdded:
        """Add rows by number to a bulk job that has not ended. Known rows are skipped."""
        lines = [{"number": number, "data": dict(data)} for number, data in rows.items()]
        answer = await self._core.request("POST", _path("/api/bulks/{}/rows", job_id), body={"rows": lines})
        return read(RowsAdded, answer.json())

    @call
    async def add_file(self, job_id: Id, file: FileSource, **table: Unpack[TableOptions]) -> RowsAdded:
        """Add new rows of a file to a bulk job that has not ended."""
        answer = await self._send(_path("/api/bulks/{}/upload", job_id), file, cast("dict[str, Any]", table))
        return read(RowsAdded, answer.json())

    @call
    async def read_again(self, job_id: Id) -> None:
        """Have a worker read the job's Google Sheet again. The job must not have ended."""
        await self._core.request("POST", _path("/api/bulks/{}/read", job_id))

    # Reading

    @listing
    def list(
        self, filter: str = "", *, tenant_id: Id | None = None, limit: int | None = None
    ) -> AsyncGenerator[BulkSummary]:
        """Iterate over bulk jobs, newest first. Example filter: `status:running type:ideas`."""
        query = {"filter": filter or None, "tenant_id": self._core.tenant_or_none(tenant_id)}
        return self._core.pages(partial(read, BulkSummary), "/api/bulks", query, limit)

    @call
    async def get(self, job_id: Id) -> Bulk:
        """A bulk job: progress, rows, wait reasons, refused rows and failures."""
        document = (await self._core.request("GET", _path("/api/bulks/{}", job_id))).json()
        found = read(dict[str, Any], document)
        return read(Bulk, {**found, "job": watching.job_of(found.get("job"))})

    @listing
    def rows(
        self, job_id: Id, *, states: Sequence[RowState] | None = None, limit: int | None = None
    ) -> AsyncGenerator[BulkResult]:
        """Iterate over rows by number, with their results and errors."""
        query = {"state": None if states is None else builtins.list(states)}
        return self._core.pages(partial(read, BulkResult), _path("/api/bulks/{}/rows", job_id), query, limit)

    @call
    async def export(
        self,
        job_id: Id,
        to: str | os.PathLike[str],
        *,
        format: str | None = None,
        states: Sequence[RowState] | None = None,
    ) -> Path:
        """Export the rows with their results to a file: .csv, .jsonl or .xlsx."""
        target = Path(to)
        query = {
            "format": format or target.suffix.removeprefix(".") or "csv",
            "state": None if states is None else builtins.list(states),
        }
        part = target.with_name(f"{target.name}.part")
        file = cast("BinaryIO", await self._core.io.work(open, part, "wb"))
        try:
            await self._core.save(_path("/api/bulks/{}/export", job_id), query, file)
        except BaseException:
            await self._core.io.work(file.close)
            await self._core.io.work(part.unlink, missing_ok=True)
            raise
        await self._core.io.work(file.close)
        await self._core.io.work(os.replace, part, target)
        return target

    # Acting

    @call
    async def undo(
        self, job_id: Id, *, rows: Sequence[int] | None = None, names: Sequence[str] | None = None
    ) -> StartedJob[IO]:
        """Start a job that undoes applied values: all of them, or only some rows or names."""
        wanted = {"rows": rows, "names": names}
        body = {name: builtins.list(some) for name, some in wanted.items() if some is not None}
        answer = await self._core.request("POST", _path("/api/bulks/{}/undo", job_id), body=body)
        return StartedJob(self._core, answer.field(UUID, "id"))

    async def _send(
        self, url_path: str, file: FileSource, query: Mapping[str, Any], key: str | None = None
    ) -> ServerResponse:
        core = self._core
        name = Path(file).name if isinstance(file, str | os.PathLike) else None
        content, size = await core.io.work(opened, file)
        try:
            return await core.request(
                "POST",
                url_path,
                query={"name": name, **query},
                file=lambda: core.io.body(chunks_of(core, content, size)),
                key=key,
                seconds=max(core.timeout, _SECONDS),
            )
        finally:
            if content is not file:
                await core.io.work(content.close)

    def _chosen(self, options: Mapping[str, Any]) -> dict[str, Any]:
        chosen = {name: value for name, value in options.items() if value is not None}
        if "budget" in chosen:
            chosen["budget"] = format(exact(chosen["budget"], "budget"), "f")
        if "stop_after" in chosen:
            chosen["stop_after"] = str(chosen["stop_after"])
        chosen["tenant_id"] = self._core.tenant_or_none(chosen.get("tenant_id"))
        return chosen


def _path(template: str, job_id: Id) -> str:
    return path(template, identifier(job_id, "job_id"))
