"""Google Sheets: the client and the server that stands for Google, over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import jwt
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import sheets as bench
from penstock import App, Context, Fail, sheets, simulator, testing
from penstock.contract import bulks, jobs
from penstock.errors import (
    Conflict,
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
from penstock.sdk import signals
from penstock.sheets import Block, GoogleSheet, Part, Sheets, blocks, cell, spreadsheet_id, table_rows
from penstock.sheets import client as google_client
from penstock.simulator import Simulator
from penstock.sources import Header, a1
from penstock.sources.a1 import Range

IDEAS = [["title", "seconds"], ["Otters", 5], [], ["Herons", "", "late"], ["", ""]]


class Hand:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def place(**options: Any) -> AsyncGenerator[tuple[Simulator, Sheets]]:
    """A server with a spreadsheet, and a client with a service account."""
    async with simulator.serve(**options) as sim:
        sim.sheets.add("book", {"Ideas": IDEAS, "It's": [["x"]]}, title="Ideas of May")
        yield sim, client(sim, sim.sheets.service_account())


def client(sim: Simulator, credentials: Any) -> Sheets:
    return Sheets(credentials, base_url=sim.sheets_url, token_url=sim.token_url)


# --- A1 notation ------------------------------------------------------------------------------------------

RANGES = {
    "A1": Range(None, 1, 1, 1, 1),
    "b2:AA10": Range(None, 2, 2, 10, 27),
    "$B$9:A1": Range(None, 1, 1, 9, 2),
    "A:C": Range(None, None, 1, None, 3),
    "5:7": Range(None, 5, None, 7, None),
    "A5:C": Range(None, 5, 1, None, 3),
    "Ideas!5:5": Range("Ideas", 5, None, 5, None),
    "Ideas!B:B": Range("Ideas", None, 2, None, 2),
    "Ideas": Range("Ideas"),
    "Sheet1": Range("Sheet1"),
    "'A1'": Range("A1"),
    "Ideas!A2:B": Range("Ideas", 2, 1, None, 2),
    "'It''s a plan!'!C3": Range("It's a plan!", 3, 3, 3, 3),
}


@pytest.mark.parametrize("text", RANGES)
def test_ranges_are_read_and_written(text: str) -> None:
    assert a1.parse(text) == RANGES[text]
    assert a1.parse(str(RANGES[text])) == RANGES[text]


@pytest.mark.parametrize(
    "text", ["", "!A1", "Ideas!", "'Ideas'!", "a!b!c", "'open!A1", "Ideas!A0", "Ideas!A1:B2:C3"]
)
def test_invalid_ranges_are_rejected(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        a1.parse(text)
    assert caught.value.code == "invalid_range"


@given(st.integers(1, 18278))
def test_letters_of_columns(column: int) -> None:
    assert a1.number(a1.letters(column)) == column


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("https://docs.google.com/spreadsheets/d/1aB-c_9/edit#gid=7", ("1aB-c_9", 7)),
        ("https://docs.google.com/spreadsheets/u/0/d/1aB-c_9/edit?usp=sharing", ("1aB-c_9", None)),
        ("1aB-c_9", ("1aB-c_9", None)),
        ("https://docs.google.com/spreadsheets/d/e/2PACX-1v/pub", None),
        ("https://example.org/", None),
        ("../other", None),
    ],
)
def test_spreadsheet_urls_are_parsed(text: str, found: Any) -> None:
    """S90"""
    if found:
        assert spreadsheet_id(text) == found
    else:
        with pytest.raises(Invalid):
            spreadsheet_id(text)


# --- reading and writing ----------------------------------------------------------------------------------


async def test_a_sheet_is_read() -> None:
    """R0.1/sheet: what Google leaves out at the ends is no error; a range is cut to the sheet's size."""
    async with place() as (sim, google):
        found = await google.describe("https://docs.google.com/spreadsheets/d/book/edit#gid=1")
        assert (found.title, [tab.title for tab in found.tabs]) == ("Ideas of May", ["Ideas", "It's"])
        assert found.area(gid=1) == Range("It's", 1, 1, 1000, 26)
        assert found.area("'It''s'!A2:B9999") == Range("It's", 2, 1, 1000, 2)
        for wrong in ("Nowhere!A1", "A2000:B"):
            with pytest.raises(Invalid):
                found.area(wrong)
        assert await google.get("book", [Range("Ideas", 1, 1, 9, 3), Range("It's", 5, 1, 6, 1)]) == [
            [["title", "seconds"], ["Otters", 5], [], ["Herons", "", "late"]],
            [],
        ]
        numbered = [(number, cells) async for number, cells in google.rows("book", "Ideas!A2:C")]
        assert numbered == [(2, ["Otters", 5]), (3, []), (4, ["Herons", "", "late"])]
        header = Header(["title", "seconds"])
        rows = list(table_rows(header, 2, [["Otters", 5], [], ["Herons", "", "late"], ["#REF!", 1]]))
        assert [(row.number, row.data) for row in rows] == [
            (2, {"title": "Otters", "seconds": 5}), (4, {"title": "Herons"}), (5, {"title": "#REF!", "seconds": 1}),
        ]  # fmt: skip
        assert [row.problem.code if row.problem else None for row in rows] == [
            None,
            "too_many_cells",
            "cell_error",
        ]
        assert sim.stats()["sheets"]["violation_count"] == 0


@pytest.mark.slow
async def test_large_sheet_is_read_in_few_requests() -> None:
    async with place() as (sim, google):
        lines = [
            ["n", "text"],
            *([n, "x" * 100] for n in range(30_000)),
            *([] for _ in range(100_000)),
            ["last"],
        ]
        sim.sheets.add("large", {"one": lines})
        rows = [(number, cells) async for number, cells in google.rows("large") if cells]
        assert [cells for _, cells in rows] == [line for line in lines if line]
        assert (rows[0][0], rows[-1][0]) == (1, 130_002)
        seen = sim.stats()["sheets"]
        assert seen["largest_answer"] < sheets.LARGEST_REQUEST
        assert seen["calls"] == {"read": 1 + 6}


async def test_cells_are_written_raw_and_again_the_same() -> None:
    """R0.7/ordered-writes: no formula is made, and a write that is repeated changes nothing."""
    async with place() as (sim, google):
        written = blocks("Ideas", 3, {2: ["=1+1", 0.5], 4: [True, ""], 5: ["x", "y"]})
        assert [str(block.area) for block in written] == ["'Ideas'!C2:D2", "'Ideas'!C4:D5"]
        for _ in range(2):
            assert await google.write("book", written) == 6
        assert sim.sheets.values("book", "Ideas!A2:D5") == [
            ["Otters", 5, "=1+1", 0.5], [], ["Herons", "", True], ["", "", "x", "y"],
        ]  # fmt: skip
        seen = sim.stats()["sheets"]
        assert (seen["formulas"], seen["rows_written"], seen["cells_written"]) == (0, 3, 12)
        assert (seen["rows_written_again"], seen["rows_changed"]) == (3, 0)
        await google.write("book", blocks("Ideas", 3, {2: ["other", 0.5]}))
        assert sim.stats()["sheets"]["rows_changed"] == 1
        assert await google.write("book", []) == 0


async def test_a_write_is_all_or_nothing() -> None:
    """R0.7/ordered-writes"""
    async with place() as (sim, google):
        before = sim.sheets.values("book", "Ideas")
        for wrong in (Range("Nowhere", 1, 1), Range("Ideas", 1, 27), Range("Ideas", 1001, 1)):
            with pytest.raises(Invalid) as caught:
                await google.write("book", [Block(Range("Ideas", 9, 1), [["x"]]), Block(wrong, [["x"]])])
            assert caught.value.code == "sheets_invalid" and "Google Sheets: " in caught.value.message
        assert sim.sheets.values("book", "Ideas") == before
        [tab, _] = (await google.describe("book")).tabs
        await google.add_columns("book", tab, 2)
        assert await google.write("book", [Block(Range("Ideas", 1, 27), [["x", "y"]])]) == 2


async def test_no_request_is_larger_than_google_takes() -> None:
    """R0.7/request-size"""
    async with place() as (sim, google):
        with pytest.raises(TooLarge):
            await google.write("book", blocks("Ideas", 1, {n: ["x" * 40_000] for n in range(1, 60)}))
        assert "write" not in sim.stats()["sheets"]["calls"]
    async with place(sheets={"largest_request": 1000}) as (sim, google):
        with pytest.raises(TooLarge):
            await google.write("book", blocks("Ideas", 1, {1: ["x" * 1000]}))
        assert sim.stats()["sheets"]["violations"] == {"request_bytes": 1}


def test_values_as_cells() -> None:
    from decimal import Decimal

    values = [None, True, 5, 0.5, Decimal("0.05"), "=x", {"a": [1]}, 10**20, float("nan"), "x" * 60_000]
    assert [cell(value) for value in values] == [
        "", True, 5, 0.5, 0.05, "=x", '{"a": [1]}', "100000000000000000000", "NaN", "x" * 49_999 + "…",
    ]  # fmt: skip
    assert Part(Range("x", 2, 1, 5, 2)).next == Range("x", 2, 1, 5, 2)
    assert Part(Range("x", 2, 1, 5, 2)).after([["a"]]).next is None


# --- what Google refuses ----------------------------------------------------------------------------------


async def refusal(work: Any) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await work
    return caught.value


async def test_quotas_are_counted_by_the_minute() -> None:
    """Reads and writes apart, for the project and for each user; the next minute they are there again."""
    hand = Hand()
    quotas = {"reads_per_minute": 3, "reads_per_minute_per_user": 2, "writes_per_minute_per_user": 1}
    async with place(clock=hand, sheets=quotas) as (sim, google):
        other = client(sim, sim.sheets.user("ann@example.org"))
        for _ in range(2):
            await google.describe("book")
        error = await refusal(google.describe("book"))
        assert isinstance(error, Limited) and error.code == "sheets_limited"
        assert signals.of(error) == {"status": 429}
        await google.write("book", blocks("Ideas", 3, {2: ["x"]}))
        assert isinstance(await refusal(google.write("book", blocks("Ideas", 3, {2: ["x"]}))), Limited)
        await other.describe("book")
        assert isinstance(await refusal(other.describe("book")), Limited)
        hand.now += 60
        await other.describe("book")
        seen = sim.stats()["sheets"]
        assert seen["violations"] == {
            "reads_per_minute_per_user": 1, "writes_per_minute_per_user": 1, "reads_per_minute": 1,
        }  # fmt: skip
        assert seen["max_requests_60s"] == {"read": 3, "read_per_user": 2, "write": 1, "write_per_user": 1}
        assert seen["calls"] == {"read": 6, "write": 2} and seen["tokens"] == 2


@pytest.mark.parametrize(
    ("fault", "kind", "code"),
    [
        ("429", Limited, "sheets_limited"),
        ("500", Unavailable, "sheets_unavailable"),
        ("503", Unavailable, "sheets_unavailable"),
        ("timeout", TimedOut, "sheets_timeout"),
    ],
)
async def test_faults(fault: Any, kind: type[PenstockError], code: str) -> None:
    """What fails has changed nothing, except a write whose time was over: that is there."""
    async with place(sheets={"faults": {fault: 1}, "longest_seconds": 0.01}) as (sim, google):
        error = await refusal(google.write("book", blocks("Ideas", 3, {2: ["x"]})))
        assert type(error) is kind and error.code == code
        assert (signals.of(error) is not None) is (fault == "429")
        assert sim.sheets.values("book", "Ideas!C2") == ([["x"]] if fault == "timeout" else [])
        seen = sim.stats()["sheets"]
        assert seen["faults"] == {fault: 1} and seen["violation_count"] == 0


async def test_missing_permissions_are_reported() -> None:
    """Clear words for what a person has to do, with no secret in them."""
    async with place() as (sim, google):
        account = google.account or ""
        sim.sheets.spreadsheets["book"].writers = {"ann@example.org"}
        error = await refusal(google.write("book", blocks("Ideas", 3, {2: ["x"]})))
        assert isinstance(error, Forbidden) and error.code == "sheet_forbidden" and account in str(error)
        await google.describe("book")
        sim.sheets.spreadsheets["book"].readers = set()
        assert isinstance(await refusal(google.describe("book")), Forbidden)
        await client(sim, sim.sheets.user("ann@example.org")).describe("book")
        error = await refusal(google.describe("none"))
        assert isinstance(error, NotFound) and error.code == "sheet_missing" and account in str(error)


async def test_quota_error_403_becomes_429() -> None:
    google = Sheets({"token": "x"})
    body = {"error": {"message": "Rate Limit Exceeded", "errors": [{"reason": "userRateLimitExceeded"}]}}
    error = google._error_of(403, {}, body)
    assert isinstance(error, Limited) and signals.of(error) == {"status": 429}
    assert signals.of(google._error_of(503, {"retry-after": "7"}, {})) == {
        "status": 503,
        "retry_after_seconds": 7,
    }
    assert isinstance(google._error_of(302, {"location": "https://elsewhere.example"}, {}), Unavailable)


# --- credentials ------------------------------------------------------------------------------------------


async def test_tokens_are_cached_and_renewed() -> None:
    async with place() as (sim, google):
        for _ in range(3):
            await google.describe("book")
        assert sim.stats()["sheets"]["tokens"] == 1
        sim.sheets.tokens.expire()
        await google.describe("book")
        assert sim.stats()["sheets"]["tokens"] == 2
        user = client(sim, sim.sheets.user("ann@example.org"))
        await user.describe("book")
        assert (user.account, google.id != user.id) == (None, True)
        plain = client(sim, {"token": sim.sheets.tokens.issue("ann@example.org")})
        await plain.describe("book")
        sim.sheets.tokens.expire()
        error = await refusal(plain.describe("book"))
        assert isinstance(error, Unauthenticated) and error.code == "sheets_login"


async def test_rejected_credentials_are_reported(tmp_path: Path) -> None:
    async with place() as (sim, _):
        good = sim.sheets.service_account("other")
        stranger = {**good, "client_email": "stranger@example.org"}
        wrong_key = {**good, "private_key": sim.sheets.service_account("third")["private_key"]}
        user = sim.sheets.user("ann@example.org")
        for info, words in (
            (stranger, "account not found"),
            (wrong_key, "Invalid JWT Signature"),
            ({**user, "refresh_token": "no"}, "revoked"),
            ({**user, "client_secret": "no"}, "secret is invalid"),
        ):
            error = await refusal(client(sim, info).describe("book"))
            assert isinstance(error, Unauthenticated) and words in error.message
        late = jwt.encode(
            {"iss": good["client_email"], "aud": sim.token_url, "iat": 0, "exp": 9},
            good["private_key"],
            "RS256",
        )
        form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": late}
        async with httpx.AsyncClient() as http:
            assert (await http.post(sim.token_url, data=form)).json()["error"] == "invalid_grant"
        path = tmp_path / "account.json"
        path.write_text(json.dumps(good))
        await client(sim, path).describe("book")
    for wrong in ({"type": "service_account"}, {}, tmp_path / "none.json", {**good, "private_key": "x"}):
        with pytest.raises(Invalid) as caught:
            Sheets(wrong)
        assert caught.value.code == "invalid_credentials" and good["private_key"] not in str(caught.value)
    for url in ("http://sheets.example.org", "ftp://127.0.0.1", "https://user@sheets.googleapis.com", ""):
        with pytest.raises(Invalid):
            Sheets(good, base_url=url)


async def test_messages_contain_no_secret_and_redirects_are_not_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S75: a token goes to the address that was configured, and nowhere else."""
    heard: list[str] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        heard.append(request)
        answer = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /stolen\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        writer.write(answer)
        await writer.drain()
        writer.close()

    caplog.set_level(logging.DEBUG)
    async with place() as (sim, _):
        account = sim.sheets.service_account()
        server = await asyncio.start_server(elsewhere, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        google = Sheets(account, base_url=f"http://127.0.0.1:{port}", token_url=sim.token_url)
        error = await refusal(google.describe("book"))
        server.close()
        await server.wait_closed()
        gone = await refusal(google.describe("book"))
    [request] = heard
    token = request.lower().partition("authorization: bearer ")[2].partition("\r\n")[0]
    assert len(token) > 20 and isinstance(error, Unavailable) and isinstance(gone, Unavailable)
    said = f"{error!r} {error} {gone!r} {gone.__cause__!r} {google!r} {caplog.text}".lower()
    assert token not in said and account["private_key"].lower() not in said


# --- the server as a process ------------------------------------------------------------------------------


def test_simulate_command_serves_sheets(tmp_path: Path) -> None:
    """A CSV file is a spreadsheet, the account is in a file, and the counts are read over HTTP."""
    (tmp_path / "ideas.csv").write_text("title,seconds\nOtters,5\nHerons,2.5\n")
    command = [
        "simulate",
        "-o",
        "jsonl",
        "--sheet",
        tmp_path / "ideas.csv",
        "--credentials",
        tmp_path / "robot.json",
    ]
    options = ["--latency", "0", "--sheets-faults", "500=0.0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command, *options], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )  # fmt: skip
    try:
        assert process.stdout is not None
        urls = json.loads(process.stdout.readline())
        url = urls["sheets_url"]
        google = Sheets(tmp_path / "robot.json", base_url=url, token_url=f"{url}/token")

        async def read() -> list[Any]:
            return [cells async for _, cells in google.rows("ideas")]

        assert asyncio.run(read()) == [["title", "seconds"], ["Otters", 5], ["Herons", 2.5]]
        assert (tmp_path / "robot.json").stat().st_mode & 0o77 == 0

        def control(path: str, body: bytes | None = None) -> Any:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"{urls['control_url']}/{path}", body, timeout=10) as answer:
                return json.load(answer)

        assert control("stats")["sheets"]["calls"] == {"read": 2}
        assert control("sheets/new", b"a,b\n1,x\n") == {"id": "new", "values": [["a", "b"], [1, "x"]]}
        assert control("sheets/new?range=B2") == {"id": "new", "values": [["x"]]}
        assert control("service-account", b"")["type"] == "service_account"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


# --- bulk jobs --------------------------------------------------------------------------------------------


class Idea(pydantic.BaseModel):
    title: str
    seconds: int = 5


@dataclass
class Desk:
    """An app with a type of bulk job, on a database and a Sheets server of its own."""

    app: App
    ideas: Any
    sim: Simulator
    drain: testing.Drain
    clock: testing.Clock
    hand: Hand
    ran: list[str]

    async def finish(self, job: Any, seconds: float = 11) -> Any:
        """Let workers run, and time pass, until the job has ended."""
        for _ in range(60):
            await self.drain.arun(self.app)
            found = await job.aget()
            if found.finished_at is not None:
                return found
            self.clock.advance(seconds=seconds)
            self.hand.now += seconds
        raise AssertionError("the job has not ended")


@asynccontextmanager
async def desk(
    drain: testing.Drain, clock: testing.Clock, key: Any = ("title",), **options: Any
) -> AsyncGenerator[Desk]:
    hand, ran = Hand(), list[str]()
    app = App()

    @app.task(max_attempts=2, backoff=0)
    async def render(ctx: Context, title: str, seconds: int) -> dict[str, Any]:
        ran.append(title)
        if title == "bad":
            raise Fail("no such thing", code="no_thing")
        await ctx.acost("render", "0.25")
        return {"url": f"https://example.org/{title}.mp4", "seconds": seconds}

    @app.bulk(row=Idea, key=key)
    def ideas(row: Idea) -> Any:
        return render.step(row.title, row.seconds)

    async with simulator.serve(clock=hand, sheets=options) as sim:
        app.sheets = client(sim, sim.sheets.service_account())
        drain.use(app)
        async with app:
            yield Desk(app, ideas, sim, drain, clock, hand, ran)


@pytest.mark.slow
async def test_a_sheet_becomes_a_bulk_job(
    db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    """R0.1/sheet, R0.1/bad-rows, R0.1/origin: each row is done once, and its status, output, cost and error are beside it."""
    async with desk(drain, clock) as at:
        at.sim.sheets.add("book", {
            "Other": [["x"]],
            "Ideas": [[], ["title", "seconds", "note"], ["otters", 7, "=x"], ["bad"], [], ["herons", "long"], ["", 3], ["otters", 1]],
        })  # fmt: skip
        job = await at.ideas.options(budget=5).astart(GoogleSheet("book", "Ideas"))
        found = await at.finish(job)
        assert found.status == "failed"
        values = at.sim.sheets.values("book", "Ideas")
        assert values[1] == ["title", "seconds", "note", "status", "output", "cost", "error"]
        assert values[2] == ["otters", 7, "=x", "succeeded", "https://example.org/otters.mp4", 0.25]
        assert values[3] == ["bad", "", "", "failed", "", 0, "no_thing: no such thing"]
        assert values[4] == []
        assert values[5][3] == "refused" and str(values[5][6]).startswith(
            "bad_value: seconds: Input should be a valid integer"
        )
        assert values[6][3] == "refused" and str(values[6][6]).startswith("no_key: ")
        assert values[7][3:] == ["refused", "", 0, "duplicate_key: row 3 has the same key"]
        assert sorted(at.ran) == ["bad", "otters"]
        [bulk] = db.execute("select source from penstock.bulks")
        assert (bulk["source"]["id"], bulk["source"]["range"]) == ("book", "Ideas")
        rows = db.execute("select number from penstock.bulk_rows order by number")
        assert [row["number"] for row in rows] == [3, 4, 6, 7, 8]
        seen = at.sim.stats()["sheets"]
        assert seen["calls"] == {"read": 4, "write": 1}
        assert (seen["rows_written"], seen["rows_written_again"], seen["rows_changed"]) == (6, 0, 0)
        # The next job of the same sheet finds its columns, and does what is new.
        at.sim.sheets.spreadsheets["book"].find(Range("Ideas")).set(9, 1, "coots")
        again = await at.ideas.options(skip_done=True).astart(GoogleSheet("book", "Ideas"))
        await at.finish(again)
        values = at.sim.sheets.values("book", "Ideas")
        assert [row[3] for row in values[2:] if row] == [
            "succeeded",
            "failed",
            "refused",
            "refused",
            "refused",
            "succeeded",
        ]
        # What the first one wrote is still there.
        assert values[2] == ["otters", 7, "=x", "succeeded", "https://example.org/otters.mp4", 0.25]
        assert len(values[1]) == 7 and at.ran.count("otters") == 1 and "coots" in at.ran
        assert at.sim.stats()["sheets"]["violation_count"] == 0


@pytest.mark.slow
async def test_a_sheet_is_read_again(drain: testing.Drain, clock: testing.Clock) -> None:
    """R0.1/row-once: into a job that has not ended: what is new is added and written back, nothing is done twice."""
    async with desk(drain, clock) as at, at.app.connections() as where:
        sheet = at.sim.sheets.add("book", {"Ideas": [["title"], ["otters"], [""], ["herons"]]}).sheets[0]
        job = await at.ideas.astart(GoogleSheet("book"))
        await drain.arun(at.app)
        sheet.set(5, 1, "coots")
        await bulks.read_again(where, job_id=job.id)
        await bulks.read_again(where, job_id=job.id)
        assert (await at.finish(job)).status == "completed"
        assert sorted(at.ran) == ["coots", "herons", "otters"]
        assert [row[:2] for row in at.sim.sheets.values("book", "Ideas!A2:B5") if row] == [
            ["otters", "succeeded"], ["herons", "succeeded"], ["coots", "succeeded"],
        ]  # fmt: skip
        seen = at.sim.stats()["sheets"]
        assert (seen["rows_written_again"], seen["violation_count"]) == (0, 0)
        with pytest.raises(Conflict):
            await bulks.read_again(where, job_id=job.id)


async def test_sheet_is_checked_before_the_start(drain: testing.Drain, clock: testing.Clock) -> None:
    """What would be refused, and what it would cost, without a job; the quotas count."""
    async with desk(drain, clock) as at:
        at.sim.sheets.add(
            "book", {"Ideas": [["title", "seconds", "status"], ["otters", 7, "x"], ["herons", "long"], [1]]}
        )
        found = await asyncio.to_thread(at.ideas.check, GoogleSheet("book"))
        assert (found.rows, found.good) == (3, 1)
        assert [(p.line, p.column, p.code) for p in found.problems] == [
            (3, "seconds", "bad_value"), (4, "title", "bad_value"),
        ]  # fmt: skip
        forecast = await at.ideas.aforecast(GoogleSheet("book"))
        assert forecast.tasks == 1
        assert at.sim.stats()["sheets"]["calls"] == {"read": 4}


async def test_results_follow_moved_rows(drain: testing.Drain, clock: testing.Clock) -> None:
    """What is written goes to the row it is of, also after a sort, and nowhere if that is gone."""
    async with desk(drain, clock) as at:
        sheet = at.sim.sheets.add("book", {"Ideas": [["title"], ["otters"], ["herons"], ["coots"]]}).sheets[0]
        job = await at.ideas.astart(GoogleSheet("book"))
        await drain.arun(at.app)
        assert sorted(at.ran) == ["coots", "herons", "otters"]
        sheet.cells[:] = [["n", "title", "status"], [1, "otters"], [2, "new"], [3, "herons"]]
        found = await at.finish(job)
        assert found.status == "completed"
        assert [row[:3] for row in at.sim.sheets.values("book", "Ideas")] == [
            ["n", "title", "status"], [1, "otters", "succeeded"], [2, "new"], [3, "herons", "succeeded"],
        ]  # fmt: skip


async def test_missing_columns_are_added_to_the_sheet(drain: testing.Drain, clock: testing.Clock) -> None:
    async with desk(drain, clock, key=()) as at:
        sheet = at.sim.sheets.add("book", {"Ideas": [["title"], ["otters"]]}).sheets[0]
        sheet.columns = 2
        names = {"status": "State", "output": "Video"}
        job = await at.ideas.astart(GoogleSheet("book", write=names))
        await at.finish(job)
        assert sheet.columns == 5
        assert at.sim.sheets.values("book", "Ideas!A1:E1") == [["title", "State", "Video", "cost", "error"]]
        with pytest.raises(Invalid) as caught:
            await at.ideas.astart(GoogleSheet("book", write={"status": "title"}))
        assert caught.value.code == "duplicate_column"
        for wrong in ({"none": "x"}, {"status": "cost"}):
            with pytest.raises(Invalid):
                assert GoogleSheet("book", write=wrong).written


@pytest.mark.slow
async def test_refusals_and_faults_lose_nothing(
    drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R0.7/budgets, R0.7/backoff, R0.7/no-loss: 429s, errors and timeouts: nothing is lost or doubled, and no quota exceeded."""
    monkeypatch.setattr("penstock.sdk.sheet_results.MOST_ROWS", 20)
    monkeypatch.setattr("penstock.sheets.cells._FIRST_CELLS", 20)
    faults = {"429": 0.3, "500": 0.15, "timeout": 0.1}
    async with desk(drain, clock, faults=faults, longest_seconds=0.01) as at:
        rows = [["title"], *([f"idea {n}"] for n in range(100))]
        at.sim.sheets.add("book", {"Ideas": rows})
        job = await at.ideas.astart(GoogleSheet("book", "A1:A101"))
        found = await at.finish(job)
        assert found.status == "completed", found
        values = at.sim.sheets.values("book", "Ideas!A2:C101")
        assert values == [[f"idea {n}", "succeeded", f"https://example.org/idea {n}.mp4"] for n in range(100)]
        assert len(at.ran) == len(set(at.ran)) == 100
        seen = at.sim.stats()["sheets"]
        assert set(seen["faults"]) == set(faults)
        assert (seen["violation_count"], seen["rows_changed"], seen["formulas"]) == (0, 0, 0)


SILENT = {"latency": (3600, 3600), "longest_seconds": 7200}
"""Options of a server that does the work and does not answer."""


async def test_silent_server_is_given_up_and_the_write_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """R0.7/timeout: a write that was done without an answer is repeated and changes nothing."""
    assert google_client.LONGEST_SECONDS == 180
    async with place(sheets=SILENT) as (sim, google):
        written = blocks("Ideas", 3, {2: ["succeeded", 0.5], 4: ["failed", 0]})
        with monkeypatch.context() as shortened, pytest.raises(TimedOut) as caught:
            shortened.setattr(google_client, "LONGEST_SECONDS", 0.2)
            await google.write("book", written)
        assert caught.value.code == "sheets_timeout"
        sim.configure(sheets={})
        assert await google.write("book", written) == 4
        assert sim.sheets.values("book", "Ideas!C2:D4") == [["succeeded", 0.5], [], ["failed", 0]]
        seen = sim.stats()["sheets"]
        assert (seen["rows_written"], seen["rows_changed"], seen["violation_count"]) == (2, 0, 0)


async def test_server_that_never_ends_its_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """R0.7/timeout: bytes that keep arriving do not extend the timeout."""
    connections: list[asyncio.Task[None]] = []
    accepted = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(cast("asyncio.Task[None]", asyncio.current_task()))
        accepted.set()
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)

    monkeypatch.setattr(google_client, "LONGEST_SECONDS", 0.5)
    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(TimedOut) as caught:
            async with asyncio.timeout(30):
                await Sheets({"token": "ya29.x"}, base_url=url).describe("book")
        await accepted.wait()  # the client may give up before
        await asyncio.wait(connections)
    assert caught.value.code == "sheets_timeout"


@pytest.mark.slow
async def test_bulk_job_survives_a_silent_server(
    drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R0.7/timeout: the worker retries the requests that it gave up; no row is lost or doubled."""
    async with desk(drain, clock, **SILENT) as at:
        at.sim.sheets.add("book", {"Ideas": [["title"], ["otters"], ["herons"]]})
        job = await at.ideas.astart(GoogleSheet("book"))
        with monkeypatch.context() as shortened:
            shortened.setattr(google_client, "LONGEST_SECONDS", 0.2)
            await drain.arun(at.app)
        assert (await job.aget()).finished_at is None
        at.sim.configure(sheets={})
        found = await at.finish(job)
        assert (found.status, sorted(at.ran)) == ("completed", ["herons", "otters"])
        assert [row[1] for row in at.sim.sheets.values("book", "Ideas!A2:B3")] == ["succeeded"] * 2
        assert at.sim.stats()["sheets"]["rows_changed"] == 0


@pytest.mark.slow
async def test_permanent_sheet_errors_fail_with_a_clear_message(
    drain: testing.Drain, clock: testing.Clock
) -> None:
    async with desk(drain, clock) as at:
        at.sim.sheets.add("book", {"Ideas": [["title"], ["otters"]]})
        at.sim.sheets.add("empty", {"Ideas": []})
        at.sim.sheets.spreadsheets["book"].writers = set()
        for sheet, code in (
            (GoogleSheet("none"), "sheet_missing"),
            (GoogleSheet("book", "Nowhere!A1"), "unknown_sheet"),
            (GoogleSheet("empty"), "no_rows"),
            (GoogleSheet("book"), "sheet_forbidden"),
        ):
            job = await at.ideas.astart(sheet)
            found = await at.finish(job)
            assert found.status == "failed"
            async with at.app.connections() as where:
                [failed] = await jobs.tasks(where, job_id=job.id, status="failed")
            assert (failed.error_code, failed.kind in ("ideas.read", "ideas.write")) == (code, True)
        for source, account, code in (
            ({"type": "google-sheets", "id": "../x"}, at.app.sheets, "invalid_spreadsheet"),
            ({"type": "google-sheets", "id": "book", "write": [1]}, at.app.sheets, "invalid_spreadsheet"),
            (GoogleSheet("book").description, None, "no_sheets_account"),
        ):
            at.app.sheets = account
            async with at.app.connections() as where:
                tenant_id = await at.app.tenant_id(where)
                id = await bulks.start(where, type="ideas", rows=None, source=source, tenant_id=tenant_id)
                await at.finish(at.app.started(id))
                [failed] = await jobs.tasks(where, job_id=id, status="failed")
            assert failed.error_code == code


@pytest.mark.slow
def test_workers_that_are_killed_lose_and_double_nothing(db: testing.Database) -> None:
    """R0.7/budgets, R0.7/no-loss, R2.7/resume: every row once, written back, within the quotas, whatever dies; the benchmark has more rows."""
    figures = {
        figure.name: figure.value for figure in bench.pipeline(db.dsn, 90, workers=1, wait=0.5, lease=2)
    }
    zero = ("sheets_once", "sheets_written", "sheets_changed", "sheets_violations")
    assert {name: figures[name] for name in zero} == dict.fromkeys(zero, 0)
