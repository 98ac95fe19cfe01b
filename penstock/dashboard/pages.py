"""What all pages share: authentication, the transaction, rendering, redirects, errors, security headers.

Each request is handled in the same order as in the API: authenticate the caller, check the rate limit, read
the form, then open one transaction under the caller's role.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
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

from penstock.api.callers import ANON, Caller, Callers, SessionToken, shown
from penstock.api.limits import weigh
from penstock.api.problems import is_from_postgres
from penstock.api.routes import admitted
from penstock.contract import admin, costs, filters, tenants
from penstock.dashboard import formatting, forms
from penstock.errors import Forbidden, Invalid, NotFound, PenstockError, Unauthenticated, row_of
from penstock.postgres import db
from penstock.sdk.app import App
from penstock.types import Role, Scope, Tenant

SESSION_COOKIE = "penstock_dashboard"
THEME_COOKIE = "penstock_theme"
FLASH_COOKIE = "penstock_flash"
PER_PAGE = 50
READ_ONLY_MESSAGE = "this dashboard is read-only"
_FOLDER = Path(__file__).parent
_SERVICE = Caller("service_role", {})

logger = structlog.get_logger(__name__)

templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_GLOBALS: dict[str, Any] = {
    "STATUS_STYLES": formatting.STATUS_STYLES,
    "COUNT_LIMIT": formatting.COUNT_LIMIT,
    "SHOWN_IMAGES": formatting.SHOWN_IMAGES,
    "percent": formatting.percent,
    "is_id": formatting.is_id,
    "frames": formatting.frames,
    "quoted": filters.quoted,
}
_FILTERS: dict[str, Callable[..., Any]] = {
    "number": formatting.number,
    "plural": formatting.plural,
    "counted": formatting.counted,
    "sentence": formatting.sentence,
    "brief": formatting.brief,
    "browser": formatting.browser,
    "money": formatting.money,
    "duration": formatting.duration,
    "size": formatting.size,
    "document": formatting.document,
    "redacted": formatting.redacted,
    "details": formatting.details,
    "with_actor_names": formatting.with_actor_names,
    "meter_amount": formatting.meter_amount,
    "absolute": formatting.absolute,
}
cast("dict[str, Any]", templates.globals).update(_GLOBALS)  # pyright: ignore[reportUnknownMemberType]
cast("dict[str, Any]", templates.filters).update(_FILTERS)  # pyright: ignore[reportUnknownMemberType]

NAVIGATION: tuple[tuple[str, tuple[tuple[str, str, bool], ...]], ...] = (
    (
        "Work",
        (
            ("/", "Overview", False),
            ("/jobs", "Jobs", False),
            ("/bulks", "Bulk jobs", False),
            ("/waits", "Questions", False),
            ("/operations", "Operations", False),
            ("/dead-letters", "Dead letters", False),
            ("/schedules", "Schedules", False),
            ("/notifications", "Notifications", False),
        ),
    ),
    (
        "Capacity",
        (("/providers", "Providers", False), ("/workers", "Workers", True), ("/webhooks", "Webhooks", True)),
    ),
    (
        "Billing",
        (
            ("/usage", "Usage and costs", False),
            ("/subscriptions", "Subscriptions", True),
            ("/spend", "Spend", True),
        ),
    ),
    (
        "Administration",
        (
            ("/tenants", "Tenants", False),
            ("/people", "People", True),
            ("/prompts", "Prompts", True),
            ("/audit", "Audit log", False),
            ("/sessions", "Sessions", False),
            ("/settings", "Settings", False),
        ),
    ),
)
"""The menu, in groups: path, title, and whether only operators see the page."""
ADMIN_PAGES = ("/spend", "/people")
"""Pages for operators that admins of the installation see too."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The signed-in user: a member of some tenants, or an operator."""

    caller: Caller
    tenants: tuple[Tenant, ...]
    """A member's tenants, their own first. Empty for an operator, who sees all tenants."""
    roles: dict[UUID, Role]
    is_admin: bool = False
    """Whether the viewer is an admin of the installation, who sees spend and people."""

    @property
    def is_operator(self) -> bool:
        """Whether the viewer signed in with a service credential and sees all tenants."""
        return self.caller.role == "service_role"

    @property
    def tenant_ids(self) -> list[UUID] | None:
        """The tenants whose rows the viewer may see; None means all."""
        return None if self.is_operator else list(self.roles)

    def may_act(self, tenant_id: UUID | None = None) -> bool:
        """Whether to show action buttons. The database makes the final decision."""
        if self.is_operator:
            return True
        roles = self.roles.values() if tenant_id is None else [self.roles.get(tenant_id)]
        return any(role in ("owner", "admin", "member") for role in roles)

    def may_manage(self, tenant_id: UUID | None) -> bool:
        """Whether the viewer may change members and API keys."""
        has_scope = self.caller.scopes is None or "admin" in self.caller.scopes
        return has_scope and (
            self.is_operator or self.roles.get(tenant_id or UUID(int=0)) in ("owner", "admin")
        )

    def choose_tenant(self, requested: UUID | None) -> UUID | None:
        """Return the tenant a page is about: the requested one, else a member's first, else all (None)."""
        if requested is None:
            return None if self.is_operator or not self.tenants else self.tenants[0].id
        if not self.is_operator and requested not in self.roles:
            raise NotFound("tenant not found", code="unknown_tenant")
        return requested


class Page(APIRoute):
    """A route of the dashboard: a GET that reads, or a POST that changes something and redirects."""

    is_public = False
    """Whether the page needs no sign-in."""
    scope: Scope = "start"
    """The scope that a service key needs to change something."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def respond(request: Request) -> Response:
            request.state.caller = ANON
            request.state.nonce = secrets.token_urlsafe(18)
            try:
                response = await self._handle_as_caller(request, handle)
            except Unauthenticated:
                response = _to_sign_in(request)
            except (PenstockError, RequestValidationError, HTTPException) as error:
                response = await error_page(request, error)
            forms.set_form_cookie(request, response)
            return with_security_headers(request, response)

        return respond

    async def _handle_as_caller(
        self, request: Request, handle: Callable[[Request], Coroutine[Any, Any, Response]]
    ) -> Response:
        callers: Callers = request.app.state.callers
        if self.is_public:
            if request.method == "POST":
                request.state.form = await forms.read(request, ANON)
            return await handle(request)
        caller = await admitted(request, credential_of)
        is_read = request.method == "GET"
        caller.require("read" if is_read else self.scope)
        if not is_read:
            if request.app.state.settings.read_only:
                raise Forbidden(READ_ONLY_MESSAGE, code="read_only")
            request.state.form = await forms.read(request, caller)
        is_export = self.path_format.endswith(".csv")
        async with (
            self.preparing(request, caller),
            callers.acting(caller, read_only=is_read, is_export=is_export) as conn,
        ):
            request.state.conn = conn
            request.state.now = await db.value(conn, "_now")
            request.state.viewer = await load_viewer(conn, caller)
            response = await handle(request)
        if is_export:
            weigh(request, len(getattr(response, "body", b"")))
        return response

    @asynccontextmanager
    async def preparing(self, request: Request, caller: Caller) -> AsyncGenerator[None]:
        """Do what takes long before the page uses a database connection."""
        yield


class AdminPage(Page):
    """A page that manages members, keys or the installation."""

    scope = "admin"


class PublicPage(Page):
    """A page that needs no sign-in."""

    is_public = True


def credential_of(request: Request) -> str | None:
    """Return the session from the cookie, else the credential from the request headers as in the API."""
    session = request.cookies.get(forms.host_cookie(request, SESSION_COOKIE))
    if session and "authorization" not in request.headers:
        return SessionToken(session)
    return shown(request)


async def load_viewer(conn: db.Connection, caller: Caller) -> Viewer:
    """Return what the caller may see and do."""
    if caller.role == "service_role":
        return Viewer(caller, (), {})
    user_id = UUID(caller.claims["sub"])
    memberships = await tenants.of_user(conn, user_id=user_id)
    roles = await tenants.roles(conn, user_id=user_id)
    return Viewer(caller, tuple(memberships), roles, await admin.is_admin(conn))


def require_write_access(request: Request, viewer: Viewer) -> None:
    """Refuse a page whose only purpose is a change to viewers who may change nothing."""
    if request.app.state.settings.read_only:
        raise Forbidden(READ_ONLY_MESSAGE, code="read_only")
    if not viewer.may_act():
        raise Forbidden("viewers cannot change anything")


async def named_tenant(conn: db.Connection, text: str) -> UUID | None:
    """Return the tenant that a form names by name or id; None if the field is empty."""
    if not text:
        return None
    found = await tenants.find(conn, name=text)
    if len(found) != 1:
        problem = "several tenants are named" if found else "no tenant is named"
        raise Invalid(f"{problem} {text!r}", code="unknown_tenant", hint="Enter the tenant's id.")
    return found[0].id


def _connection(request: Request) -> db.Connection:
    return request.state.conn


def _current_viewer(request: Request) -> Viewer:
    return request.state.viewer


Conn = Annotated[db.Connection, Depends(_connection)]
"""The connection, in a transaction under the caller's role."""
CurrentViewer = Annotated[Viewer, Depends(_current_viewer)]
"""The signed-in user."""


FilterQuery = Annotated[str, Query(max_length=2000)]
TenantQuery = Annotated[UUID | None, Query()]


class CatchInvalidFilter:
    """Catches the error of an invalid filter, so that the page can show it next to the filter box."""

    def __init__(self) -> None:
        self.error: PenstockError | None = None

    def __enter__(self) -> CatchInvalidFilter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        if isinstance(error, PenstockError) and error.code == "invalid_filter":
            self.error = error
        return self.error is not None


# Responses


def url(request: Request, path: str, **query: Any) -> str:
    """Return the URL of a page below the mount point. Query values that are None or empty are omitted."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return request.scope.get("root_path", "") + path + (f"?{urlencode(given, doseq=True)}" if given else "")


def render(request: Request, template: str, code: int = 200, **context: Any) -> HTMLResponse:
    """Render a page; for an htmx refresh only its main part."""
    text = templates.get_template(template).render({**_shared_context(request), **context})
    response = HTMLResponse(text, code)
    if FLASH_COOKIE in request.cookies:
        response.delete_cookie(FLASH_COOKIE, path=request.scope.get("root_path") or "/")
    return response


def _shared_context(request: Request) -> dict[str, Any]:
    """Return the template variables that every page has."""
    state = request.app.state
    path = request.url.path.removeprefix(request.scope.get("root_path", "")) or "/"
    theme = request.cookies.get(THEME_COOKIE)
    now = getattr(request.state, "now", None) or datetime.now(UTC)

    def link(path: str, **query: Any) -> str:
        return url(request, path, **query)

    def asset(name: str) -> str:
        return url(request, f"/static/{name}", v=_digest(name))

    def ago(moment: datetime) -> str:
        return formatting.ago(moment, now)

    return {
        "layout": "part.html" if request.headers.get("hx-request") else "layout.html",
        "request": request,
        "path": path,
        "current_url": url(request, path) + (f"?{request.url.query}" if request.url.query else ""),
        "url": link,
        "asset": asset,
        "nonce": request.state.nonce,
        "token": forms.token(request, request.state.caller),
        "public_token": forms.token(request, ANON),
        "viewer": getattr(request.state, "viewer", None),
        "navigation": (*NAVIGATION, *_app_navigation(getattr(state, "app", None))),
        "admin_pages": ADMIN_PAGES,
        "theme": theme if theme in ("light", "dark") else None,
        "developer": getattr(state, "developer", None),
        "environment": state.settings.environment,
        "base_url": forms.base_url(request),
        "is_read_only": state.settings.read_only,
        "currency": getattr(state, "currency", ""),
        "flash": unquote(request.cookies.get(FLASH_COOKIE, ""))[:200],
        "now": now,
        "ago": ago,
        "live": None,
    }


def _app_navigation(app: App | None) -> list[tuple[str, tuple[tuple[str, str, bool], ...]]]:
    """The app's own group of the menu, if it declares pages."""
    if app is None or app.own is None or not app.pages:
        return []
    entries = ((f"/app/{page.name}", page.title, page.is_for_operators) for page in app.pages.values())
    return [(app.own.schema.replace("_", " ").capitalize(), tuple(entries))]


def redirect(request: Request, path: str, *, flash: str | None = None, **query: Any) -> RedirectResponse:
    """Redirect to a page after a POST. The page shows the flash message once."""
    response = RedirectResponse(url(request, path, **query), 303)
    if flash:
        forms.set_cookie(request, response, FLASH_COOKIE, quote(flash))
    return response


def with_security_headers(request: Request, response: Response) -> Response:
    """Add headers that allow the browser to run, load and submit only what belongs to the dashboard."""
    nonce = request.state.nonce
    # Object storage may be on another host: pages that show its files add that origin.
    files = " ".join(("'self'", *getattr(request.state, "file_origins", ())))
    # Browsers also apply form-action to the redirect of a form: the page of a checkout adds its origin.
    targets = " ".join(("'self'", *getattr(request.state, "form_origins", ())))
    response.headers["Content-Security-Policy"] = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src {files}; "
        f"media-src {files}; frame-src {files}; connect-src 'self'; form-action {targets}; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    response.headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
    response.headers.setdefault("Cache-Control", "no-store")
    return response


async def error_page(request: Request, error: Exception) -> Response:
    """Render the page for an error."""
    code = error.status_code if isinstance(error, HTTPException) else None
    if isinstance(error, HTTPException):
        error = NotFound("page not found") if code == 404 else Invalid("method not allowed")
    elif isinstance(error, RequestValidationError):
        error = Invalid("the address contains an invalid value", code="invalid")
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
    response = redirect(
        request, "/sign-in", next=wanted if request.method == "GET" and wanted != "/" else None
    )
    if request.cookies.get(forms.host_cookie(request, SESSION_COOKIE)):
        forms.delete_host_cookie(request, response, SESSION_COOKIE)
    return response


@cache
def _digest(name: str) -> str:
    return sha256((_FOLDER / "static" / name).read_bytes()).hexdigest()[:12]


async def currency(callers: Callers) -> str:
    """Return the currency of all amounts. It never changes, and only the service role may read it."""
    async with callers.acting(_SERVICE, read_only=True) as conn:
        return await costs.base_currency(conn)
