"""Google accounts and their tokens: service accounts and authorized users. No message contains a secret."""

# pyright: reportUnknownMemberType=false
# (google-auth is typed in part)

from __future__ import annotations

import hashlib
import ipaddress
import json
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
from google.auth import exceptions as google_errors
from google.auth import transport
from google.oauth2 import credentials as user_credentials
from google.oauth2 import service_account

from penstock.errors import Invalid, PenstockError, Unauthenticated, Unavailable

TOKEN_URL = "https://oauth2.googleapis.com/token"  # noqa: S105 (an address)
SCOPE = "https://www.googleapis.com/auth/spreadsheets"
_SECONDS = 30


class Account:
    """Credentials of an account. URLs in them are ignored, because they could point to another server."""

    def __init__(self, credentials: str | Path | Mapping[str, Any], token_url: str) -> None:
        self._url = safe_url(token_url)
        self._lock = threading.Lock()
        info = credentials if isinstance(credentials, Mapping) else _read(Path(credentials))
        try:
            self._credentials, self.name, own = _made(info, self._url)
        except (ValueError, KeyError, TypeError, google_errors.GoogleAuthError):
            # Without the cause, which may contain parts of the file.
            raise Invalid(
                "invalid Google credentials",
                code="invalid_credentials",
                hint="Use the JSON file of a service account or an authorized user.",
            ) from None
        self.id = hashlib.sha256(own.encode()).hexdigest()[:12]
        """An anonymous id of the account."""
        self.can_renew = own != self._credentials.token

    @property
    def is_ready(self) -> bool:
        """Whether there is a valid token."""
        return not self.can_renew or bool(self._credentials.valid)

    def token(self, stale: str | None = None) -> str:
        """A valid token other than `stale`. Requests a new one if needed."""
        with self._lock:
            if self.can_renew and (not self._credentials.valid or self._credentials.token == stale):
                try:
                    self._credentials.refresh(_Transport(self._url))
                except google_errors.GoogleAuthError as error:
                    raise self._denied(error) from None
            return str(self._credentials.token)

    def _denied(self, error: google_errors.GoogleAuthError) -> PenstockError:
        if isinstance(error, google_errors.TransportError) or getattr(error, "retryable", False):
            return Unavailable("Google's token endpoint is unavailable", code="sheets_unavailable")
        answer: Any = error.args[1] if len(error.args) > 1 else None
        said = ""
        if isinstance(answer, dict):
            found = cast("dict[str, Any]", answer)
            said = f": {found.get('error')}, {found.get('error_description')}"[:300]
        whose = self.name or "this user"
        return Unauthenticated(f"Google rejected the credentials of {whose}{said}", code="sheets_login")


class _Transport(transport.Request):
    """The transport for google-auth. Allows requests to the token endpoint only."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_: Any,
    ) -> transport.Response:
        if url != self._url:
            raise google_errors.TransportError(f"requests to {urlsplit(url).netloc} are not allowed")
        try:
            with httpx.Client(verify=tls(), timeout=timeout or _SECONDS, follow_redirects=False) as client:
                found = client.request(method, url, content=body, headers=dict(headers or {}))
        except httpx.HTTPError as error:
            raise google_errors.TransportError(type(error).__name__) from None
        return cast("transport.Response", _Response(found.status_code, dict(found.headers), found.content))


@dataclass(frozen=True, slots=True)
class _Response:
    """A response for google-auth."""

    status: int
    headers: dict[str, str]
    data: bytes


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(path.read_text())
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}", code="invalid_credentials") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Invalid(f"{path} is not a credentials file", code="invalid_credentials")
    return cast("dict[str, Any]", found)


def _made(info: Mapping[str, Any], token_url: str) -> tuple[Any, str | None, str]:
    """The credentials, the account's name if it has one, and a value that identifies the account."""
    match info.get("type", "token" if "token" in info else None):
        case "service_account":
            known = {**info, "token_uri": token_url}
            email = str(info["client_email"])
            made = service_account.Credentials.from_service_account_info(known, scopes=[SCOPE])
            return made, email, email
        case "authorized_user":
            refresh = str(info["refresh_token"])
            user = user_credentials.Credentials(
                None,
                refresh_token=refresh,
                client_id=str(info["client_id"]),
                client_secret=str(info["client_secret"]),
                token_uri=token_url,
            )
            return user, None, refresh
        case "token":
            return user_credentials.Credentials(str(info["token"])), None, str(info["token"])
        case _:
            raise ValueError("unknown type")


def safe_url(url: str) -> str:
    """Check that a token may be sent to this URL: https, or on this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = False
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_here)
    if not host or parts.username or parts.query or not is_safe:
        raise Invalid(f"unsafe URL for a token: {url!r}", hint="Use https, without user and query.")
    return url.rstrip("/")


@lru_cache(maxsize=1)
def tls() -> ssl.SSLContext:
    """The TLS context. Created once, because loading the certificates is slow."""
    return ssl.create_default_context()
