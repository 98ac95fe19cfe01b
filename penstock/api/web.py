"""The web client of the app at `/web/{schema}/`: static files that call `/rest/v1` and the functions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from penstock.errors import NotFound
from penstock.sdk.app import App

router = APIRouter(prefix="/web", include_in_schema=False)

_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
# Scripts of the client run on this origin: only its own files, no inline code, no other host.
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "worker-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@router.get("/{name}")
async def redirect(name: str) -> Response:
    """Redirect to the folder, so that relative addresses work."""
    return RedirectResponse(f"/web/{name}/", 307)


@router.get("/{name}/{file:path}")
async def read(request: Request, name: str, file: str) -> Response:
    """A file of the client; the folder itself is `index.html`."""
    app: App | None = request.app.state.app
    if app is None or app.web is None or app.own is None or name != app.own.schema:
        raise NotFound("the app of this server has no web client of this name", code="unknown_client")
    found = app.web / (file or "index.html")
    # One flat folder: no name leads out of it.
    if found.parent != app.web or found.suffix not in _TYPES or not found.is_file():
        raise NotFound("the web client has no such file", code="unknown_client")
    return FileResponse(found, media_type=_TYPES[found.suffix], headers=_HEADERS)
