"""The server over HTTP, with the standard library only: what any client has to send."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, cast

from penstock.apps.notes.device.store import Record
from penstock.apps.notes.device.sync import Outcome, PageTooLarge, ServerState, TableState

SCHEMA = "notes"
MISSING_TABLE = "PGRST205"
MISSING_FUNCTION = "PGRST202"
TOO_LARGE = 413
MAX_BYTES = 10 << 20
"""The largest file that a device downloads; the server stores no larger image."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: following one would send the user's token to another host."""

    def redirect_request(
        self, req: object, fp: object, code: int, msg: str, headers: object, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class Offline(OSError):
    """The server cannot be reached. Nothing is lost: sync again later."""


class ServerError(Exception):
    """The server refused a request."""

    def __init__(self, status: int, code: str, message: str, location: str | None = None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.location = location
        self.status = status
        self.code = code
        self.message = message


class HttpServer:
    """A Penstock server, as one user."""

    def __init__(
        self,
        url: str,
        key: str,
        token: Callable[[], str],
        *,
        timeout: float = 30,
        device_id: str | None = None,
    ) -> None:
        """`key` is the project's public key; `token` returns the user's current access token.

        `device_id` is what `keys.enrol` returned on this device: the user's list of devices then shows when
        this one last synced.
        """
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"the URL of the server must begin with http:// or https:// (got {url})")
        self._url = url.rstrip("/")
        self._key = key
        self._token = token
        self._timeout = timeout
        self.device_id = device_id

    def state(self) -> ServerState:
        """Call `start_sync` as an enrolled device, otherwise `sync_state`."""
        found = self._start_sync() or self.call("rpc/sync_state", {"p_schema": SCHEMA})
        tables = {name: TableState(t["seq"], t["horizon"]) for name, t in found["tables"].items()}
        return ServerState(tables, found["server_ms"])

    def _start_sync(self) -> Any:
        """The state, if this device is enrolled and the server records syncs."""
        if self.device_id is None:
            return None
        try:
            return self.call("rpc/start_sync", {"p_device_id": self.device_id})
        except ServerError as error:
            if error.code != MISSING_FUNCTION:
                raise
            return None

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
            if error.status == TOO_LARGE:
                raise PageTooLarge(error.message) from error
            raise

    def call(self, path: str, body: Any, *, method: str | None = None) -> Any:
        """Send one request to `/rest/v1`, and return the JSON of the response."""
        return self._send(f"{self._url}/rest/v1/{path}", body, method)

    def invoke(self, function: str, body: Any) -> Any:
        """Call an HTTP function of the app."""
        return self._send(f"{self._url}/functions/v1/{function}", body, None)

    def upload(self, function: str, data: bytes, content_type: str) -> Any:
        """Send a file to an HTTP function of the app."""
        headers = {**self._credentials(), "Content-Type": content_type}
        url = f"{self._url}/functions/v1/{function}"
        return json.loads(self._open(urllib.request.Request(url, data, headers)) or b"null")  # noqa: S310 the scheme is checked

    def download(self, function: str) -> bytes:
        """Read the file to which an HTTP function redirects, without the user's credentials."""
        url = f"{self._url}/functions/v1/{function}"
        try:
            return self._open(urllib.request.Request(url, headers=self._credentials()))  # noqa: S310 the same
        except ServerError as error:
            location = urllib.parse.urljoin(url, error.location or "")
            if not error.location or urllib.parse.urlsplit(location).scheme not in ("http", "https"):
                raise
        return self._open(urllib.request.Request(location))  # noqa: S310 checked above

    def _credentials(self) -> dict[str, str]:
        return {"apikey": self._key, "Authorization": f"Bearer {self._token()}"}

    def _send(self, url: str, body: Any, method: str | None) -> Any:
        headers = self._credentials()
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers |= {"Content-Type": "application/json", "Prefer": "return=representation"}
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 the scheme is checked
        content = self._open(request, None)
        return json.loads(content) if content else None

    def _open(self, request: urllib.request.Request, limit: int | None = MAX_BYTES) -> bytes:
        try:
            with _OPENER.open(request, timeout=self._timeout) as response:
                content: bytes = response.read() if limit is None else response.read(limit + 1)
        except urllib.error.HTTPError as error:
            raise _refusal(error.code, error.read(), error.headers.get("Location")) from error
        except (urllib.error.URLError, OSError) as error:
            raise Offline(f"the server cannot be reached: {error}") from error
        if limit is not None and len(content) > limit:
            raise ServerError(200, "file_too_large", f"the file has more than {limit} bytes")
        return content


def _refusal(status: int, content: bytes, location: str | None) -> ServerError:
    try:
        found: dict[str, Any] = json.loads(content)
        message = str(found.get("message") or found.get("detail") or found.get("error") or "")
        return ServerError(status, str(found.get("code") or "error"), message, location)
    except (ValueError, AttributeError):
        return ServerError(status, "error", content[:200].decode(errors="replace"), location)
