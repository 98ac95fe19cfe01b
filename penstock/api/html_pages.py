"""Pages for people who follow a link and have no account: plain HTML without scripts."""

from __future__ import annotations

from html import escape

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from penstock.api.limits import Rate

GUARDS = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
    "Cache-Control": "no-store",
}


def html_page(title: str, body: str, status: int = 200) -> Response:
    """A page with this title and this HTML."""
    document = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title></head><body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )
    return HTMLResponse(document, status, GUARDS)


def count_anonymous(request: Request) -> None:
    """Count a request without a credential against the rate limit of the client's address."""
    rate: Rate = request.app.state.rate
    rate.take(f"nobody:{request.client.host if request.client else ''}")
