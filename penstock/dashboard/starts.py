"""Starting a job from a form, and running a job again with other params."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock.api.callers import Caller, Callers
from penstock.api.isolated import DrawnTasks, Isolated
from penstock.api.job_types import described, types_of
from penstock.api.jobs import TASKS_PER_REQUEST
from penstock.contract import jobs
from penstock.dashboard import forms
from penstock.dashboard.pages import (
    Conn,
    CurrentViewer,
    Page,
    Viewer,
    load_viewer,
    named_tenant,
    redirect,
    render,
    require_write_access,
)
from penstock.dashboard.param_fields import ParamField, fields_of, filled, values_of
from penstock.errors import Conflict, Invalid, PenstockError
from penstock.sdk.app import App
from penstock.types import Job, exact

INPUTS = ("tenant", "budget", "priority")


@dataclass
class Wanted:
    """A job that a form describes."""

    type: str
    fields: list[ParamField]
    inputs: dict[str, str] = field(default_factory=dict[str, str])
    original: Job | None = None
    """The job that runs again."""
    tenant_id: UUID | None = None
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    drawn: DrawnTasks | None = None
    problems: dict[str, str] = field(default_factory=dict[str, str])
    """What is wrong with which field."""
    error: PenstockError | None = None


class StartPage(Page):
    """A page that runs the body of a job type, which takes long, before it uses a database connection."""

    @asynccontextmanager
    async def preparing(self, request: Request, caller: Caller) -> AsyncGenerator[None]:
        if request.method == "POST":
            request.state.wanted = await _posted(request, caller)
        yield


router = APIRouter(route_class=StartPage)


def can_start(request: Request, viewer: Viewer) -> bool:
    """Whether the viewer may start jobs of a type that this server knows."""
    state = request.app.state
    return viewer.may_act() and not state.settings.read_only and bool(types_of(state.app))


def can_run_again(request: Request, job: Job) -> bool:
    """Whether this server has the app that defines the job's type."""
    app: App | None = request.app.state.app
    return app is not None and app.can_draw(job.type) and job.type in types_of(app)


@router.get("/jobs/new")
async def new_job(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    type: Annotated[str, Query(max_length=200)] = "",
    again: UUID | None = None,
) -> Response:
    """Choose a job type, or fill in its params; with `again`, those of a job."""
    require_write_access(request, viewer)
    app: App | None = request.app.state.app
    if again is not None:
        job = await jobs.get(conn, job_id=again)
        schema = _schema(request, job.type)
        inputs = {"tenant": str(job.tenant_id), "priority": str(job.priority)}
        return _form(
            request, Wanted(job.type, fields_of(schema, await _params(conn, request, job)), inputs, job)
        )
    if type:
        return _form(request, Wanted(type, fields_of(_schema(request, type))))
    found = (
        [(name, described(app, name).summary, name in app.job_types) for name in types_of(app)] if app else []
    )
    return render(request, "job_types.html", types=found)


@router.post("/jobs/new")
async def start_job(request: Request, viewer: CurrentViewer) -> Response:
    """Start the job, or show what is wrong with its params."""
    wanted: Wanted = request.state.wanted
    if wanted.drawn is None:
        return _form(request, wanted)
    try:
        job_id = await _start(request, viewer.caller, wanted)
    except Conflict as error:
        if error.code != "idempotency_key_reused":
            raise
        wanted.error = Conflict("this form has started a job already", hint="Start another one below.")
        return _form(request, wanted)
    except Invalid as error:
        wanted.error = error
        return _form(request, wanted)
    return redirect(request, f"/jobs/{job_id}", flash="Job started.")


async def _start(request: Request, caller: Caller, wanted: Wanted) -> UUID:
    form: forms.Form = request.state.form
    callers: Callers = request.app.state.callers
    drawn, inputs = wanted.drawn, wanted.inputs
    assert drawn is not None
    budget = exact(inputs["budget"], "budget") if inputs["budget"] else None
    # Tasks that the app drew are trusted. The function checks the role of the user.
    async with callers.acting_for(caller) as (service, user_id):
        return await jobs.start_drawn(
            service,
            type=wanted.type,
            params=wanted.params,
            tasks=drawn.tasks,
            result=drawn.result,
            user_id=user_id,
            tenant_id=wanted.tenant_id,
            priority=int(inputs["priority"]),
            budget=budget,
            idempotency_key=f"dashboard-{form.get('key')[:100]}" if form.get("key") else None,
        )


def _form(request: Request, wanted: Wanted) -> Response:
    return render(
        request,
        "job_new.html",
        422 if wanted.problems or wanted.error else 200,
        wanted=wanted,
        # The same form starts one job, however often it is posted.
        key=secrets.token_urlsafe(16),
        summary=described(request.app.state.app, wanted.type).summary,
    )


def _schema(request: Request, type: str) -> dict[str, Any] | None:
    app: App | None = request.app.state.app
    if app is None:
        raise Invalid(
            "this server was started without an app, so it does not know the type's params",
            code="unknown_job_type",
            hint="Start it with your app: penstock serve MODULE:APP",
        )
    if type not in types_of(app):
        raise app.unknown_type(type)
    return (app.job_types.get(type) or app.tasks[type]).signature.schema


async def _params(conn: Conn, request: Request, job: Job) -> dict[str, Any]:
    """The params of a job. A job of one task has them in the task's input, unless the API started it."""
    app: App = request.app.state.app
    if job.params or job.type in app.job_types:
        return job.params
    found = await jobs.tasks(conn, job_id=job.id, limit=1)
    given = found[0].input if found and found[0].kind == job.type else {}
    return {name: value for name, value in given.items() if name != "after"}


async def _posted(request: Request, caller: Caller) -> Wanted:
    """Read the form, check the params and draw the job's tasks."""
    form: forms.Form = request.state.form
    callers: Callers = request.app.state.callers
    again = form.id("again")
    original, known = None, None
    type = form.get("type")
    async with callers.acting(caller, read_only=True) as conn:
        require_write_access(request, await load_viewer(conn, caller))
        if again is not None:
            original = await jobs.get(conn, job_id=again)
            type = original.type
        schema = _schema(request, type)
        if original is not None:
            known = await _params(conn, request, original)
        fields = filled(fields_of(schema), form)
        wanted = Wanted(type, fields, {name: form.get(name) for name in INPUTS}, original)
        try:
            # A job runs again for its own tenant: its hidden params must not reach another one.
            named = wanted.inputs["tenant"]
            wanted.tenant_id = original.tenant_id if original else await named_tenant(conn, named)
        except PenstockError as error:
            wanted.error = error
    wanted.params, wanted.problems = values_of(fields, known)
    if not wanted.inputs["priority"].isascii() or not wanted.inputs["priority"].isdecimal():
        wanted.inputs["priority"] = "5"
    if not wanted.error and not wanted.problems:
        await _draw(request, caller, wanted)
    return wanted


async def _draw(request: Request, caller: Caller, wanted: Wanted) -> None:
    callers: Callers = request.app.state.callers
    isolated: Isolated = request.app.state.isolated
    share = await callers.require_tenant(caller, wanted.tenant_id)
    try:
        with callers.counting(caller):
            whose: Any = {"tenant": share, "caller": caller.name}
            wanted.problems = await isolated.problems(wanted.type, wanted.params, **whose)
            if not wanted.problems:
                wanted.drawn = await isolated.draw(wanted.type, wanted.params, **whose)
    except Invalid as error:
        wanted.error = error
    if wanted.drawn is not None:
        callers.charge(caller, wanted.drawn.count / TASKS_PER_REQUEST)
