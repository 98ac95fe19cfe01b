"""The overview: health in one sentence, key figures, charts, recent jobs, failures, limits in use."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Request, Response

from penstock.contract import alerts, filters, jobs, overview, providers, tenants, waits
from penstock.dashboard import actors, formatting
from penstock.dashboard.pages import Conn, CurrentViewer, Page, TenantQuery, Viewer, render, url
from penstock.dashboard.providers import limits_in_use
from penstock.dashboard.starts import can_start
from penstock.types import Alert, Overview, OverviewProblem, Provider

router = APIRouter(route_class=Page)

MANY = 100
"""Counts of the *what to do* list stop at this number."""
NEARLY_FULL = 0.8
RECENT_JOBS = 8


@router.get("/")
async def show_overview(
    request: Request, conn: Conn, viewer: CurrentViewer, tenant: TenantQuery = None
) -> Response:
    """Show the overview of a tenant or of all tenants."""
    tenant_id = viewer.choose_tenant(tenant)
    if tenant_id is None and not viewer.is_operator:
        return render(request, "no_tenant.html")
    found = await overview.get(conn, tenant_id=tenant_id)
    listed = await alerts.list(conn, limit=20) if viewer.is_operator and not tenant_id else []
    recent = await jobs.list(conn, tenant_id=tenant_id, limit=RECENT_JOBS)
    return render(
        request,
        "overview.html",
        overview=found,
        health=_health(found),
        todo=await _todo(request, conn, viewer, found, tenant_id),
        rates=await overview.rates(conn, tenant_id=tenant_id),
        nearly_full=_nearly_full(await providers.list(conn)) if viewer.is_operator and not tenant_id else [],
        alerts=listed,
        alert_subjects=await _subjects(conn, viewer, listed),
        recent=recent,
        names=await tenants.names(conn, ids=[tenant_id] if tenant_id else [job.tenant_id for job in recent]),
        tenant_id=tenant_id,
        can_start=can_start(request, viewer),
        live={"tenant": tenant_id},
    )


@dataclass(frozen=True, slots=True)
class Todo:
    """Something that waits for a person, and where to do it."""

    text: str
    label: str
    url: str
    command: str = ""
    is_action: bool = False
    """Whether the link leads to a confirmation, not just to a page."""


async def _todo(
    request: Request, conn: Conn, viewer: Viewer, found: Overview, tenant_id: UUID | None
) -> list[Todo]:
    """What a person should do now: what stops tasks, then what waits for a person, then what failed."""
    items = [_of_problem(request, each, tenant_id) for each in found.problems]
    if tenant_id is None:
        items += await _of_operator(request, conn, found)
    if not viewer.may_act(tenant_id) or request.app.state.settings.read_only:
        return items
    ids = viewer.tenant_ids if tenant_id is None else [tenant_id]
    asked = await waits.list(conn, filter="status:open", tenant_ids=ids, limit=MANY)
    if asked:
        wait = formatting.plural(len(asked), "waits", "wait")
        items.append(
            Todo(
                f"{_counted(len(asked), 'question')} {wait} for an answer",
                "Answer",
                url(request, "/waits", filter=_within("status:open", tenant_id)),
                is_action=True,
            )
        )
    paused = await jobs.list(conn, filter="status:paused", tenant_ids=ids, limit=MANY)
    if paused:
        reason = f": {paused[0].status_reason}" if len(paused) == 1 and paused[0].status_reason else ""
        are = formatting.plural(len(paused), "is", "are")
        items.append(
            Todo(
                f"{_counted(len(paused), 'job')} {are} paused{reason}",
                "Show",
                url(request, "/jobs", filter=_within("status:paused", tenant_id)),
            )
        )
    for cause in found.causes[:5]:
        which = f"kind:{filters.quoted(cause.kind or '')} code:{filters.quoted(cause.code)}"
        tasks = formatting.counted(cause.count, "task", limit=9999)
        items.append(
            Todo(
                f"{tasks} of kind {cause.kind} failed permanently: {cause.message or cause.code}"[:300],
                "Retry…",
                url(
                    request,
                    "/confirm",
                    noun="dead-letters",
                    verb="replay",
                    every=1,
                    filter=_within(which, tenant_id),
                    next=f"/dead-letters?{urlencode({'filter': which})}",
                ),
                is_action=True,
            )
        )
    return items


async def _of_operator(request: Request, conn: Conn, found: Overview) -> list[Todo]:
    """What only operators can do."""
    items: list[Todo] = []
    if found.workers and found.workers.gone:
        text = f"{formatting.counted(found.workers.gone, 'worker')} stopped responding"
        items.append(Todo(text, "Workers", url(request, "/workers")))
    for provider, name, used, limit in _nearly_full(await providers.list(conn))[:5]:
        text = f"{provider.name} uses {formatting.number(used)} of {formatting.number(limit)} {name}"
        address = url(request, "/provider", name=provider.name, tenant=provider.tenant_id)
        items.append(Todo(text, "Limits", address))
    return items


async def _subjects(conn: Conn, viewer: Viewer, listed: list[Alert]) -> dict[str, str]:
    """What each alert is about, with the names of tenants and keys instead of their ids."""
    subjects = [alert.subject for alert in listed]
    ids = [alert.tenant_id for alert in listed if alert.tenant_id]
    tenant_names = await tenants.names(conn, ids=ids)
    found = {subject: subject.replace("provider:", "", 1) for subject in subjects}
    found |= await actors.names(conn, viewer, [each for each in subjects if each.startswith("key:")], ids)
    found |= {f"tenant:{id}": f"tenant {name}" for id, name in tenant_names.items()}
    return found


def _of_problem(request: Request, problem: OverviewProblem, tenant_id: UUID | None) -> Todo:
    text = problem.text
    if problem.count:
        text += f" ({formatting.counted(problem.count, 'task', limit=formatting.COUNT_LIMIT)} waiting)"
    label, path = {
        "maintenance": ("Settings", "/settings"),
        "worker": ("Workers", "/workers"),
        "provider": ("Providers", "/providers"),
        "schedule": ("Schedules", "/schedules"),
        "quota": ("Usage and costs", "/usage"),
    }[problem.about]
    command = f"penstock worker module:app --kinds {problem.subject}" if problem.about == "worker" else ""
    if problem.about == "worker" and tenant_id is not None:
        label, path = "Jobs", "/jobs"  # only operators see workers
    query = {"tenant": tenant_id} if path == "/usage" else {}
    return Todo(text, label, url(request, path, **query), command)


def _within(filter: str, tenant_id: UUID | None) -> str:
    return f"{filter} tenant:{tenant_id}" if tenant_id else filter


def _counted(count: int, noun: str) -> str:
    return formatting.counted(count, noun) if count < MANY else f"{MANY}+ {noun}s"


def _health(found: Overview) -> str:
    """Summarize the state in one sentence."""
    if found.problems:
        if len(found.problems) == 1:
            # It may begin with a provider's name, which keeps its case.
            return f"{found.problems[0].text}."
        return f"{formatting.counted(len(found.problems), 'problem')}."
    if found.workers and found.workers.gone:
        return f"Running, but {formatting.counted(found.workers.gone, 'worker')} stopped responding."
    if found.failed_hour:
        return "Running, with recent failures."
    return "All systems normal." if found.has_jobs else "Ready for the first job."


def _nearly_full(listed: list[Provider]) -> list[tuple[Provider, str, int, int]]:
    """Return limits with at least 80 % in use: provider, name of the limit, amount used, limit."""
    return [
        (provider, name, used, limit)
        for provider in listed
        for name, used, limit in limits_in_use(provider)
        if limit and used >= NEARLY_FULL * limit
    ]
