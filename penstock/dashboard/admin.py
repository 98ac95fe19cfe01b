"""Spend and people: costs, revenue and margin, and what admins do for customers. For operators and admins."""

from __future__ import annotations

from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock.contract import admin, spend, usage
from penstock.dashboard import forms
from penstock.dashboard.pages import PER_PAGE, AdminPage, Conn, CurrentViewer, Viewer, redirect, render
from penstock.errors import Forbidden, Invalid

router = APIRouter(route_class=AdminPage)

MonthQuery = Annotated[str, Query(max_length=7)]


@router.get("/spend")
async def show_spend(request: Request, conn: Conn, viewer: CurrentViewer, month: MonthQuery = "") -> Response:
    """Show fixed and variable costs, revenue by plan, and the margin per tenant."""
    _require_admin(viewer)
    day = _month(month)
    return render(
        request,
        "spend.html",
        spend=await spend.get(conn, month=day),
        margins=await spend.margins(conn, month=day, limit=PER_PAGE),
    )


@router.get("/people")
async def list_people(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    filter: Annotated[str, Query(max_length=320)] = "",
    after: UUID | None = None,
) -> Response:
    """List people with their plans."""
    _require_admin(viewer)
    found = await admin.list(conn, filter=filter.strip(), after=after, limit=PER_PAGE + 1)
    shown = found[:PER_PAGE]
    return render(
        request,
        "people.html",
        people=shown,
        filter=filter,
        after=after,
        next=shown[-1].user_id if len(found) > PER_PAGE else None,
    )


@router.get("/people/{user_id}")
async def show_person(request: Request, conn: Conn, viewer: CurrentViewer, user_id: UUID) -> Response:
    """Show a person with usage and overrides, and forms for plan and override."""
    _require_admin(viewer)
    return render(
        request,
        "person.html",
        found=await admin.get(conn, user_id=user_id),
        plans=[each for each in await usage.plans(conn) if each.is_active],
        meters=[each.name for each in await usage.meters(conn)],
    )


@router.post("/people/{user_id}")
async def change_person(request: Request, conn: Conn, viewer: CurrentViewer, user_id: UUID) -> Response:
    """Set a person's plan or an override, with a reason. The database checks the rest."""
    _require_admin(viewer)
    form: forms.Form = request.state.form
    reason = form.get("reason")
    if form.get("verb") == "plan":
        await admin.set_plan(conn, user_id=user_id, plan=form.get("plan"), reason=reason)
        return redirect(request, f"/people/{user_id}", flash="Plan saved.")
    try:
        amount, until = Decimal(form.get("amount")), date.fromisoformat(form.get("until"))
    except (InvalidOperation, ValueError):
        raise Invalid("amount must be a number and until a date", code="invalid_form") from None
    await admin.set_override(
        conn, user_id=user_id, meter=form.get("meter"), amount=amount, expires_on=until, reason=reason
    )
    return redirect(request, f"/people/{user_id}", flash="Override saved.")


def _month(text: str) -> date | None:
    try:
        return date.fromisoformat(f"{text}-01") if text else None
    except ValueError:
        raise Invalid(f"month must be like 2026-03 (got {text!r})", code="invalid") from None


def _require_admin(viewer: Viewer) -> None:
    if not (viewer.is_operator or viewer.is_admin):
        raise Forbidden("only operators and admins of the installation see this page")
