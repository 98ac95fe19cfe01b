"""The dashboard: pages that show what runs, why something waits, and what it costs.

It reads and acts as the API does: through the same functions, under the caller's role, on the same logins.
`mount` puts it into the API's application, or into any other one.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from penstock import api
from penstock.api import artifacts as files
from penstock.dashboard import (
    actions,
    audit,
    bulks,
    dead_letters,
    jobs,
    lanes,
    live,
    overview,
    pages,
    schedules,
    sign_in,
    tenants,
    usage,
    workers,
)
from penstock.dashboard import settings as settings_page
from penstock.settings import Settings

__all__ = ["mount"]


def mount(app: FastAPI, prefix: str = "/dashboard", *, settings: Settings | None = None) -> FastAPI:
    """Put the dashboard into an application, at this address.

    Into one of `penstock.api.create` as it is; it then shares its connections. Into any other with the
    settings of the database: it opens connections of its own when that application starts.
    """
    made = _create()
    source = app if settings is None else api.create(settings)
    made.state = source.state
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def running(outer: FastAPI) -> AsyncGenerator[Any]:
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(inner(outer))
            if source is not app:
                await stack.enter_async_context(source.router.lifespan_context(source))
            made.state.currency = await pages.currency(made.state.callers)
            stack.push_async_callback(live.close, made.state)
            yield state

    app.router.lifespan_context = running
    app.mount(prefix, made, name="dashboard")
    return made


def _create() -> FastAPI:
    made = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    made.mount("/static", _Static(directory=Path(__file__).parent / "static"), name="static")
    # Signed addresses of local files work below this one, too.
    made.include_router(files.files)
    for page in (
        sign_in,
        overview,
        jobs,
        bulks,
        dead_letters,
        actions,
        lanes,
        workers,
        usage,
        tenants,
        schedules,
        audit,
        settings_page,
        live,
    ):
        made.include_router(page.router)
    made.add_exception_handler(HTTPException, _missing)
    return made


async def _missing(request: Request, error: Exception) -> Response:
    """Where there is no page."""
    request.state.caller, request.state.nonce = pages.ANON, secrets.token_urlsafe(18)
    return pages.guarded(request, await pages.refusal(request, error))


class _Static(StaticFiles):
    """Files that never change: their addresses hold their digests."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
