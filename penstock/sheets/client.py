"""The Google Sheets API v4 over HTTP: one request per method, errors with a hint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx

from penstock.errors import (
    Forbidden,
    Invalid,
    Limited,
    NotFound,
    PenstockError,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from penstock.sheets.account import TOKEN_URL, Account, safe_url, tls
from penstock.sheets.cells import LARGEST_REQUEST, Block, Part, request
from penstock.sheets.source import spreadsheet_id
from penstock.sources.a1 import Range, parse

BASE_URL = "https://sheets.googleapis.com"
LONGEST_SECONDS = 180.0
"""The timeout of a request, Google's own."""

_LARGEST_ANSWER = 64 << 20
_FIELDS = "spreadsheetId,properties.title,sheets.properties(sheetId,title,sheetType,gridProperties)"
_LIMITED = {"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded", "RATE_LIMIT_EXCEEDED"}


@dataclass(frozen=True, slots=True)
class Tab:
    """A sheet of a spreadsheet, with its size."""

    id: int
    title: str
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Spreadsheet:
    """A spreadsheet and its sheets."""

    id: str
    title: str
    tabs: tuple[Tab, ...]

    def tab(self, title: str | None = None, gid: int | None = None) -> Tab:
        """The sheet with this title or id. Default: the first."""
        for tab in self.tabs:
            if (title is None or tab.title == title) and (gid is None or tab.id == gid):
                return tab
        raise Invalid(
            f"unknown sheet {gid if title is None else title!r} in {self.title!r}",
            code="unknown_sheet",
            hint=f"Sheets: {', '.join(tab.title for tab in self.tabs)}.",
        )

    def area(self, range: str | None = None, gid: int | None = None) -> Range:
        """A range with all bounds, within the sheet's size. Default: the whole sheet."""
        wanted = parse(range) if range else Range()
        tab = self.tab(wanted.sheet, gid if wanted.sheet is None else None)
        top, left = wanted.top or 1, wanted.left or 1
        if top > tab.rows or left > tab.columns:
            raise Invalid(f"range {range} is outside sheet {tab.title!r}", code="invalid_range")
        bottom, right = (
            min(wanted.bottom or tab.rows, tab.rows),
            min(wanted.right or tab.columns, tab.columns),
        )
        return Range(tab.title, top, left, bottom, right)


class Sheets:
    """A client of Google Sheets for one account.

    `credentials`: the path or content of a credentials file (service account or `authorized_user`), or
    `{"token": "ya29.…"}`.
    """

    def __init__(
        self,
        credentials: str | Path | Mapping[str, Any],
        *,
        base_url: str = BASE_URL,
        token_url: str = TOKEN_URL,
    ) -> None:
        self._base_url = safe_url(base_url)
        self._account = Account(credentials, token_url)

    def __repr__(self) -> str:
        return f"<Sheets {self.account or self.id}>"

    @property
    def account(self) -> str | None:
        """The email address of a service account. Users share sheets with it."""
        return self._account.name

    @property
    def id(self) -> str:
        """An anonymous id of the account."""
        return self._account.id

    async def describe(self, spreadsheet: str) -> Spreadsheet:
        """The title and sheets of a spreadsheet. One read request."""
        found = await self._call("GET", _path(spreadsheet), params=[("fields", _FIELDS)])
        tabs = [_tab(sheet.get("properties", {})) for sheet in found.get("sheets", [])]
        title = str(found.get("properties", {}).get("title", ""))
        return Spreadsheet(str(found.get("spreadsheetId")), title, tuple(tab for tab in tabs if tab))

    async def get(self, spreadsheet: str, ranges: Sequence[Range]) -> list[list[list[Any]]]:
        """The values of each range, row by row, with formatted dates. One read request.

        Google omits empty cells at the end of a row, and empty rows at the end.
        """
        params = [("ranges", str(area)) for area in ranges]
        params += [("valueRenderOption", "UNFORMATTED_VALUE"), ("dateTimeRenderOption", "FORMATTED_STRING")]
        found = await self._call("GET", f"{_path(spreadsheet)}/values:batchGet", params=params)
        return [part.get("values", []) for part in found.get("valueRanges", [])]

    async def write(self, spreadsheet: str, blocks: Sequence[Block]) -> int:
        """Write all blocks or none. Returns the number of cells. One write request."""
        if not blocks:
            return 0
        body = request(blocks)
        if len(body) > LARGEST_REQUEST:
            raise TooLarge(f"request is limited to {LARGEST_REQUEST:,} bytes (got {len(body):,})")
        found = await self._call("POST", f"{_path(spreadsheet)}/values:batchUpdate", body=body)
        return int(found.get("totalUpdatedCells", 0))

    async def add_columns(self, spreadsheet: str, tab: Tab, number: int) -> None:
        """Add columns to a sheet. One write request. Not idempotent: check the width first."""
        change = {"appendDimension": {"sheetId": tab.id, "dimension": "COLUMNS", "length": number}}
        body = json.dumps({"requests": [change]}).encode()
        await self._call("POST", f"{_path(spreadsheet)}:batchUpdate", body=body)

    async def rows(self, spreadsheet: str, range: str | None = None) -> AsyncIterator[tuple[int, list[Any]]]:
        """Yield number and cells of all rows of a range, in as few requests as possible."""
        id, gid = spreadsheet_id(spreadsheet)
        part = Part((await self.describe(id)).area(range, gid))
        while (area := part.next) is not None:
            [values] = await self.get(id, [area])
            for number, cells in enumerate(values, area.top or 1):
                yield number, cells
            part = part.after(values)

    async def _call(
        self, method: str, path: str, *, params: Sequence[tuple[str, str]] = (), body: bytes | None = None
    ) -> dict[str, Any]:
        token = await self._token()
        status, headers, content = await self._exchange(method, path, params, body, token)
        if status == 401 and self._account.can_renew:
            # The token was revoked, or a clock is wrong: try once with a new one.
            token = await self._token(stale=token)
            status, headers, content = await self._exchange(method, path, params, body, token)
        answer = _document(content)
        if status == 200:
            return answer
        raise self._error_of(status, headers, answer)

    async def _token(self, stale: str | None = None) -> str:
        if stale is None and self._account.is_ready:
            return self._account.token()
        return await asyncio.to_thread(self._account.token, stale)

    async def _exchange(
        self, method: str, path: str, params: Sequence[tuple[str, str]], body: bytes | None, token: str
    ) -> tuple[int, dict[str, str], bytes]:
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        timeout = httpx.Timeout(30, read=LONGEST_SECONDS)
        url = f"{self._base_url}{path}"
        try:
            # A client per call: calls are rare, and this leaves no connection open in any event loop.
            # The read timeout starts again with every byte, so the whole exchange has one as well.
            async with (
                asyncio.timeout(LONGEST_SECONDS),
                httpx.AsyncClient(verify=tls(), timeout=timeout, follow_redirects=False) as client,
                client.stream(method, url, params=list(params), content=body, headers=headers) as response,
            ):
                content = bytearray()
                async for block in response.aiter_bytes():
                    content += block
                    if len(content) > _LARGEST_ANSWER:
                        raise TooLarge("Google's response is too large", hint="Read a smaller range.")
                return response.status_code, dict(response.headers), bytes(content)
        except (TimeoutError, httpx.TimeoutException):
            raise TimedOut("Google Sheets did not respond in time", code="sheets_timeout") from None
        except httpx.HTTPError as error:
            # Without the cause, whose request contains the token.
            words = f"Google Sheets cannot be reached: {type(error).__name__}"
            raise Unavailable(words, code="sheets_unavailable") from None

    def _error_of(self, status: int, headers: Mapping[str, str], answer: dict[str, Any]) -> PenstockError:
        """The error for a response other than 200."""
        found = answer.get("error")
        problem = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        said = f"Google Sheets: {str(problem.get('message') or f'status {status}')[:300]}"
        details: list[Any] = [*(problem.get("errors") or []), *(problem.get("details") or [])]
        if status == 429 or (status == 403 and any(detail.get("reason") in _LIMITED for detail in details)):
            # Google also uses 403 for quotas; report them as 429, which the worker understands.
            return _with_response(429, headers, Limited(said, code="sheets_limited"))
        share = f"Share it with {self.account}." if self.account else "Ask its owner to share it."
        match status:
            case 400:
                return Invalid(said, code="sheets_invalid")
            case 401:
                return Unauthenticated(said, code="sheets_login")
            case 403:
                return Forbidden(said, code="sheet_forbidden", hint=share)
            case 404:
                words = "the spreadsheet does not exist or is not shared with this account"
                return NotFound(words, code="sheet_missing", hint=share)
            case 413:
                return TooLarge(said)
            case 408 | 504:
                return TimedOut(said, code="sheets_timeout")
            case _ if 300 <= status < 400:
                words = f"Google Sheets redirected the request ({status})"
                return Unavailable(words, code="sheets_unavailable")
            case _:
                return _with_response(status, headers, Unavailable(said, code="sheets_unavailable"))


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers of a response, without the request and its token."""

    status_code: int
    headers: dict[str, str]


def _with_response(status: int, headers: Mapping[str, str], error: PenstockError) -> PenstockError:
    # Like errors of HTTP clients, so that the worker reads the provider's rate-limit headers.
    cast("Any", error).response = ResponseHead(status, dict(headers))
    return error


def _tab(properties: dict[str, Any]) -> Tab | None:
    grid: dict[str, int] = properties.get("gridProperties") or {}
    if properties.get("sheetType", "GRID") != "GRID" or not grid:
        return None
    id, title = int(properties.get("sheetId", 0)), str(properties.get("title"))
    return Tab(id, title, grid.get("rowCount", 0), grid.get("columnCount", 0))


def _path(spreadsheet: str) -> str:
    return f"/v4/spreadsheets/{spreadsheet_id(spreadsheet)[0]}"


def _document(content: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(content)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
