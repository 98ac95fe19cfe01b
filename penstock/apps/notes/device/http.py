"""The server over HTTP, with the standard library only: what any client has to send."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, cast

from penstock.apps.notes.device.store import Record
from penstock.apps.notes.device.sync import Outcome, ServerState, TableState

SCHEMA = "notes"
MISSING_TABLE = "PGRST205"


class Offline(OSError):
    """The server cannot be reached. Nothing is lost: sync again later."""


class ServerError(Exception):
    """The server refused a request."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message


class HttpServer:
    """A Penstock server, as one user."""

    def __init__(self, url: str, key: str, token: Callable[[], str], *, timeout: float = 30) -> None:
        """`key` is the project's public key; `token` returns the user's current access token."""
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"the URL of the server must begin with http:// or https:// (got {url})")
        self._url = url.rstrip("/")
        self._key = key
        self._token = token
        self._timeout = timeout

    def state(self) -> ServerState:
        """Call `sync_state`."""
        found = self.call("rpc/sync_state", {"p_schema": SCHEMA})
        tables = {name: TableState(t["seq"], t["horizon"]) for name, t in found["tables"].items()}
        return ServerState(tables, found["server_ms"])

    def push(self, changes: list[dict[str, Any]]) -> list[Outcome]:
        """Call `push_changes`."""
        rows = self.call("rpc/push_changes", {"p_changes": changes, "p_schema": SCHEMA})
        return [Outcome(r["table"], r["id"], r["outcome"], r["code"], r["message"]) for r in rows]

    def pull(self, table: str, after: int, limit: int) -> list[Record] | None:
        """Read a page of rows; None if the server does not have the table yet."""
        query = urllib.parse.urlencode(
            {"change_seq": f"gt.{after}", "order": "change_seq", "limit": limit, "select": "*"}
        )
        try:
            return cast("list[Record]", self.call(f"{table}?{query}", None))
        except ServerError as error:
            if error.code == MISSING_TABLE:
                return None
            raise

    def call(self, path: str, body: Any, *, method: str | None = None) -> Any:
        """Send one request to `/rest/v1`, and return the JSON of the response."""
        return self._send(f"{self._url}/rest/v1/{path}", body, method)

    def invoke(self, function: str, body: Any) -> Any:
        """Call an HTTP function of the app."""
        return self._send(f"{self._url}/functions/v1/{function}", body, None)

    def _send(self, url: str, body: Any, method: str | None) -> Any:
        headers = {"apikey": self._key, "Authorization": f"Bearer {self._token()}"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers |= {"Content-Type": "application/json", "Prefer": "return=representation"}
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 the scheme is checked
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:  # noqa: S310 the same
                content = response.read()
        except urllib.error.HTTPError as error:
            raise _refusal(error.code, error.read()) from error
        except (urllib.error.URLError, OSError) as error:
            raise Offline(f"the server cannot be reached: {error}") from error
        return json.loads(content) if content else None


def _refusal(status: int, content: bytes) -> ServerError:
    try:
        found: dict[str, Any] = json.loads(content)
        message = str(found.get("message") or found.get("detail") or found.get("error") or "")
        return ServerError(status, str(found.get("code") or "error"), message)
    except (ValueError, AttributeError):
        return ServerError(status, "error", content[:200].decode(errors="replace"))
