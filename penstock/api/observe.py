"""What can be seen of the API from outside: a request's id, a line in the log, metrics, health.

A line in the log has the route, not the address: addresses may hold what is secret, and so may headers.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import workers
from penstock.api import problems
from penstock.api.callers import Callers
from penstock.api.routes import PROBLEMS, asking
from penstock.errors import Forbidden, Unauthenticated, Unavailable

logger = structlog.get_logger(__name__)

router = APIRouter(tags=["health"])

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_READY_SECONDS = 3
_GONE = 499
"""In the log and the metrics: the client left before it was answered."""
_OPEN: dict[str, Any] = {"security": []}
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class Metrics:
    """Counts the requests of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "penstock_http_requests",
            "Requests answered.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "penstock_http_request_seconds",
            "How long they took.",
            ["method", "route"],
            registry=self.registry,
        )


class Observed:
    """Around the whole application: every request has an id, is counted, logged, and answered."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Request(scope).headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started_at = time.perf_counter()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers.setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, sending)
            except ClientDisconnect:
                # Nobody is there to be answered.
                status = status or _GONE
            except Exception:
                logger.exception("request failed")
                if status:
                    # Half an answer cannot be taken back: the server breaks the connection off.
                    raise
                await problems.unexpected(request_id)(scope, receive, sending)
            finally:
                self._note(scope, status, time.perf_counter() - started_at)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        path: str = getattr(route, "path_format", "")
        # The labels must not grow with what strangers send.
        method = scope["method"] if path and scope["method"] in _METHODS else ""
        self._metrics.requests.labels(method, path, str(status)).inc()
        self._metrics.seconds.labels(method, path).observe(seconds)
        caller = scope.get("state", {}).get("caller")
        logger.info(
            "request",
            method=method,
            route=path,
            status=status,
            milliseconds=round(seconds * 1000, 1),
            caller=caller.name if caller else None,
        )


def add_to(app: FastAPI) -> None:
    """Let the application be seen."""
    app.state.metrics = Metrics()
    app.add_middleware(Observed, metrics=app.state.metrics)
    app.include_router(router)


@router.get("/healthz", openapi_extra=_OPEN)
async def is_alive() -> dict[str, str]:
    """The process answers. Says nothing of the database."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: PROBLEMS[503]}, openapi_extra=_OPEN)
async def is_ready(request: Request) -> dict[str, str]:
    """The process can answer requests: the database does, on both logins."""
    callers: Callers = request.app.state.callers
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await callers.check()
    except TimeoutError as error:
        raise Unavailable("the database does not answer in time") from error
    return {"status": "ok"}


@router.get(
    "/metrics",
    responses={status: PROBLEMS[status] for status in (401, 403, 429, 503)},
    response_class=Response,
)
async def show_metrics(request: Request) -> Response:
    """Metrics for Prometheus and autoscalers: backlog, oldest wait, running and drain rate of each lane."""
    callers: Callers = request.app.state.callers
    caller = await asking(request)
    if caller.role == "anon":
        raise Unauthenticated
    if caller.role != "service_role":
        raise Forbidden("metrics are for the service")
    async with callers.acting(caller, read_only=True) as held:
        lanes = await workers.backlog(held)
        rates = await workers.drain_rates(held)
    registry = CollectorRegistry()
    names = ["kind", "provider"]
    backlog = Gauge("penstock_lane_waiting", "Tasks that wait.", names, registry=registry)
    running = Gauge("penstock_lane_running", "Tasks that run.", names, registry=registry)
    oldest = Gauge("penstock_lane_oldest_seconds", "How long the next one waits.", names, registry=registry)
    drain = Gauge("penstock_lane_drain_per_second", "Tasks that end, about.", names, registry=registry)
    for lane in lanes:
        labels = (lane.kind, lane.provider or "")
        backlog.labels(*labels).set(lane.waiting)
        running.labels(*labels).set(lane.running)
        oldest.labels(*labels).set(lane.oldest_seconds or 0)
        drain.labels(*labels).set(rates.get((lane.kind, lane.provider), 0))
    metrics: Metrics = request.app.state.metrics
    text: Any = generate_latest(registry) + generate_latest(metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
