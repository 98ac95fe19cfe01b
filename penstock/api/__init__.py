"""The HTTP API: `create` builds the application, `penstock serve` runs it."""

from __future__ import annotations

import resource
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from penstock.api import (
    artifacts,
    billing,
    bulks,
    dead_letters,
    development,
    events,
    functions,
    invitations,
    job_types,
    jobs,
    links,
    logs,
    money,
    notifications,
    observe,
    operations,
    problems,
    providers,
    reference,
    rest,
    schedules,
    task_uploads,
    tenants,
    waits,
    web,
    webhooks,
)
from penstock.api.alerts import Storms
from penstock.api.callers import Callers, Pools, check_login
from penstock.api.development import Development
from penstock.api.hosts import Hosts
from penstock.api.isolated import Isolated
from penstock.api.limits import Limits, Rates
from penstock.api.routes import PROBLEM_SCHEMA
from penstock.api.shares import Flights
from penstock.api.tokens import Tokens
from penstock.billing import add_to as add_billing
from penstock.billing import reconciling
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.sdk.app import App
from penstock.sdk.webhooks import Webhooks
from penstock.settings import Settings
from penstock.settings import settings as settings_of_process
from penstock.storage import objects as storages
from penstock.upkeep import standby

__all__ = ["create"]

_EXPOSED = ("ETag", "Content-Range", "Idempotency-Replayed", "Location", "Retry-After", "X-Request-ID")

_ROUTES = (
    jobs.start_routes,
    jobs.read_routes,
    jobs.forecast_routes,
    jobs.routes,
    job_types.routes,
    logs.routes,
    bulks.start_routes,
    bulks.file_routes,
    bulks.export_routes,
    bulks.routes,
    dead_letters.routes,
    schedules.routes,
    notifications.secret_routes,
    notifications.routes,
    money.routes,
    billing.routes,
    billing.stripe_routes,
    providers.routes,
    invitations.secret_routes,
    invitations.routes,
    tenants.secret_routes,
    tenants.routes,
    waits.routes,
    operations.routes,
    waits.links,
    links.routes,
    links.opened,
    webhooks.router,
    artifacts.router,
    task_uploads.routes,
    events.router,
    rest.router,
    functions.router,
    web.router,
)


def create(
    settings: Settings | None = None,
    app: App | None = None,
    *,
    limits: Limits | None = None,
    developer: Development | None = None,
) -> FastAPI:
    """Build the application. It opens its connections on startup and closes them on shutdown.

    With an `app`, clients can start jobs by type and params alone. With a `developer`, it has a development
    login and accepts requests from this machine only.
    """
    chosen = settings or settings_of_process()
    most = limits or Limits.fitting(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    made = FastAPI(
        title="Penstock",
        version=version("penstock"),
        summary="Run and observe jobs of tenants, with rate limits, usage and costs.",
        lifespan=lambda made: _running(made, chosen, app, most),
        openapi_url="/api/openapi.json",
        # The built-in pages load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
    )
    made.state.settings = chosen
    made.state.app = app
    made.state.webhooks = Webhooks(app.webhooks if app else {})
    if chosen.stripe_key is not None:
        add_billing(made.state.webhooks, chosen)
    made.state.gateway = None
    made.state.limits = most
    made.state.rates = Rates(most)
    made.state.storms = Storms()
    made.state.rate = made.state.rates.callers
    made.state.rest_catalogues = {}
    made.state.isolated = Isolated(app, most)
    made.state.body_flights = Flights(most.body_flights)
    problems.add_to(made)
    if chosen.allowed_origins:
        # Credentials stay disallowed: a browser then sends no cookies with cross-origin requests.
        made.add_middleware(
            CORSMiddleware,
            allow_origins=chosen.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
            max_age=600,
        )
    made.state.sessions = development.add_to(made, developer) if developer else None
    made.add_middleware(Hosts, settings=chosen)
    observe.add_to(made)
    made.router.routes.extend(_shared_routes())
    reference.add_to(made)
    _describe(made)
    return made


@cache
def _shared_routes() -> tuple[BaseRoute, ...]:
    """The routes of all applications in this process: FastAPI takes 0.2 s of CPU to prepare them."""
    every = APIRouter()
    for routes in _ROUTES:
        every.include_router(routes)
    return tuple(every.routes)


@asynccontextmanager
async def _running(
    made: FastAPI, settings: Settings, app: App | None, limits: Limits
) -> AsyncGenerator[None]:
    """Open the connections, and do the upkeep that no worker does, until the application ends."""
    if not settings.database_url or not settings.api_url:
        raise Invalid("the API requires DATABASE_URL and PENSTOCK_API_URL")
    async with (
        db.pool(settings.database_url, name="penstock api service") as service,
        db.pool(settings.api_url, name="penstock api", max_size=limits.connections.slots) as users,
        db.pool(
            settings.api_url, name="penstock api exports", min_size=0, max_size=limits.exports.slots
        ) as exports,
    ):

        async def begin() -> None:
            await check_login(users)
            if app is not None:
                await app.declare(service)

        await db.retry_until_available(begin)
        made.state.service_pool = service
        made.state.callers = Callers(
            Pools(users, service, exports),
            Tokens(settings),
            made.state.sessions,
            limits=limits,
            rates=made.state.rates,
        )

        async def draw(job_type: str, params: dict[str, Any]) -> db.Json | None:
            """The tasks of a schedule's job. All schedules share one slot for bodies."""
            isolated: Isolated = made.state.isolated
            drawn = await isolated.draw(job_type, params, tenant="schedules", caller="schedules")
            return drawn.tasks if drawn else None

        storage = partial(storages.of, settings)
        try:
            async with (
                standby(service, settings, draw, storage, app.uploads if app else {}),
                webhooks.retrying(service, made.state.webhooks),
                reconciling(service, settings) as made.state.gateway,
            ):
                yield
        finally:
            if hasattr(made.state, "hub"):
                await made.state.hub.close()
            await made.state.isolated.close()


def _describe(made: FastAPI) -> None:
    """Add the security schemes and the problem schema to the OpenAPI document."""

    def openapi() -> dict[str, Any]:
        if made.openapi_schema is None:
            document = get_openapi(
                title=made.title, version=made.version, summary=made.summary, routes=made.routes
            )
            components = document.setdefault("components", {})
            components.setdefault("schemas", {})["Problem"] = PROBLEM_SCHEMA
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A user's JWT or an API key."},
                "apikey": {"type": "apiKey", "in": "header", "name": "apikey"},
            }
            functions.describe(made, document)
            document["security"] = [{"bearer": []}, {"apikey": []}]
            made.openapi_schema = document
        return made.openapi_schema

    made.openapi = openapi
