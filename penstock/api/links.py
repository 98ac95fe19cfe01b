"""Links of files in sheets: public and signed ones open at once, the others after a sign-in.

A link names the file and has a token. It redirects to a fresh signed URL of the storage, so it lives as long
as the record of the file, and ends at once when the file is deleted or its link is changed.
"""

from __future__ import annotations

import re
from html import escape
from uuid import UUID

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field
from starlette.routing import NoMatchFound

from penstock.api.artifacts import ArtifactId, storage_of
from penstock.api.callers import Caller, Callers
from penstock.api.fields import RequestModel
from penstock.api.html_pages import GUARDS, count_anonymous, html_page
from penstock.api.routes import Conn, router
from penstock.contract import links
from penstock.errors import NotFound, PenstockError, Unauthenticated
from penstock.types import LinkKind

routes = router("artifacts")

_SERVICE = Caller("service_role", {"role": "service_role"})
_TOKEN = re.compile("[0-9a-f]{64}")


class LinkRequest(RequestModel):
    """Who may open the link of a file."""

    link: LinkKind = Field(
        description="`public`: anyone who has the link. `signed`: the same, for `link_days`. "
        "`login`: members who sign in; links with a token then ask for a sign-in.",
    )


class LinkResponse(BaseModel):
    """The link of a file."""

    url: str = Field(examples=["https://jobs.example.org/links/0192f3…/5e88…"])


@routes.put("/artifacts/{artifact_id}/link")
async def set_artifact_link(
    request: Request, conn: Conn, artifact_id: ArtifactId, wanted: LinkRequest
) -> LinkResponse:
    """Choose who may open the link of a file, and get the link."""
    path = await links.set(conn, artifact_id=artifact_id, link=wanted.link)
    base = request.app.state.settings.public_url or str(request.base_url)
    return LinkResponse(url=base.rstrip("/") + path)


# What people open. The token is the credential.

opened = APIRouter(include_in_schema=False)


@opened.api_route("/links/{artifact_id}", methods=["GET", "HEAD"])
async def open_login_link(request: Request, artifact_id: str) -> Response:
    """Redirect to the page of the dashboard that asks for a sign-in and opens the file."""
    count_anonymous(request)
    try:
        return _to_dashboard(request, _id(artifact_id))
    except PenstockError as error:
        return _problem(error)


@opened.api_route("/links/{artifact_id}/{token}", methods=["GET", "HEAD"])
async def open_link(request: Request, artifact_id: str, token: str) -> Response:
    """Redirect to the file of a link."""
    count_anonymous(request)
    callers: Callers = request.app.state.callers
    try:
        if not _TOKEN.fullmatch(token):
            raise NotFound("this link is not valid", code="unknown_link", hint="Copy the whole link.")
        async with callers.acting(_SERVICE, read_only=True) as conn:
            found = await links.open(conn, artifact_id=_id(artifact_id), token=token)
        url = await storage_of(request).url(
            "GET",
            found.path,
            base=str(request.base_url),
            tenant=str(found.tenant_id),
            type=found.content_type,
            name=found.name or found.path.rsplit("/", 1)[-1],
        )
    except Unauthenticated:
        # A link that is for members only now.
        return await open_login_link(request, artifact_id)
    except PenstockError as error:
        return _problem(error)
    return RedirectResponse(url, 302, GUARDS)


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("this link is not valid", code="unknown_link", hint="Copy the whole link.") from None


def _to_dashboard(request: Request, artifact_id: UUID) -> Response:
    try:
        path = request.app.url_path_for("dashboard", path=f"/artifacts/{artifact_id}")
    except NoMatchFound:
        raise Unauthenticated(
            "sign in to open this file", code="login_required", hint="This server has no dashboard."
        ) from None
    root: str = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(f"{root}{path}", 302, GUARDS)


def _problem(error: PenstockError) -> Response:
    text = " ".join(part for part in (f"{error.message[:1].upper()}{error.message[1:]}.", error.hint) if part)
    return html_page("File", f"<p>{escape(text)}</p>", error.status)
