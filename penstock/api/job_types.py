"""The types of jobs that the server's app knows, over HTTP."""

from __future__ import annotations

from fastapi import Request

from penstock.api.routes import Conn, router
from penstock.sdk.app import App
from penstock.sdk.job_types import startable
from penstock.types import StartableType

routes = router("jobs")


@routes.get("/job-types")
async def list_job_types(request: Request, _: Conn) -> list[StartableType]:
    """List the job types of the server's app, with the JSON schema of their params. Without an app, none."""
    app: App | None = request.app.state.app
    return [described(app, name) for name in types_of(app)] if app else []


def types_of(app: App | None) -> list[str]:
    """The job types of the app, then its tasks; without the tasks that bulk types add."""
    return startable(app.job_types, app.tasks, app.bulks) if app else []


def described(app: App, name: str) -> StartableType:
    """A type of the app."""
    found = app.job_types.get(name) or app.tasks[name]
    summary = ((found.__doc__ or "").strip().splitlines() or [""])[0]
    return StartableType(name, summary, found.signature.schema)
