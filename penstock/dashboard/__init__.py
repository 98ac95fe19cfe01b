"""The dashboard: web pages that show what runs, why tasks wait, and what jobs cost.

It reads and writes as the API does: through the same functions, under the caller's role, on the same database
logins. `mount` adds it to the API's application or to any other FastAPI application.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles

from penstock import api
from penstock.api import artifacts as files
from penstock.dashboard import (
    actions,
    admin,
    app_pages,
    audit,
    billing,
    bulks,
    dead_letters,
    invitations,
    jobs,
    live,
    notifications,
    operations,
    overview,
    packs,
    pages,
    prompts,
    providers,
    schedules,
    sessions,
    sign_in,
    starts,
    tenants,
    usage,
    waits,
    webhooks,
    workers,
)
from penstock.dashboard import settings as settings_page
from penstock.settings import Settings

__all__ = ["mount"]


def mount(app: FastAPI, prefix: str = "/dashboard", *, settings: Settings | None = None) -> FastAPI:
    """Add the dashboard to an application, below this prefix.

    An application made by `penstock.api.create` needs no settings: the dashboard shares its connections.
    For any other application pass the settings: the dashboard opens its own connections at startup.
    """
    dashboard = _create()
    source = app if settings is None else api.create(settings)
    dashboard.state = source.state
    app_lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(outer: FastAPI) -> AsyncGenerator[Any]:
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(app_lifespan(outer))
            if source is not app:
                await stack.enter_async_context(source.router.lifespan_context(source))
            dashboard.state.currency = await pages.currency(dashboard.state.callers)
            stack.push_async_callback(live.close, dashboard.state)
            yield state

    app.router.lifespan_context = lifespan
    app.mount(prefix, dashboard, name="dashboard")
    return dashboard


def _create() -> FastAPI:
    dashboard = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    dashboard.mount("/static", _Static(directory=Path(__file__).parent / "static"), name="static")
    dashboard.router.routes.extend(_shared_routes())
    dashboard.add_exception_handler(HTTPException, _not_found)
    return dashboard


@cache
def _shared_routes() -> tuple[BaseRoute, ...]:
    """The routes of all dashboards in this process: FastAPI takes 0.1 s of CPU to prepare them."""
    every = APIRouter()
    # Links to locally stored files are relative to the mount point.
    every.include_router(files.files)
    # Before the routes of one job and one bulk job, which match their paths as well.
    every.include_router(bulks.table_router)
    for page in (
        sign_in,
        overview,
        starts,
        jobs,
        bulks,
        dead_letters,
        waits,
        operations,
        webhooks,
        actions,
        providers,
        workers,
        usage,
        billing,
        admin,
        prompts,
        tenants,
        schedules,
        notifications,
        audit,
        invitations,
        sessions,
        settings_page,
        app_pages,
        packs,
        live,
    ):
        every.include_router(page.router)
    every.include_router(invitations.admin_router)
    return tuple(every.routes)


async def _not_found(request: Request, error: Exception) -> Response:
    """Render the 404 page for a path without a route."""
    request.state.caller, request.state.nonce = pages.ANON, secrets.token_urlsafe(18)
    return pages.with_security_headers(request, await pages.error_page(request, error))


class _Static(StaticFiles):
    """Static files, cached for a year: their URLs contain a digest of their content."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
