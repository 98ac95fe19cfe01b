"""A simulated Google Sheets API: spreadsheets in memory, tokens, quotas and statistics.

Quotas work as Google's: requests per calendar minute, for the project and per user, for reads and writes
separately. A request over a quota gets 429 and counts as a violation.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock.simulator import tokens
from penstock.simulator.limits import MINUTE, Admission, Amount, Window
from penstock.simulator.spreadsheets import Cell, Sheet, SheetsError, Spreadsheet, formatted, imported, parsed
from penstock.sources import a1

Fault = Literal["429", "500", "503", "timeout"]
Metric = Literal["read", "write"]
_Work = Callable[[], dict[str, Any]]

API = "/v4/spreadsheets/"
_PATH = re.compile(r"([A-Za-z0-9_-]+)(?:(:batchUpdate)|/values(?::(\w+)|/(.+)))?")
_Quota = Annotated[int, Field(ge=1, le=10**9)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Seconds = Annotated[float, Field(ge=0, le=3600)]


class SheetsConfig(BaseModel):
    """The behavior of the Sheets server. Defaults are Google's quotas."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reads_per_minute: _Quota = 300
    reads_per_minute_per_user: _Quota = 60
    writes_per_minute: _Quota = 300
    writes_per_minute_per_user: _Quota = 60
    largest_request: int = Field(default=2 << 20, ge=1)
    """Maximum bytes of a request. A larger one is rejected and counts as a violation."""
    longest_seconds: float = Field(default=180, gt=0)
    """A request that would take longer gets 504, although its writes happen."""
    faults: dict[Fault, _Share] = {}
    """The share of requests within the quotas that fail. With `timeout`, the writes happen."""
    latency: tuple[_Seconds, _Seconds] = (0, 0)

    @field_validator("faults")
    @classmethod
    def _at_most_all(cls, value: dict[Fault, float]) -> dict[Fault, float]:
        if sum(value.values()) > 1:
            raise ValueError("the shares add up to more than 1")
        return value


class SheetsStats(TypedDict):
    """Statistics of the Sheets server."""

    calls: dict[str, int]
    """Requests by metric (read or write), including rejected ones."""
    statuses: dict[str, int]
    faults: dict[str, int]
    tokens: int
    cells_written: int
    rows_written: int
    rows_written_again: int
    """Rows written again with the same values."""
    rows_changed: int
    """Rows written again with other values."""
    formulas: int
    """Written texts that became formulas."""
    violations: dict[str, int]
    violation_count: int
    max_requests_60s: dict[str, int]
    """The maximum in any 60 seconds by metric, for the project and its busiest user."""
    largest_request: int
    largest_answer: int


@dataclass(slots=True)
class SheetsResponse:
    """A response, and the seconds after which to send it."""

    status: int
    document: dict[str, Any]
    seconds: float = 0


@dataclass(slots=True)
class _Counts:
    calls: Counter[str] = field(default_factory=Counter[str])
    statuses: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    violations: Counter[str] = field(default_factory=Counter[str])
    # By metric and user: the minute and its usage, and the last 60 seconds.
    minutes: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict[Any, Any])
    windows: dict[tuple[str, str], Window] = field(default_factory=dict[Any, Any])
    # By spreadsheet, sheet, row and column.
    written: dict[tuple[str, int, int, int], Cell] = field(default_factory=dict[Any, Any])
    rows: set[tuple[str, int, int]] = field(default_factory=set[Any])
    cells: int = 0
    again: int = 0
    changed: int = 0
    formulas: int = 0
    largest_request: int = 0
    largest_answer: int = 0


class SheetsServer:
    """Spreadsheets, users and statistics."""

    def __init__(self, config: Callable[[], SheetsConfig], clock: Callable[[], float], seed: int) -> None:
        self._config, self._clock, self._seed = config, clock, seed
        self.spreadsheets: dict[str, Spreadsheet] = {}
        self.tokens = tokens.Tokens(clock)
        self.reset()

    def reset(self) -> None:
        """Reset the statistics. Keeps spreadsheets and users."""
        self._counts = _Counts()
        self.tokens.count = 0
        self._fault_chance, self._latency_chance = random.Random(self._seed), random.Random(self._seed)

    # Set up by tests and demos

    def add(
        self, id: str, sheets: Mapping[str, Iterable[Sequence[Cell]]], *, title: str | None = None
    ) -> Spreadsheet:
        """Add or replace a spreadsheet."""
        made = self.spreadsheets[id] = Spreadsheet.of(id, title or id, sheets)
        return made

    def load(self, id: str, lines: Iterable[str], sheet: str = "Sheet1") -> Spreadsheet:
        """Add a spreadsheet from lines of CSV."""
        return self.add(id, {sheet: imported(lines)})

    def service_account(self, name: str = "robot") -> dict[str, Any]:
        """Create a service account. Returns the content of its credentials file."""
        return self.tokens.service_account(name)

    def user(self, email: str) -> dict[str, Any]:
        """Create a user. Returns the content of its credentials file."""
        return self.tokens.user(email)

    def values(self, id: str, range: str) -> list[list[Cell]]:
        """The current values of a range."""
        area = a1.parse(range)
        return self.spreadsheets[id].find(area).values(area)

    def stats(self) -> SheetsStats:
        """The statistics."""
        counts = self._counts
        most: dict[str, int] = {}
        for (metric, who), window in counts.windows.items():
            name = metric if who == tokens.PROJECT else f"{metric}_per_user"
            most[name] = max(most.get(name, 0), window.max_requests)
        return {
            "calls": dict(counts.calls),
            "statuses": dict(counts.statuses),
            "faults": dict(counts.faults),
            "tokens": self.tokens.count,
            "cells_written": counts.cells,
            "rows_written": len(counts.rows),
            "rows_written_again": counts.again,
            "rows_changed": counts.changed,
            "formulas": counts.formulas,
            "violations": dict(counts.violations),
            "violation_count": counts.violations.total(),
            "max_requests_60s": most,
            "largest_request": counts.largest_request,
            "largest_answer": counts.largest_answer,
        }

    # Called by the server

    def respond(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> SheetsResponse:
        """SheetsResponse a request."""
        if path == tokens.PATH:
            return SheetsResponse(*self.tokens.grant(method, body or b""))
        try:
            answer = self._answer(method, path.removeprefix(API), query, headers, body)
        except SheetsError as error:
            answer = SheetsResponse(error.status, error.body())
        self._counts.statuses[str(answer.status)] += 1
        return answer

    def _answer(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> SheetsResponse:
        counts, config = self._counts, self._config()
        user = self.tokens.owner(headers)
        if user is None:
            raise SheetsError(401, "Request had invalid authentication credentials.", "ACCESS_TOKEN_EXPIRED")
        work, metric = self._route(method, path, query, user, body)
        counts.calls[metric] += 1
        self._admit(metric, user)
        if body is None or len(body) > config.largest_request:
            counts.violations["request_bytes"] += 1
            raise SheetsError(413, f"Request payload size exceeds the limit: {config.largest_request} bytes.")
        counts.largest_request = max(counts.largest_request, len(body))
        fault = self._fault(config)
        match fault:
            case "429":
                raise SheetsError(429, _quota_words(metric, "minute per user"), "RATE_LIMIT_EXCEEDED")
            case "500":
                raise SheetsError(500, "Internal error encountered.")
            case "503":
                raise SheetsError(503, "The service is currently unavailable.")
            case "timeout" | None:
                document = work()
        counts.largest_answer = max(counts.largest_answer, len(json.dumps(document)))
        seconds = math.inf if fault else self._latency_chance.uniform(*config.latency)
        if seconds >= config.longest_seconds:
            late = SheetsError(504, "Deadline expired before operation could complete.")
            return SheetsResponse(late.status, late.body(), config.longest_seconds)
        return SheetsResponse(200, document, seconds)

    def _fault(self, config: SheetsConfig) -> Fault | None:
        chance = self._fault_chance.random()
        for fault, share in config.faults.items():
            chance -= share
            if chance < 0:
                self._counts.faults[fault] += 1
                return fault
        return None

    def _admit(self, metric: Metric, user: str) -> None:
        counts, now = self._counts, self._clock()
        minute = math.floor(now / MINUTE)
        limits = (
            (tokens.PROJECT, "minute", f"{metric}s_per_minute"),
            (user, "minute per user", f"{metric}s_per_minute_per_user"),
        )
        used: list[int] = []
        for who, words, name in limits:
            at, number = counts.minutes.get((metric, who), (minute, 0))
            used.append(number if at == minute else 0)
            if used[-1] >= getattr(self._config(), name):
                counts.violations[name] += 1
                raise SheetsError(429, _quota_words(metric, words), "RATE_LIMIT_EXCEEDED")
        for (who, _, _), number in zip(limits, used, strict=True):
            counts.minutes[metric, who] = (minute, number + 1)
            window = counts.windows.setdefault((metric, who), Window(MINUTE))
            window.add(Admission(now, Amount(1, 0, 0, 0)))

    # The API

    def _route(
        self, method: str, path: str, query: Sequence[tuple[str, str]], user: str, body: bytes | None
    ) -> tuple[_Work, Metric]:
        """The operation of a request, not yet executed, and its metric."""
        found = _PATH.fullmatch(path)
        id, structure, verb, single = found.groups() if found else ("", None, "", None)
        options = dict(query)
        match method, structure, verb, single:
            case "GET", None, None, None:
                return lambda: _described(self._open(id, user, "read")), "read"
            case "GET", None, None, str(text):
                return lambda: _got(self._open(id, user, "read"), text, options), "read"
            case "GET", None, "batchGet", None:
                ranges = [value for name, value in query if name == "ranges"]
                return lambda: _batch_got(self._open(id, user, "read"), ranges, options), "read"
            case "POST", None, "batchUpdate", None:
                return lambda: self._batch_update(self._open(id, user, "write"), _fields(body)), "write"
            case "POST", ":batchUpdate", None, None:
                return lambda: _grown(self._open(id, user, "write"), _fields(body)), "write"
            case _:
                raise SheetsError(404, "The requested URL was not found on this server.")

    def _open(self, id: str, user: str, metric: Metric) -> Spreadsheet:
        spreadsheet = self.spreadsheets.get(id)
        if spreadsheet is None:
            raise SheetsError(404, "Requested entity was not found.")
        if not spreadsheet.may(user, metric):
            raise SheetsError(403, "The caller does not have permission")
        return spreadsheet

    def _batch_update(self, spreadsheet: Spreadsheet, fields: dict[str, Any]) -> dict[str, Any]:
        option, data = fields.get("valueInputOption"), fields.get("data")
        if option not in ("RAW", "USER_ENTERED"):
            raise SheetsError(400, "'valueInputOption' is required but not specified")
        writes: list[tuple[Sheet, a1.Range, list[list[Cell]]]] = []
        # Validate all writes before executing any.
        for item in cast("list[Any]", data) if isinstance(data, list) else [None]:
            match item:
                case {"range": str(text), "values": values}:
                    area = parsed(text)
                    sheet = spreadsheet.find(area)
                    writes.append((sheet, area, sheet.check(area, values)))
                case _:
                    raise SheetsError(400, "Invalid value at 'data'")
        responses = [self._write(spreadsheet, *write, option == "USER_ENTERED") for write in writes]
        return {
            "spreadsheetId": spreadsheet.id,
            "totalUpdatedRows": sum(response["updatedRows"] for response in responses),
            "totalUpdatedCells": sum(response["updatedCells"] for response in responses),
            "responses": responses,
        }

    def _write(
        self, spreadsheet: Spreadsheet, sheet: Sheet, area: a1.Range, rows: list[list[Cell]], is_entered: bool
    ) -> dict[str, Any]:
        counts, cells = self._counts, 0
        for number, row in enumerate(rows, area.top or 1):
            same: list[bool] = []
            for column, value in enumerate(row, area.left or 1):
                if value is None:
                    continue  # null leaves a cell as it is
                counts.formulas += is_entered and isinstance(value, str) and value[:1] in ("=", "+")
                place = (spreadsheet.id, sheet.id, number, column)
                if place in counts.written:
                    same.append(counts.written[place] == value)
                counts.written[place] = value
                sheet.set(number, column, value)
                cells += 1
            counts.rows.add((spreadsheet.id, sheet.id, number))
            counts.again += bool(same) and all(same)
            counts.changed += not all(same)
        counts.cells += cells
        return {
            "spreadsheetId": spreadsheet.id,
            "updatedRange": str(area),
            "updatedRows": len(rows),
            "updatedCells": cells,
        }


def _described(spreadsheet: Spreadsheet) -> dict[str, Any]:
    return {
        "spreadsheetId": spreadsheet.id,
        "properties": {"title": spreadsheet.title, "locale": "en_US", "timeZone": "Etc/GMT"},
        "sheets": [sheet.properties(index) for index, sheet in enumerate(spreadsheet.sheets)],
        "spreadsheetUrl": f"https://docs.google.com/spreadsheets/d/{spreadsheet.id}/edit",
    }


def _got(spreadsheet: Spreadsheet, text: str, options: Mapping[str, str]) -> dict[str, Any]:
    if options.get("majorDimension", "ROWS") != "ROWS":
        raise SheetsError(400, "The simulator has rows only.")
    area = parsed(text)
    sheet = spreadsheet.find(area)
    clipped = sheet.clipped(area)
    values = sheet.values(clipped)
    match options.get("valueRenderOption", "FORMATTED_VALUE"):
        case "UNFORMATTED_VALUE" | "FORMULA":
            pass
        case "FORMATTED_VALUE":
            values = [[formatted(cell) for cell in row] for row in values]
        case other:
            raise SheetsError(400, f"Invalid value at 'value_render_option', \"{other}\"")
    found: dict[str, Any] = {"range": str(clipped), "majorDimension": "ROWS"}
    return found | ({"values": values} if values else {})


def _batch_got(spreadsheet: Spreadsheet, ranges: list[str], options: Mapping[str, str]) -> dict[str, Any]:
    found = [_got(spreadsheet, text, options) for text in ranges]
    return {"spreadsheetId": spreadsheet.id, **({"valueRanges": found} if found else {})}


def _grown(spreadsheet: Spreadsheet, fields: dict[str, Any]) -> dict[str, Any]:
    requests: list[Any] = fields.get("requests") or [None]
    changes: list[tuple[Sheet, str, int]] = []
    for item in requests:
        match item:
            case {
                "appendDimension": {"dimension": "ROWS" | "COLUMNS" as side, "length": int(length), **rest}
            }:
                id = cast("dict[str, Any]", rest).get("sheetId", 0)
                sheet = next((sheet for sheet in spreadsheet.sheets if sheet.id == id), None)
                if sheet is None or length < 1:
                    raise SheetsError(400, f"Invalid requests[0].appendDimension: No grid with id: {id}")
                changes.append((sheet, side, length))
            case _:
                raise SheetsError(400, "The simulator has appendDimension only.")
    for sheet, side, length in changes:
        if side == "ROWS":
            sheet.rows += length
        else:
            sheet.columns += length
    return {"spreadsheetId": spreadsheet.id, "replies": [{} for _ in requests]}


def _fields(body: bytes | None) -> dict[str, Any]:
    try:
        value: Any = json.loads(body or b"")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SheetsError(400, "Invalid JSON payload received. Unexpected token.")
    return cast("dict[str, Any]", value)


def _quota_words(metric: str, per: str) -> str:
    name = f"{metric.capitalize()} requests"
    return (
        f"Quota exceeded for quota metric '{name}' and limit '{name} per {per}' of service "
        f"'sheets.googleapis.com' for consumer 'project_number:1'."
    )
