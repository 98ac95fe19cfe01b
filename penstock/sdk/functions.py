"""HTTP functions of an app, called at `/functions/v1/{name}` as Supabase clients call Edge Functions.

@app.function("me-entitlements")
async def me_entitlements(request: FunctionRequest) -> FunctionResponse:
    async with request.acting() as conn:
        rows = await db.rows(conn, "select name from shop.my_entitlements()", ())
    return FunctionResponse(json=[name for (name,) in rows])
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from penstock.contract import artifacts
from penstock.errors import Conflict, Invalid
from penstock.postgres import db
from penstock.settings import Settings
from penstock.storage.objects import Storage

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
MAX_BYTES = 8 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    """A request to a function of an app."""

    name: str
    method: str
    headers: Mapping[str, str]
    """Names are in lower case."""
    query: Mapping[str, str]
    body: bytes = field(repr=False)
    """The bytes as they were sent: verify a signature over these, not over the parsed JSON."""
    role: str
    """The caller's database role: `anon`, `authenticated` or `service_role`."""
    user_id: UUID | None
    """The id of the calling user or API key."""
    request_id: str
    base_url: str
    acting: Callable[[], AbstractAsyncContextManager[db.Connection]] = field(repr=False)
    """Opens a transaction as the caller, for at most 10 seconds. Commits at the end."""
    service: Callable[[], AbstractAsyncContextManager[db.Connection]] = field(repr=False)
    """The same as the service, which may do everything: check the caller first."""
    storage: Callable[[], Storage] = field(repr=False)
    pool: db.Pool = field(repr=False)
    """Connections of the service, for work that needs several short transactions."""
    settings: Settings = field(repr=False)
    """The settings of the server."""
    address: str | None = None
    """The address that the request came from. Personal data: store it only where you have to."""

    @property
    def is_service(self) -> bool:
        """Whether the caller is the service rather than a user."""
        return self.role == "service_role"

    def json(self) -> Any:
        """The parsed body. Raises Invalid if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            text = f"the body is not valid JSON: {str(error)[:200]}"
            raise Invalid(text, code="invalid_json", details={"field": "body"}) from None

    async def tenant_id(self) -> UUID | None:
        """The tenant that the caller works in unless a call names another one."""
        async with self.acting() as conn:
            return await db.value(conn, "my_tenant")

    async def finish_upload(self, artifact_id: UUID, finish: artifacts.Finish | None = None) -> bool:
        """Finish an upload of the caller, together with the app's own writes in `finish`, in one transaction.

        Returns False if the upload was finished before.
        """
        try:
            async with self.acting() as conn:
                taken = await artifacts.take_upload(conn, artifact_id=artifact_id)
        except Conflict as error:
            if error.details.get("status") != "stored":
                raise
            return False
        await artifacts.finish_upload(
            self.service, self.storage(), artifact_id=artifact_id, taken=taken, finish=finish
        )
        return True


@dataclass(frozen=True, slots=True)
class FunctionResponse:
    """The response of a function: JSON, or a body of another type."""

    status: int = 200
    json: Any = None
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Handler = Callable[[FunctionRequest], Awaitable[FunctionResponse]]


@dataclass(frozen=True, slots=True)
class Function:
    """An HTTP function that an app declared."""

    name: str
    handler: Handler
    methods: tuple[str, ...]
    is_open: bool
    """Whether it takes requests without credentials and verifies the sender itself."""
    max_bytes: int
    timeout: float


class Functions:
    """The part of an app that declares HTTP functions."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}

    def function(
        self,
        name: str,
        *,
        methods: Sequence[str] = ("POST",),
        is_open: bool = False,
        max_bytes: int = MAX_BYTES,
        timeout: float = 30,
    ) -> Callable[[Handler], Handler]:
        """Declare an async function as an HTTP function at `/functions/v1/{name}`.

        It needs a signed-in user or a service credential. With `is_open` it needs none and verifies the
        sender itself, such as a webhook's signature over `request.body`.
        """
        if not _NAME.fullmatch(name):
            raise Invalid(
                f"a function's name must have 1 to 100 lower-case letters, digits, - or _ (got {name!r})",
                details={"field": "name"},
            )
        if name in self.functions:
            raise Invalid(f"a function named {name!r} already exists", details={"field": "name"})
        if not methods or not set(methods) <= set(METHODS):
            known = ", ".join(METHODS)
            raise Invalid(f"methods must be some of {known} (got {', '.join(methods)})")

        def add(handler: Handler) -> Handler:
            self.functions[name] = Function(name, handler, tuple(methods), is_open, max_bytes, timeout)
            return handler

        return add
