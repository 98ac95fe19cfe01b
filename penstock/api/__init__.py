"""The way in over HTTP: `create` makes the application, `penstock serve` runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi

from penstock import db
from penstock import storage as storages
from penstock.api import (
    artifacts,
    bulks,
    dead_letters,
    development,
    events,
    jobs,
    money,
    observe,
    problems,
    providers,
    rest,
    schedules,
    tenants,
)
from penstock.api.callers import Callers, check_login
from penstock.api.development import Development
from penstock.api.limits import Limits, Rate
from penstock.api.routes import PROBLEM_SCHEMA
from penstock.api.tokens import Tokens
from penstock.app import App
from penstock.errors import Invalid
from penstock.settings import Settings
from penstock.settings import settings as settings_of_process
from penstock.upkeep import Tidy, Upkeep

__all__ = ["create"]

_EXPOSED = ("ETag", "Content-Range", "Idempotency-Replayed", "Location", "Retry-After", "X-Request-ID")


def create(
    settings: Settings | None = None,
    app: App | None = None,
    *,
    limits: Limits | None = None,
    developer: Development | None = None,
) -> FastAPI:
    """The application. Its connections open when it starts, and close when it ends.

    With an `app`, jobs can be started by their type and params alone. With a `developer` it has a login for
    one, and answers only this machine.
    """
    chosen = settings or settings_of_process()
    most = limits or Limits()

    @asynccontextmanager
    async def running(made: FastAPI) -> AsyncGenerator[None]:
        if not chosen.database_url or not chosen.api_url:
            raise Invalid("the API needs DATABASE_URL and PENSTOCK_API_URL")
        async with (
            db.pool(chosen.database_url, name="penstock api service") as service,
            db.pool(chosen.api_url, name="penstock api") as users,
        ):

            async def begin() -> None:
                await check_login(users)
                if app is not None:
                    await app.declare(service)

            await db.retry_until_available(begin)
            made.state.callers = Callers(
                users, service, Tokens(chosen), sessions, seconds=most.statement_seconds
            )
            upkeep = Upkeep(service, app.draw if app else _draw_nothing, function="upkeep_if_idle")
            tidy = Tidy(service, partial(storages.of, chosen))
            loops = [
                asyncio.create_task(upkeep.run(first_pause=upkeep.MAX_PAUSE)),
                asyncio.create_task(upkeep.listen(chosen.database_url, chosen.listen)),
                asyncio.create_task(tidy.run()),
            ]
            try:
                yield
            finally:
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
                if hasattr(made.state, "hub"):
                    await made.state.hub.close()

    made = FastAPI(
        title="penstock",
        version=version("penstock"),
        summary="Jobs, tasks, limits, usage and costs of tenants.",
        lifespan=running,
        openapi_url="/api/openapi.json",
        # They would load programs from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    made.state.settings = chosen
    made.state.app = app
    made.state.limits = most
    made.state.rate = Rate(most.per_second, most.burst)
    made.state.files = asyncio.Semaphore(most.files)
    problems.add_to(made)
    if chosen.allowed_origins:
        # Without cookies there is nothing that a browser would send along by itself.
        made.add_middleware(
            CORSMiddleware,
            allow_origins=chosen.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
            max_age=600,
        )
    sessions = development.add_to(made, developer) if developer else None
    observe.add_to(made)
    for routes in (
        jobs.start_routes,
        jobs.routes,
        bulks.start_routes,
        bulks.file_routes,
        bulks.routes,
        dead_letters.routes,
        schedules.routes,
        money.routes,
        providers.routes,
        tenants.secret_routes,
        tenants.routes,
        artifacts.router,
        events.router,
        rest.router,
    ):
        made.include_router(routes)
    _describe(made)
    return made


def _draw_nothing(job_type: str, params: dict[str, Any]) -> None:
    """Without an app no job type is known: its schedules are left to the workers."""


def _describe(made: FastAPI) -> None:
    """Say in the description how callers show who they are, and what a refusal looks like."""

    def openapi() -> dict[str, Any]:
        if made.openapi_schema is None:
            document = get_openapi(
                title=made.title, version=made.version, summary=made.summary, routes=made.routes
            )
            components = document.setdefault("components", {})
            components.setdefault("schemas", {})["Problem"] = PROBLEM_SCHEMA
            components["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A user's JWT, or an API key."},
                "apikey": {"type": "apiKey", "in": "header", "name": "apikey"},
            }
            document["security"] = [{"bearer": []}, {"apikey": []}]
            made.openapi_schema = document
        return made.openapi_schema

    made.openapi = openapi
