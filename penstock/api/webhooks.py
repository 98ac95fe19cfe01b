"""Webhooks over HTTP: verify the signature of the raw body, record the delivery, run the handler once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from penstock import signing
from penstock.api import problems
from penstock.api.callers import Caller, Callers
from penstock.api.limits import Limits, Rate, read_body, read_json
from penstock.api.observe import Metrics
from penstock.contract import webhooks
from penstock.errors import Invalid, NotFound
from penstock.postgres import db
from penstock.sdk.webhooks import Source, Webhooks, process, retry_due

router = APIRouter(include_in_schema=False)
log = structlog.get_logger("penstock.webhooks")
_SERVICE = Caller("service_role", {"role": "service_role"})
RETRY_SECONDS = 5.0


@router.post("/webhooks/{source}")
async def receive(request: Request, source: str) -> Response:
    """Take a webhook. 2xx: recorded; 400: not signed or not readable; 500: the handler failed, send it again.

    An unknown event is recorded and answered with 200, because senders do not repeat a 4xx. Never
    410, which makes some senders stop permanently.
    """
    found: Source | None = request.app.state.webhooks.get(source)
    if found is None:
        raise NotFound("there is no such source of webhooks", code="unknown_source")
    # Before the body is read and the signature computed. Each sender has a share of its own.
    rate: Rate = request.app.state.rate
    rate.take(f"webhooks:{source}:{request.client.host if request.client else ''}")
    limits: Limits = request.app.state.limits
    body = await read_body(request, limits)
    headers = {name.lower(): request.headers.getlist(name) for name in request.headers}
    try:
        signing.verify(found.scheme, headers, body, found.secrets())
        payload = read_json(body, limits)
        delivery = webhooks.Delivery(source, *found.identify(payload, headers), payload)
        callers: Callers = request.app.state.callers
        async with callers.acting(_SERVICE) as conn:
            if await webhooks.take(conn, delivery):
                _counted(request, source, "duplicate")
                return JSONResponse({"duplicate": True})
            is_good = await process(conn, found, delivery)
    except Invalid as error:
        _counted(request, source, "rejected")
        return problems.answer(error, getattr(request.state, "request_id", None), status=400)
    _counted(request, source, "received" if is_good else "failed")
    return JSONResponse({"received": True} if is_good else {"failed": True}, 200 if is_good else 500)


def _counted(request: Request, source: str, result: str) -> None:
    # The source is one that the app declares, so that senders cannot create new time series.
    metrics: Metrics = request.app.state.metrics
    metrics.webhooks.labels(source, result).inc()


@asynccontextmanager
async def retrying(pool: db.Pool, sources: Webhooks) -> AsyncGenerator[None]:
    """Try again, every few seconds, what failed or was replayed."""
    if not sources:
        yield
        return
    for source in sources.values():
        if not any(source.secrets()):
            log.warning("webhooks.no_secret", source=source.name, effect="all its webhooks are rejected")
    task = asyncio.create_task(_retry(pool, sources), name="retry webhooks")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _retry(pool: db.Pool, sources: Webhooks) -> Any:
    while True:
        try:
            await retry_due(pool, sources)
        except Exception as error:
            log.warning("webhooks.retry_failed", error=str(error))
        await asyncio.sleep(RETRY_SECONDS)
