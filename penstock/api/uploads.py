"""Routes whose body is a bulk file: role first, then the file, then a slot of the tenant to read it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any
from uuid import UUID

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from penstock.api.callers import Caller, Callers
from penstock.api.isolated import Isolated
from penstock.api.limits import Limits, arriving
from penstock.api.routes import Route
from penstock.api.shares import Flight
from penstock.contract import bulks, jobs
from penstock.errors import Invalid, TimedOut, TooLarge
from penstock.postgres import db

_MORE = 4
"""How much larger than its file the rows of a table may be as JSON."""


class FileRoute(Route):
    """A route whose body is a file. Uses no database connection while the file arrives or waits.

    Files are untrusted, so they are parsed in child processes with a limit on CPU time. (The app's own model
    runs in a thread if the app is embedded in another program.)
    """

    is_key_passed_on = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = APIRoute.get_route_handler(self)

        async def answer(request: Request) -> Response:
            callers: Callers = request.app.state.callers
            isolated: Isolated = request.app.state.isolated
            caller = await self._caller(request)
            # Checking a file uses no transaction, in which a revoked key would be noticed.
            await callers.confirm(caller)
            tenant = await _tenant_of(request, caller)
            with (
                callers.counting(caller),
                NamedTemporaryFile(prefix="penstock-upload-") as file,
                isolated.flights.open(tenant, caller.name) as flight,
            ):
                async with isolated.uploads.take(tenant, caller.name):
                    await _receive(request, file, flight)
                request.state.file = file
                async with isolated.files.take(tenant, caller.name):
                    return await handle(request)

        return answer


async def _tenant_of(request: Request, caller: Caller) -> str:
    """The share of the tenant that the file is for. Raises Forbidden or NotFound."""
    callers: Callers = request.app.state.callers
    if (job_id := request.path_params.get("job_id")) is None:
        try:
            tenant_id = UUID(request.query_params["tenant_id"])
        except (KeyError, ValueError):
            # An invalid id is reported with the other parameters.
            tenant_id = None
        return await callers.require_tenant(caller, tenant_id)
    async with callers.acting(caller, read_only=True) as conn:
        job = await jobs.get(conn, job_id=job_id)
        await db.call(conn, "require_member", p_tenant_id=job.tenant_id)
    return f"tenant:{job.tenant_id}"


async def _receive(request: Request, file: IO[bytes], flight: Flight) -> None:
    """Write the request body to a file. Raises TooLarge, TimedOut or Limited."""
    limits: Limits = request.app.state.limits
    try:
        async with asyncio.timeout(limits.file_seconds):
            async for chunk in arriving(request):
                if file.tell() + len(chunk) > limits.file_bytes:
                    text = f"the file is larger than {limits.file_bytes} bytes"
                    raise TooLarge(text, details={"limit": limits.file_bytes})
                flight.add(len(chunk))
                file.write(chunk)
    except TimeoutError:
        raise TimedOut(f"the file did not arrive within {limits.file_seconds:g} seconds") from None
    file.flush()


async def examine(request: Request, function: str, type: str, table: dict[str, Any], **more: Any) -> Any:
    """Run the app's model over the file, in a child process if the app can be loaded there."""
    return await examined(request.app, request.state.file.name, function, type=type, table=table, **more)


async def examined(app: FastAPI, path: str, function: str, **arguments: Any) -> Any:
    """Call a function of `penstock.sdk.child` that reads a table, with the limit on CPU time."""
    isolated: Isolated = app.state.isolated
    seconds = app.state.limits.check_seconds
    return await isolated.run(
        function,
        seconds,
        lambda: Invalid(
            f"reading the file used more than {seconds:g} seconds of CPU time",
            code="check_too_slow",
            hint="Split the file, or save it as CSV.",
            details={"limit": seconds},
        ),
        path=path,
        **arguments,
    )


@asynccontextmanager
async def parsed(
    app: FastAPI, path: str, table: dict[str, Any]
) -> AsyncGenerator[tuple[bulks.PreparedRows, dict[str, Any]]]:
    """Read a table in a child process. Returns its rows and its description."""
    most = _MORE * app.state.limits.file_bytes
    with NamedTemporaryFile(prefix="penstock-rows-") as out:
        described = await examined(app, path, "rows", table=table, out=out.name, most=most)
        yield bulks.PreparedRows(Path(out.name)), described
