"""Workers: who is alive, late or gone, and what they run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock import workers
from penstock.dashboard import forms
from penstock.dashboard.pages import Held, Page, Seen, Viewer, render, to
from penstock.errors import Forbidden, NotFound

router = APIRouter(route_class=Page)


@router.get("/workers")
async def list_workers(request: Request, held: Held, viewer: Seen) -> Response:
    """The workers of the last day."""
    _check(viewer)
    found = await workers.list(held)
    return render(
        request,
        "workers.html",
        workers=sorted(
            found, key=lambda worker: (worker.state == "stopped", worker.state != "gone", worker.id)
        ),
        running=await workers.running(held),
        live={"tenant": None},
    )


@router.get("/workers/drain")
async def confirm_drain(
    request: Request, held: Held, viewer: Seen, id: Annotated[str, Query(max_length=200)]
) -> Response:
    """What draining means."""
    _check(viewer)
    found = [worker for worker in await workers.list(held) if worker.id == id]
    if not found:
        raise NotFound("there is no such worker", code="unknown_worker")
    return render(request, "worker_drain.html", worker=found[0])


@router.post("/workers/drain")
async def drain(request: Request, held: Held, viewer: Seen) -> Response:
    """Ask a worker to stop when it is done."""
    form: forms.Form = request.state.form
    _check(viewer)
    await workers.drain(held, worker_id=form.get("id"))
    return to(
        request, "/workers", said="Asked to stop: it takes nothing new, and ends when what it runs has."
    )


def _check(viewer: Viewer) -> None:
    if not viewer.is_operator:
        raise Forbidden("workers are for operators")
