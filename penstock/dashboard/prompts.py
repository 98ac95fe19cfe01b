"""Prompts: versions with their differences, cost, failures and latency; activation. For operators."""

from __future__ import annotations

import difflib
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock.contract import prompts
from penstock.dashboard import forms
from penstock.dashboard.pages import AdminPage, Conn, CurrentViewer, Viewer, redirect, render
from penstock.errors import Forbidden, Invalid, NotFound
from penstock.types import PromptVersion

router = APIRouter(route_class=AdminPage)

Version = Annotated[int | None, Query(ge=0, lt=1 << 31)]


@router.get("/prompts")
async def list_prompts(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """List prompts with their active versions."""
    _require_operator(viewer)
    found = await prompts.versions(conn)
    counts: dict[str, int] = {}
    for each in found:
        counts[each.name] = counts.get(each.name, 0) + (each.version > 0)
    return render(
        request,
        "prompts.html",
        prompts=[each for each in found if each.is_active],
        counts=counts,
        stats={(each.name, each.version): each for each in await prompts.stats(conn)},
        fallbacks=await prompts.fallbacks(conn),
    )


@router.get("/prompts/{name}")
async def show_prompt(
    request: Request, conn: Conn, viewer: CurrentViewer, name: str, old: Version = None, new: Version = None
) -> Response:
    """Show the versions of a prompt, and the difference between two of them."""
    _require_operator(viewer)
    versions = await _versions(conn, name)
    active = next(each for each in versions.values() if each.is_active)
    one = versions.get(active.version if old is None else old)
    other = versions.get(next(iter(versions)) if new is None else new)
    if one is None or other is None:
        raise NotFound("version not found", code="unknown_prompt")
    return render(
        request,
        "prompt.html",
        name=name,
        versions=versions.values(),
        active=active,
        old=one,
        new=other,
        lines=list(difflib.unified_diff(_lines(one), _lines(other), lineterm="", n=3))[2:],
        stats={each.version: each for each in await prompts.stats(conn, name=name)},
    )


@router.get("/prompts/{name}/confirm")
async def confirm(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    name: str,
    version: Annotated[int, Query(ge=0, lt=1 << 31)],
) -> Response:
    """Ask whether to activate a version."""
    _require_operator(viewer)
    versions = await _versions(conn, name)
    if version not in versions:
        raise NotFound("version not found", code="unknown_prompt")
    active = next(each for each in versions.values() if each.is_active)
    return render(request, "prompt_confirm.html", name=name, version=versions[version], active=active)


@router.post("/prompts/{name}")
async def activate(request: Request, conn: Conn, viewer: CurrentViewer, name: str) -> Response:
    """Activate a version, unless another one was activated since the page was shown."""
    _require_operator(viewer)
    form: forms.Form = request.state.form
    version, expected = form.get("version"), form.get("expected")
    if not all(text.isdecimal() and len(text) < 10 for text in (version, expected)):
        raise Invalid("version and expected must be whole numbers", code="invalid_form")
    await prompts.activate(conn, name=name, version=int(version), expected=int(expected))
    return redirect(request, f"/prompts/{name}", flash=f"Version {version} is active.")


async def _versions(conn: Conn, name: str) -> dict[int, PromptVersion]:
    found = {each.version: each for each in await prompts.versions(conn, name=name)}
    if not found:
        raise NotFound("prompt not found", code="unknown_prompt")
    if not any(each.is_active for each in found.values()):
        # The code has declared no constant yet, and no version is active.
        newest = next(iter(found.values()))
        return {**found, 0: PromptVersion(name, 0, "", [], None, None, True, "", "", newest.created_at, None)}
    return found


def _lines(version: PromptVersion) -> list[str]:
    head = [f"model: {version.model or ''}", f"max_tokens: {version.max_tokens or ''}"]
    return [*head, *version.body.splitlines()]


def _require_operator(viewer: Viewer) -> None:
    if not viewer.is_operator:
        raise Forbidden("only operators see prompts")
