"""Observability of the API: request ids, request logs, metrics and health checks.

Logs contain the route and not the URL or headers, because those may contain secrets.
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

from penstock import telemetry
from penstock.api import problems
from penstock.api.callers import Callers
from penstock.api.limits import Refusals
from penstock.api.routes import PROBLEMS, identify
from penstock.api.shares import Flight
from penstock.contract import alerts, operations, overview, prompts, webhooks, workers
from penstock.errors import Forbidden, Unauthenticated, Unavailable
from penstock.types import OperationCount, PromptFallback

logger = structlog.get_logger(__name__)

router = APIRouter(tags=["health"])

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_READY_SECONDS = 3
_REFUSED = 429
_GONE = 499
"""Status in logs and metrics if the client disconnected before the response."""
_OPEN: dict[str, Any] = {"security": []}
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class Metrics:
    """Request metrics of this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "penstock_http_requests",
            "HTTP requests.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "penstock_http_request_seconds",
            "Duration of HTTP requests.",
            ["method", "route"],
            registry=self.registry,
        )
        self.webhooks = Counter(
            "penstock_webhooks",
            "Deliveries of webhooks: received, duplicate, failed (the handler raised) or rejected.",
            ["source", "result"],
            registry=self.registry,
        )


class Observed:
    """Middleware that gives every request an id, counts and logs it, and answers unexpected errors."""

    def __init__(self, app: ASGIApp, metrics: Metrics, refusals: Refusals) -> None:
        self._app = app
        self._metrics = metrics
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Request(scope).headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        flights: list[Flight] = []
        scope["state"]["flights"] = flights
        started_at = time.perf_counter()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == _REFUSED:
                    for flight in flights:
                        flight.close()
                    await asyncio.sleep(self._refusals.delay(_share(scope)))
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers.setdefault("X-Content-Type-Options", "nosniff")
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, sending)
            except ClientDisconnect:
                # No client is left to answer.
                status = status or _GONE
            except Exception:
                logger.exception("request failed")
                if status:
                    # The response has begun: let the server close the connection.
                    raise
                await problems.unexpected(request_id)(scope, receive, sending)
            finally:
                for flight in flights:
                    flight.close()
                self._record(scope, status, time.perf_counter() - started_at)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        path: str = getattr(route, "path_format", "")
        # Labels come from known values only, so that callers cannot create new time series.
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


def _share(scope: Scope) -> str:
    """The tenant or caller that a refusal counts for; without one, the client's address."""
    caller = scope["state"].get("caller")
    if caller is None or caller.role == "anon":
        client = scope.get("client")
        return f"nobody:{client[0] if client else ''}"
    return caller.share


def add_to(app: FastAPI) -> None:
    """Add request logs, metrics and health checks to the application."""
    app.state.metrics = Metrics()
    app.state.is_draining = False
    app.add_middleware(Observed, metrics=app.state.metrics, refusals=app.state.rates.refusals)
    app.include_router(router)


@router.get("/healthz", summary="Liveness", openapi_extra=_OPEN)
async def is_alive() -> dict[str, str]:
    """Liveness: the process responds. Does not check the database."""
    return {"status": "ok"}


@router.get("/readyz", summary="Readiness", responses={503: PROBLEMS[503]}, openapi_extra=_OPEN)
async def is_ready(request: Request) -> dict[str, str]:
    """Readiness: the database responds on both logins, and the server is not about to stop."""
    if request.app.state.is_draining:
        raise Unavailable("the server is draining: it stops in a moment", code="draining")
    callers: Callers = request.app.state.callers
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await callers.check()
    except TimeoutError as error:
        raise Unavailable(f"the database did not respond within {_READY_SECONDS} seconds") from error
    return {"status": "ok"}


@router.get(
    "/metrics",
    summary="Metrics",
    responses={status: PROBLEMS[status] for status in (401, 403, 429, 503)},
    response_class=Response,
)
async def show_metrics(request: Request) -> Response:
    """Metrics for Prometheus and autoscalers: waiting, running, longest wait and drain rate of each lane."""
    callers: Callers = request.app.state.callers
    caller = await identify(request)
    if caller.role == "anon":
        raise Unauthenticated
    if caller.role != "service_role":
        raise Forbidden("metrics require a service credential")
    if not (caller.may("read") or caller.may("work")):
        caller.require("read")
    async with callers.acting(caller, read_only=True) as conn:
        lanes = await workers.backlog(conn)
        rates = await workers.drain_rates(conn)
        slots = await workers.wanted_slots(conn)
        figures = await overview.metric_figures(conn)
        told = await alerts.list(conn, days=2, limit=1000)
        outside = await operations.counts(conn)
        inbox = await webhooks.open_counts(conn)
        constants = await prompts.fallbacks(conn)
    registry = CollectorRegistry()
    names = ["kind", "provider"]
    backlog = Gauge("penstock_lane_waiting", "Waiting tasks.", names, registry=registry)
    running = Gauge("penstock_lane_running", "Running tasks.", names, registry=registry)
    oldest = Gauge("penstock_lane_oldest_seconds", "Longest wait in seconds.", names, registry=registry)
    drain = Gauge(
        "penstock_lane_drain_per_second",
        "Tasks per second that ended in the last minute.",
        names,
        registry=registry,
    )
    for lane in lanes:
        labels = (lane.kind, lane.provider or "")
        backlog.labels(*labels).set(lane.waiting)
        running.labels(*labels).set(lane.running)
        oldest.labels(*labels).set(lane.oldest_seconds or 0)
        drain.labels(*labels).set(rates.get((lane.kind, lane.provider), 0))
    wanted = Gauge(
        "penstock_wanted_slots",
        "Tasks that could run at once now, under limits, quotas and budgets.",
        names,
        registry=registry,
    )
    for each in slots:
        wanted.labels(each.kind, each.provider or "").set(each.wanted)
    told_of = Gauge(
        "penstock_alerts", "Alerts to the operator since yesterday (UTC).", ["kind"], registry=registry
    )
    for alert in told:
        told_of.labels(alert.kind).inc(alert.count)
    _add_figures(registry, figures)
    _add_operations(registry, outside)
    _add_webhooks(registry, inbox)
    _add_prompts(registry, constants)
    _add_telemetry(registry)
    metrics: Metrics = request.app.state.metrics
    text: Any = generate_latest(registry) + generate_latest(metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


_FIGURES = {
    "tasks_succeeded": ("penstock_tasks_succeeded", "Tasks that succeeded in the last five minutes.", "plan"),
    "tasks_failed": ("penstock_tasks_failed", "Tasks that failed in the last five minutes.", "plan"),
    "wait_p95": ("penstock_wait_p95_seconds", "p95 of the time in queue of these tasks.", "plan"),
    "workers": ("penstock_workers", "Workers of the last day.", "state"),
    "slots": ("penstock_worker_slots", "Slots of all running workers.", None),
    "leases_expired": ("penstock_leases_expired", "Tasks of dead workers, not requeued yet.", None),
    "leases_overdue": ("penstock_leases_overdue_seconds", "How long the oldest of these waits.", None),
    "cost_today": ("penstock_cost_today", "Costs since midnight UTC, in the base currency.", None),
    "jobs_near_budget": ("penstock_jobs_near_budget", "Jobs that used 90 % of their budget.", None),
}
"""Names of `metric_figures` as metrics, with their label."""


def _add_figures(registry: CollectorRegistry, figures: list[tuple[str, str, float]]) -> None:
    gauges = {
        name: Gauge(metric, text, [label] if label else [], registry=registry)
        for name, (metric, text, label) in _FIGURES.items()
    }
    for name, label, value in figures:
        # A newer database may have more figures.
        if name in gauges:
            (gauges[name].labels(label) if _FIGURES[name][2] else gauges[name]).set(value)


def _add_operations(registry: CollectorRegistry, counts: list[OperationCount]) -> None:
    names = ["provider", "status"]
    number = Gauge(
        "penstock_operations",
        "Operations at providers: live ones, and those that began in the last hour and ended.",
        names,
        registry=registry,
    )
    told = Gauge(
        "penstock_operations_with_webhook",
        "Operations that began in the last hour, ended and got a webhook; the others were polled only.",
        names,
        registry=registry,
    )
    seconds = Gauge(
        "penstock_operations_seconds",
        "Seconds from submission to end of operations that began in the last hour and ended, all together.",
        names,
        registry=registry,
    )
    for each in counts:
        number.labels(each.provider, each.status).set(each.count)
        told.labels(each.provider, each.status).set(each.webhooks)
        seconds.labels(each.provider, each.status).set(each.seconds)


def _add_webhooks(registry: CollectorRegistry, counts: dict[str, int]) -> None:
    waiting = Gauge(
        "penstock_webhooks_open", "Webhooks that are not processed yet.", ["source"], registry=registry
    )
    for source, count in counts.items():
        waiting.labels(source).set(count)


def _add_prompts(registry: CollectorRegistry, found: list[PromptFallback]) -> None:
    constants = Gauge(
        "penstock_prompt_fallbacks",
        "Calls of the last hour that used the constant in the code although a version is active.",
        ["prompt"],
        registry=registry,
    )
    for each in found:
        constants.labels(each.name).set(each.uses)


def _add_telemetry(registry: CollectorRegistry) -> None:
    counts = telemetry.counts()
    for name, text, value in (
        ("penstock_telemetry_sent", "Product events sent by this process.", counts.sent),
        ("penstock_telemetry_dropped", "Product events that this process dropped.", counts.dropped),
    ):
        Gauge(name, text, registry=registry).set(value)
