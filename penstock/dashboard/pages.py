"""What every page does before and after its own part.

In this order, as the API does it: who is asking, may they ask this much, read what they post, and only then
one transaction as that caller for everything. Then the page in HTML, with headers that let nothing else in.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import quote, unquote, urlencode
from uuid import UUID

import jinja2
import structlog
from fastapi import Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from penstock import costs, db, filters, tenants
from penstock.api.callers import ANON, Caller, Callers, shown
from penstock.api.problems import is_from_postgres
from penstock.api.routes import admitted
from penstock.dashboard import forms, texts
from penstock.errors import Forbidden, Invalid, NotFound, PenstockError, Unauthenticated, row_of
from penstock.types import Role, Tenant

LOGIN_COOKIE = "penstock_login"
THEME_COOKIE = "penstock_theme"
SAID_COOKIE = "penstock_said"
PER_PAGE = 50
_HERE = Path(__file__).parent
_SERVICE = Caller("service_role", {})

logger = structlog.get_logger(__name__)

templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_GLOBALS: dict[str, Any] = {
    "LOOKS": texts.LOOKS,
    "MOST": texts.MOST,
    "percent": texts.percent,
    "frames": texts.frames,
    "quoted": filters.quoted,
}
_FILTERS: dict[str, Callable[..., str]] = {
    "number": texts.number,
    "money": texts.money,
    "duration": texts.duration,
    "size": texts.size,
    "document": texts.document,
    "absolute": texts.absolute,
}
cast("dict[str, Any]", templates.globals).update(_GLOBALS)  # pyright: ignore[reportUnknownMemberType]
cast("dict[str, Any]", templates.filters).update(_FILTERS)  # pyright: ignore[reportUnknownMemberType]

NAVIGATION: tuple[tuple[str, tuple[tuple[str, str, bool], ...]], ...] = (
    (
        "Work",
        (
            ("/", "Overview", False),
            ("/jobs", "Jobs", False),
            ("/bulks", "Bulk", False),
            ("/dead-letters", "Dead letters", False),
            ("/schedules", "Schedules", False),
        ),
    ),
    ("Flow", (("/lanes", "Lanes", False), ("/workers", "Workers", True))),
    ("Money", (("/usage", "Costs", False),)),
    (
        "Administration",
        (
            ("/tenants", "Tenants", False),
            ("/audit", "Audit", False),
            ("/settings", "Settings", False),
        ),
    ),
)
"""The pages, in groups, and whether they are for operators only."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks: a member of some tenants, or an operator."""

    caller: Caller
    tenants: tuple[Tenant, ...]
    """Of a member, their own first; an operator has all, and none are listed."""
    roles: dict[UUID, Role]

    @property
    def is_operator(self) -> bool:
        """Whether this is the service, which sees all tenants."""
        return self.caller.role == "service_role"

    @property
    def tenant_ids(self) -> list[UUID] | None:
        """The tenants whose rows there are to see; None: all."""
        return None if self.is_operator else list(self.roles)

    def may_act(self, tenant_id: UUID | None = None) -> bool:
        """Whether buttons are shown. What is really allowed, the database decides."""
        if self.is_operator:
            return True
        roles = self.roles.values() if tenant_id is None else [self.roles.get(tenant_id)]
        return any(role in ("owner", "admin", "member") for role in roles)

    def may_manage(self, tenant_id: UUID | None) -> bool:
        """Whether this is one who decides about members and keys."""
        return self.is_operator or self.roles.get(tenant_id or UUID(int=0)) in ("owner", "admin")

    def tenant(self, asked: UUID | None) -> UUID | None:
        """The tenant a page is about: the one asked for, else a member's first; an operator's may be all."""
        if asked is None:
            return None if self.is_operator or not self.tenants else self.tenants[0].id
        if not self.is_operator and asked not in self.roles:
            raise NotFound("there is no such tenant", code="unknown_tenant")
        return asked


class Page(APIRoute):
    """A page: a GET that reads, or a POST that does something and then leads to a page."""

    is_open = False
    """Whether one needs not be signed in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            request.state.caller = ANON
            request.state.nonce = secrets.token_urlsafe(18)
            try:
                response = await self._answer(request, handle)
            except Unauthenticated:
                response = _to_sign_in(request)
            except (PenstockError, RequestValidationError, HTTPException) as error:
                response = await refusal(request, error)
            forms.keep(request, response)
            return guarded(request, response)

        return answer

    async def _answer(
        self, request: Request, handle: Callable[[Request], Coroutine[Any, Any, Response]]
    ) -> Response:
        callers: Callers = request.app.state.callers
        if self.is_open:
            if request.method == "POST":
                request.state.form = await forms.read(request, ANON)
            return await handle(request)
        caller = await admitted(request, kept_or_shown)
        is_read = request.method == "GET"
        if not is_read:
            if request.app.state.settings.read_only:
                raise Forbidden("this dashboard only shows: it changes nothing", code="read_only")
            request.state.form = await forms.read(request, caller)
        async with callers.acting(caller, read_only=is_read) as held:
            request.state.held = held
            request.state.now = await db.value(held, "_now")
            request.state.viewer = await _viewer(held, caller)
            return await handle(request)


class OpenPage(Page):
    """A page for those who have not signed in."""

    is_open = True


def kept_or_shown(request: Request) -> str | None:
    """The credential that was given at the sign-in, or else the one that is shown as everywhere."""
    credential = request.cookies.get(LOGIN_COOKIE)
    if credential and "authorization" not in request.headers:
        return credential
    return shown(request)


async def _viewer(held: db.Connection, caller: Caller) -> Viewer:
    if caller.role == "service_role":
        return Viewer(caller, (), {})
    user_id = UUID(caller.claims["sub"])
    own = await tenants.of_user(held, user_id=user_id)
    return Viewer(caller, tuple(own), await tenants.roles(held, user_id=user_id))


def _held(request: Request) -> db.Connection:
    return request.state.held


def _seen_by(request: Request) -> Viewer:
    return request.state.viewer


Held = Annotated[db.Connection, Depends(_held)]
"""The connection, in a transaction as the caller."""
Seen = Annotated[Viewer, Depends(_seen_by)]
"""Who looks."""


FilterQuery = Annotated[str, Query(max_length=2000)]
TenantQuery = Annotated[UUID | None, Query()]


class Filtering:
    """What is asked with a filter. One that means nothing is a problem that the page shows."""

    def __init__(self) -> None:
        self.problem: PenstockError | None = None

    def __enter__(self) -> Filtering:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if isinstance(error, PenstockError) and error.code == "invalid_filter":
            self.problem = error
        return self.problem is not None


# Answers


def url(request: Request, path: str, **query: Any) -> str:
    """The address of a page, wherever the dashboard is mounted. What is None or empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return request.scope.get("root_path", "") + path + (f"?{urlencode(given, doseq=True)}" if given else "")


def render(request: Request, template: str, code: int = 200, **context: Any) -> HTMLResponse:
    """The page, or only what is in it when it is asked for again to see what changed."""
    state = request.app.state
    viewer: Viewer | None = getattr(request.state, "viewer", None)
    path = request.url.path.removeprefix(request.scope.get("root_path", "")) or "/"
    theme = request.cookies.get(THEME_COOKIE)
    now = getattr(request.state, "now", None) or datetime.now(UTC)

    def link(to: str, **query: Any) -> str:
        return url(request, to, **query)

    def asset(name: str) -> str:
        return url(request, f"/static/{name}", v=_digest(name))

    def ago(moment: datetime) -> str:
        return texts.ago(moment, now)

    text = templates.get_template(template).render(
        layout="part.html" if request.headers.get("hx-request") else "layout.html",
        request=request,
        path=path,
        here=url(request, path) + (f"?{request.url.query}" if request.url.query else ""),
        url=link,
        asset=asset,
        nonce=request.state.nonce,
        token=forms.token(request, request.state.caller),
        open_token=forms.token(request, ANON),
        viewer=viewer,
        navigation=NAVIGATION,
        theme=theme if theme in ("light", "dark") else None,
        environment=state.settings.environment,
        is_read_only=state.settings.read_only,
        currency=getattr(state, "currency", ""),
        said=unquote(request.cookies.get(SAID_COOKIE, ""))[:200],
        now=now,
        ago=ago,
        **{"live": None, **context},
    )
    response = HTMLResponse(text, code)
    if SAID_COOKIE in request.cookies:
        response.delete_cookie(SAID_COOKIE, path=request.scope.get("root_path") or "/")
    return response


def to(request: Request, path: str, *, said: str | None = None, **query: Any) -> RedirectResponse:
    """After something was done: on to a page, which says so, once."""
    response = RedirectResponse(url(request, path, **query), 303)
    if said:
        forms.set_cookie(request, response, SAID_COOKIE, quote(said))
    return response


def guarded(request: Request, response: Response) -> Response:
    """The response with headers that let a browser run, load and send nothing but our own."""
    nonce = request.state.nonce
    # Files may be kept elsewhere; a page that shows them says where.
    files = " ".join(("'self'", *getattr(request.state, "file_origins", ())))
    response.headers["Content-Security-Policy"] = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src {files}; "
        f"media-src {files}; frame-src {files}; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    response.headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
    response.headers.setdefault("Cache-Control", "no-store")
    return response


async def refusal(request: Request, error: Exception) -> Response:
    """The page that says what was wrong."""
    code = error.status_code if isinstance(error, HTTPException) else None
    if isinstance(error, HTTPException):
        error = NotFound("there is no such page") if code == 404 else Invalid("this is not done so")
    elif isinstance(error, RequestValidationError):
        error = Invalid("the address is not right: a part of it cannot be read", code="invalid")
    assert isinstance(error, PenstockError)
    if error.status >= 500:
        logger.error("page failed", code=error.code, exc_info=error)
    title = (row_of(type(error)).error.__doc__ or "").strip()
    message = title if is_from_postgres(error) else error.message
    hint = None if is_from_postgres(error) else error.hint
    return render(request, "error.html", code or error.status, message=message, hint=hint, error=error)


def _to_sign_in(request: Request) -> Response:
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"HX-Refresh": "true"})
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    wanted = f"{path}?{request.url.query}" if request.url.query else path
    response = to(request, "/sign-in", next=wanted if request.method == "GET" and wanted != "/" else None)
    response.delete_cookie(LOGIN_COOKIE, path=request.scope.get("root_path") or "/")
    return response


@cache
def _digest(name: str) -> str:
    return sha256((_HERE / "static" / name).read_bytes()).hexdigest()[:12]


async def currency(callers: Callers) -> str:
    """What sums are in. Users cannot ask for it, and it never changes."""
    async with callers.acting(_SERVICE, read_only=True) as held:
        return await costs.base_currency(held)
