"""Workers: their state and running tasks; draining."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock.contract import workers
from penstock.dashboard import forms
from penstock.dashboard.pages import AdminPage, Conn, CurrentViewer, Viewer, redirect, render
from penstock.errors import Forbidden, NotFound

router = APIRouter(route_class=AdminPage)


@router.get("/workers")
async def list_workers(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """List the workers of the last 24 hours."""
    _require_operator(viewer)
    found = await workers.list(conn)
    return render(
        request,
        "workers.html",
        workers=sorted(
            found, key=lambda worker: (worker.state == "stopped", worker.state != "gone", worker.id)
        ),
        running=await workers.running(conn),
        live={"tenant": None},
    )


@router.get("/workers/drain")
async def confirm_drain(
    request: Request, conn: Conn, viewer: CurrentViewer, id: Annotated[str, Query(max_length=200)]
) -> Response:
    """Ask whether to drain a worker."""
    _require_operator(viewer)
    found = [worker for worker in await workers.list(conn) if worker.id == id]
    if not found:
        raise NotFound("worker not found", code="unknown_worker")
    return render(request, "worker_drain.html", worker=found[0])


@router.post("/workers/drain")
async def drain(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """Ask a worker to stop after its running tasks."""
    form: forms.Form = request.state.form
    _require_operator(viewer)
    await workers.drain(conn, worker_id=form.get("id"))
    return redirect(request, "/workers", flash="Draining: the worker stops after its running tasks.")


def _require_operator(viewer: Viewer) -> None:
    if not viewer.is_operator:
        raise Forbidden("only operators see workers")
