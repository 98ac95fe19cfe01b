"""The command line: providers, usage, plans, costs, prices, forecasts and budgets, on a real database."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock import testing
from tests.conftest import Command, CommandResult

NAME = "test/model"
MILLION = 1_000_000


@pytest.fixture
def priced(db: testing.Database, tenant: UUID) -> Callable[..., UUID]:
    """Starts jobs that call a provider with a price of 0.60 per million output tokens."""
    db.execute("select penstock.define_kind('call')")
    db.execute("select penstock.set_provider(%s, '{\"requests_per_minute\": 600}')", [NAME])
    db.execute("select penstock.set_price(%s, 'output_tokens', 0.60, '{\"per\": 1000000}')", [NAME])

    def start(count: int = 1, tokens: int = MILLION, **options: Any) -> UUID:
        specs = [{"kind": "call", "provider": NAME, "units": {"output_tokens": tokens}}] * count
        chosen = json.dumps({"tenant_id": str(tenant), **options})
        query = "select penstock.start_job('publish', '{}', %s, %s) as id"
        return db.execute(query, [json.dumps(specs), chosen])[0]["id"]

    return start


def run_all(db: testing.Database) -> None:
    for task in db.execute("select id from penstock.claim_tasks('test', 1000)"):
        db.execute("select penstock.complete_task(%s, 'test')", [task["id"]])


def lines(answer: CommandResult) -> list[list[str]]:
    assert answer.code == 0, answer.err
    return [line.split() for line in answer.out.splitlines()]


# Providers


def test_providers_are_listed_with_current_usage(
    db: testing.Database, penstock: Command, priced: Callable[..., UUID]
) -> None:
    assert penstock("limits", "set", NAME, "concurrency=2", "requests_per_hour=1000").code == 0
    priced(3)
    db.execute("select penstock.claim_tasks('test', 10)")
    [found] = [line for line in penstock("limits", "-o", "json").json if line["name"] == NAME]
    assert (found["running"], found["concurrency"], found["waiting"]) == (2, 2, 1)
    assert (found["requests_minute"], found["requests_per_minute"]) == (2, 600)
    head, *rows = lines(penstock("limits"))
    assert head[:3] == ["NAME", "TENANT", "STATE"]
    assert [NAME, "-", "active", "2/600", f"{2 * MILLION:,}/∞", "2/2", "1"] in [row[:7] for row in rows]
    assert penstock("limits") == penstock("limits", "ls")


def test_terminal_shows_usage_bars(
    db: testing.Database, penstock: Command, priced: Callable[..., UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.output.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    penstock("limits", "set", NAME, "requests_per_minute=4")
    priced(2)
    run_all(db)
    assert "████░░░░ 2/4" in penstock("limits").out
    monkeypatch.setenv("COLUMNS", "80")
    narrow = penstock("limits").out
    assert " 2/4 " in narrow and "TOKENS" not in narrow and "…" not in narrow
    monkeypatch.setenv("COLUMNS", "200")
    penstock("usage", "limit", "test", "tokens", 2 * MILLION)
    assert "████████ 2,000,000" in penstock("usage", "show", "test").out


def test_provider_is_set_for_all_tenants_or_one(penstock: Command, tenant: UUID) -> None:
    values = ("requests_per_minute=5", "features=chat,json", "status=maintenance", "tokens_per_hour=none")
    made = penstock("limits", "set", NAME, *values, "-o", "json").json
    assert (made["requests_per_minute"], made["features"], made["state"]) == (
        5,
        ["chat", "json"],
        "maintenance",
    )
    assert made["tokens_per_hour"] is None
    own = penstock("limits", "set", NAME, "concurrency=1", "--tenant", "test", "-o", "json").json
    assert (own["tenant_id"], own["concurrency"]) == (str(tenant), 1)


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (("set", NAME, "speed"), (2, "usage")),
        (("set", NAME, "speed=3"), (2, "unknown_field")),
        (("set", NAME, "concurrency=many"), (2, "invalid_provider")),
        (("set", "openai"), (2, "invalid_provider")),
        (("set", NAME, "--tenant", "nobody"), (5, "unknown_tenant")),
        (("open", "no/such"), (2, "unknown_provider")),
        (("events", "no/such"), (5, "unknown_provider")),
        (("opne", NAME), (2, "usage")),
    ],
)
def test_invalid_provider_arguments_are_rejected(
    penstock: Command, arguments: tuple[str, ...], refusal: tuple[int, str]
) -> None:
    assert penstock("limits", *arguments, "-o", "json").refusal == refusal


def test_closed_provider_is_opened_and_events_are_listed(db: testing.Database, penstock: Command) -> None:
    penstock("limits", "set", NAME)
    signal = '{"status": 429, "exhausted": true, "message": "\\u001b[31mno money"}'
    db.execute("select penstock.report_provider(%s, %s)", [NAME, signal])
    assert "quota exhausted" in (out := penstock("limits").out) and "no money" not in out
    assert penstock("limits", "open", NAME).err == f"Opened {NAME}.\n"
    events = penstock("limits", "events", NAME, "-n", 2)
    assert [row[2] for row in lines(events)] == ["EVENT", "opened", "exhausted"]
    last = events.err.split("--before ")[1].strip()
    older = penstock("limits", "events", NAME, "--before", last, "-o", "json").json
    assert [event["event"] for event in older] == ["changed"]


# Usage


def test_usage_shows_a_tenants_meters(db: testing.Database, penstock: Command, tenant: UUID) -> None:
    assert "No limits and no usage." in penstock("usage").err
    penstock("plans", "assign", "test", "free")
    db.execute(
        "select penstock.record_usage('{\"pages\": 12.5}', p_tenant_id => %s, p_action => 'ocr')", [tenant]
    )
    shown = penstock("usage", "test")
    assert shown == penstock("usage") == penstock("usage", "show", tenant)
    [pages] = [row for row in lines(shown) if row[:1] == ["pages"]]
    assert pages[:5] == ["pages", "12.5", "0", "100", "87.5"]
    status = penstock("usage", "test", "-o", "json").json
    assert (status["plan"], status["over_limit"]) == ("free", False)
    assert [line["used"] for line in status["usage"] if line["meter"] == "pages"] == ["12.5"]
    table = list(csv.DictReader(io.StringIO(penstock("usage", "test", "-o", "csv").out)))
    assert {line["meter"]: line["left"] for line in table}["pages"] == "87.5"
    [day] = penstock("usage", "days", "test", "-o", "json").json
    assert (day["action"], day["meter"], day["amount"]) == ("ocr", "pages", "12.5")
    assert penstock("usage", "days", "test", "--until", "2001-01-01", "-o", "json").json == []
    penstock("tenants", "create", "other")
    assert penstock("usage", "-o", "json").refusal == (2, "tenant_missing")


def test_tenant_limits_and_allowances_are_set(db: testing.Database, penstock: Command, tenant: UUID) -> None:
    penstock("plans", "assign", "test", "free")

    def limit(*arguments: object) -> Any:
        return penstock("usage", *arguments, "-o", "json").json["limit"]

    assert limit("limit", "test", "pages", "7.5") == "7.5"
    assert limit("limit", "test", "pages", "none") is None
    assert limit("limit", "test", "pages", "plan") == "100"
    assert limit("allow", "test", "pages", 5, "--until", "2999-12-31", "--reason", "sorry") == "105"
    for _ in range(2):
        assert limit("allow", "test", "pages", 10, "--purchase", "--key", "order-7") == "115"
    db.execute(
        "select penstock.record_usage('{\"pages\": 3}', p_tenant_id => %s, p_action => 'ocr')", [tenant]
    )
    assert penstock("usage", "reset", "test", "pages", "-o", "json").refusal == (2, "confirmation_missing")
    assert penstock("usage", "reset", "test", "pages", "--yes", "--reason", "a gift").err == (
        "Reset from 3 pages to 0.\n"
    )
    made = penstock("usage", "meter", "stamps", "--period", "day", "--mode", "observe", "-o", "json").json
    assert made == {"name": "stamps", "period": "day", "mode": "observe", "comment": ""}
    assert made in penstock("usage", "meters", "-o", "json").json


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (("nobody",), (5, "unknown_tenant")),
        (("days", "test", "--since", "yesterday"), (2, "usage")),
        (("limit", "test", "pages", "many"), (2, "usage")),
        (("limit", "test", "pages", "NaN"), (2, "usage")),
        (("limit", "test", "smell", "1"), (2, "unknown_meter")),
        (("limit", "test", "pages", "1e16"), (2, "invalid_limit")),
        (("allow", "test", "pages", "5"), (2, "invalid_allowance")),
        (("allow", "test", "pages", "0", "--purchase"), (2, "invalid_limit")),
        (("reset", "test", "smell", "--yes"), (2, "unknown_meter")),
        (("meter", "No Name"), (2, "invalid_meter")),
        (("meter", "stamps", "--period", "year"), (2, "usage")),
    ],
)
@pytest.mark.usefixtures("tenant")
def test_invalid_usage_arguments_are_rejected(
    penstock: Command, arguments: tuple[str, ...], refusal: tuple[int, str]
) -> None:
    assert penstock("usage", *arguments, "-o", "json").refusal == refusal


# Plans


def test_plans_are_created_changed_and_assigned(
    db: testing.Database, penstock: Command, tenant: UUID
) -> None:
    assert [plan["name"] for plan in penstock("plans", "-o", "json").json] == [
        "free",
        "basic",
        "premium",
        "enterprise",
        "unlimited",
    ]
    options = (
        "--title",
        "Pro",
        "--price",
        "19.90",
        "--currency",
        "EUR",
        "--weight",
        "3",
        "--features",
        "hd,4k",
    )
    made = penstock("plans", "set", "pro", "tokens=1000", "pages=0.5", *options, "-o", "json").json
    assert made["limits"] == {"tokens": "1000", "pages": "0.5"}
    assert (made["price"], made["currency"], made["features"]) == ("19.9", "EUR", ["hd", "4k"])
    changed = penstock("plans", "set", "pro", "pages=none", "files=7", "-o", "json").json
    assert changed["limits"] == {"tokens": "1000", "pages": None, "files": "7"}
    assert changed["title"] == "Pro"
    assert "19.90 EUR" in penstock("plans", "ls").out
    assert penstock("plans", "assign", "test", "pro").code == 0
    [row] = db.execute("select plan, weight from penstock.tenants where id = %s", [tenant])
    assert row == {"plan": "pro", "weight": 3}
    assert penstock("plans", "assign", "test", "none", "-o", "json").json["plan"] == "unlimited"
    assert penstock("plans", "set", "pro", "--inactive", "-o", "json").json["is_active"] is False
    for arguments, refusal in {
        ("assign", "test", "pro"): (5, "unknown_plan"),
        ("assign", "nobody", "free"): (5, "unknown_tenant"),
        ("set", "pro", "smell=1"): (2, "unknown_meter"),
        ("set", "pro", "tokens=x"): (2, "usage"),
        ("set", "pro", "--price", "-1"): (2, "invalid_plan"),
        ("set", "Pro Plan"): (2, "invalid_plan"),
    }.items():
        assert penstock("plans", *arguments, "-o", "json").refusal == refusal


# Costs


def test_costs_are_summed_by_each_field(
    db: testing.Database, penstock: Command, priced: Callable[..., UUID], tenant: UUID
) -> None:
    assert penstock("costs").err == "No costs.\n"
    job_id = priced(2)
    run_all(db)
    [day] = penstock("costs", "-o", "json").json
    assert (day["amount"], day["lines"]) == ("1.2", 2)
    text = penstock("costs")
    assert [row[1:] for row in lines(text)[1:]] == [["1.20", "USD", "2"]] * 2
    assert lines(text)[-1][0] == "total"
    for by, key in (("provider", NAME), ("type", "inference"), ("job", str(job_id)), ("tenant", str(tenant))):
        [found] = penstock("costs", "--by", by, "--tenant", "test", "-o", "json").json
        assert (found["key"], found["amount"]) == (key, "1.2")
    assert lines(penstock("costs", "ls", "--by", "tenant"))[1][0] == "test"
    assert penstock("costs", "--until", "2001-01-01", "-o", "json").json == []
    table = list(csv.DictReader(io.StringIO(penstock("costs", "--by", "job", "-o", "csv").out)))
    assert table == [{"key": str(job_id), "amount": "1.2", "unit_count": str(2 * MILLION), "lines": "2"}]
    assert penstock("costs", "--by", "weather", "-o", "json").refusal == (2, "usage")
    assert penstock("costs", "--since", "31.12.", "-o", "json").refusal == (2, "usage")


def test_estimates_are_reconciled_with_a_bill(
    db: testing.Database, penstock: Command, priced: Callable[..., UUID], tmp_path: Path
) -> None:
    priced(2)
    run_all(db)  # Two successes without a report: 1.20 USD estimated.
    month = db.execute("select to_char(penstock._now() at time zone 'utc', 'YYYY-MM') as month")[0]["month"]
    export = tmp_path / "usage.csv"
    export.write_text(
        f"date,line_item,cost\n{month}-01,model,0.5\n{month}-02,model,0.25\n{month}-02,model,0.15\n"
    )
    columns = ("--day", "date", "--amount", "cost", "--item", "line_item")
    imported = penstock("costs", "import", "test", export, *columns)
    assert (imported.out, imported.err) == ("Imported 2 lines.\n", "")
    [line] = penstock("costs", "differences", month, "-o", "json").json
    assert (line["booked"], line["estimated"], line["billed"], line["difference"]) == (
        "1.2",
        "1.2",
        "0.9",
        "0.3",
    )
    done = penstock("costs", "reconcile", "test", month)
    assert lines(done)[1] == ["test", "0.90", "USD", "0.90", "USD", "0.90", "USD", "0.00", "USD"]
    assert "Corrected 2 estimates." in done.err
    assert lines(penstock("costs"))[-1][1] == "0.90"
    assert penstock("costs", "import", "test", export, "-o", "json").refusal == (2, "usage")
    export.write_text("day,amount\nsoon,1\n")
    assert penstock("costs", "import", "test", export, "-o", "json").refusal == (2, "usage")
    assert penstock("costs", "differences", "March", "-o", "json").refusal == (2, "usage")
    assert penstock("costs", "reconcile", "other", month, "-o", "json").refusal == (6, "no_bill")


def test_ledger_entry_is_corrected(
    db: testing.Database, penstock: Command, priced: Callable[..., UUID]
) -> None:
    job_id = priced()
    run_all(db)
    [line] = penstock("costs", "lines", "--job", job_id, "-o", "json").json
    assert (line["amount"], line["base_amount"], line["meter"]) == ("0.6", "0.6", "output_tokens")
    made = penstock("costs", "correct", line["id"], "-0.25", "--reason", "a rebate", "-o", "json").json
    rows = lines(penstock("costs", "lines", "-n", 1))
    assert rows[1][0] == str(made["id"])
    assert rows[1][-4:] == ["corrects", f"{line['id']}:", "a", "rebate"]
    assert "-0.25 USD" in penstock("costs", "lines").out
    assert lines(penstock("costs"))[-1][1] == "0.35"
    reason = ("--reason", "x", "-o", "json")
    assert penstock("costs", "correct", 10**9, 1, *reason).refusal == (5, "unknown_cost")
    assert penstock("costs", "correct", line["id"], "much", *reason).refusal == (2, "usage")
    assert penstock("costs", "correct", line["id"], 1, "-o", "json").refusal == (2, "usage")


# Prices


def test_prices_are_set_listed_and_compared(penstock: Command, tenant: UUID) -> None:
    assert penstock("prices").err == "No prices.\n"
    penstock("limits", "set", NAME)
    penstock("limits", "set", "other/model")
    assert (
        penstock("prices", "rate", "EUR", "1.25", "--from", "2020-01-01", "-o", "json").json["rate"] == "1.25"
    )
    assert lines(penstock("prices", "rates"))[1][:2] == ["EUR", "1.25"]
    options = ("--per", MILLION, "--currency", "EUR", "--from", "2026-01-01", "--variant", "batch")
    assert penstock("prices", "set", NAME, "input_tokens", "0.15", *options, "--type", "text").code == 0
    penstock("prices", "set", NAME, "images", "0.04", "--tenant", "test")
    batch, own = penstock("prices", "-o", "json").json
    assert (batch["amount"], batch["variant"], batch["cost_type"]) == ("0.00000015", "batch", "text")
    assert batch["valid_from"] == "2026-01-01T00:00:00Z"
    assert (own["amount"], own["tenant_id"]) == ("0.04", str(tenant))
    text = penstock("prices", "ls", "--provider", NAME).out
    assert "0.15 EUR per 1,000,000" in text and "0.04 USD per unit" in text
    penstock("prices", "set", "other/model", "input_tokens", "0.1", "--per", MILLION, "--variant", "batch")
    compared = penstock("prices", "compare", "input_tokens", "-o", "json").json
    assert [(rate["place"], rate["provider"], rate["base_amount"]) for rate in compared] == [
        (1, "other/model", "0.0000001"),
        (2, NAME, "0.0000001875"),
    ]
    assert penstock("prices", "set", "other/model", "input_tokens", "none", "--variant", "batch").code == 0
    assert len(penstock("prices", "compare", "input_tokens", "-o", "json").json) == 1
    assert len(penstock("prices", "--all", "-o", "json").json) == 4
    for arguments, refusal in {
        ("set", "no/such", "images", "1"): (2, "unknown_provider"),
        ("set", NAME, "smell", "1"): (2, "unknown_meter"),
        ("set", NAME, "images", "dear"): (2, "usage"),
        ("set", NAME, "images", "1", "--per", "7"): (2, "invalid_price"),
        ("set", NAME, "images", "1", "--currency", "ZZZ"): (2, "unknown_currency"),
        ("set", NAME, "images", "1", "--from", "soon"): (2, "usage"),
        ("set", NAME, "input_tokens", "1", "--variant", "batch", "--from", "2026-01-01"): (6, "price_exists"),
        ("rate", "USD", "1"): (2, "unknown_currency"),
        ("rate", "EUR", "0"): (2, "invalid_rate"),
    }.items():
        assert penstock("prices", *arguments, "-o", "json").refusal == refusal


# Jobs


def test_forecast_accepts_a_file_or_a_running_job(
    penstock: Command, priced: Callable[..., UUID], tenant: UUID, tmp_path: Path
) -> None:
    penstock("usage", "limit", "test", "tokens", MILLION)
    tasks = [{"kind": "call", "provider": NAME, "units": {"output_tokens": MILLION}}] * 2
    document = {"type": "publish", "tasks": tasks, "options": {"tenant_id": str(tenant), "budget": 1.0}}
    file = tmp_path / "job.json"
    file.write_text(json.dumps(document))
    found = penstock("jobs", "forecast", file, "-o", "json").json
    assert (found["tasks"], found["cost"]["high"], found["budget"]["fits"]) == (2, "1.2", False)
    text = penstock("jobs", "forecast", file, "--tenant", "test")
    assert text.code == 0
    assert " to 1.20 USD" in text.out and "1.00 USD may not be enough" in text.out
    assert "2,000,000 of 1,000,000 tokens left: does not fit" in text.out
    assert "unknown: no task of this kind has ended yet" in text.out
    assert penstock("jobs", "ls", "-o", "json").json == []
    job_id = priced(2)
    assert penstock("jobs", "forecast", job_id, "-o", "json").json["cost"]["high"] == "1.2"
    assert penstock("jobs", "forecast", uuid4(), "-o", "json").refusal == (5, "unknown_job")
    for content in (
        "",
        "[]",
        "{}",
        '{"type": "t"}',
        '{"type": "t", "tasks": [], "options": {"budget": "x"}}',
    ):
        file.write_text(content)
        assert penstock("jobs", "forecast", file, "-o", "json").refusal == (2, "usage")
    file.write_text(json.dumps({**document, "tasks": [{"kind": "unknown"}]}))
    assert penstock("jobs", "forecast", file, "-o", "json").refusal == (2, "unknown_kind")
    assert penstock("jobs", "forecast", tmp_path / "none.json", "-o", "json").refusal == (2, "usage")


def test_why_explains_waiting_tasks(
    db: testing.Database, penstock: Command, priced: Callable[..., UUID]
) -> None:
    penstock("limits", "set", NAME, "requests_per_minute=1")
    job_id = priced(3)
    db.execute("select penstock.claim_tasks('test', 10)")
    rows = lines(penstock("jobs", "why", job_id))
    assert len(rows) == 3
    assert rows[2][2:5] == ["waiting:", "test/model", "requests,"] and rows[2][-3:] == ["2nd", "in", "line"]
    [found] = penstock("jobs", "why", job_id, rows[2][0], "-o", "json").json
    assert (found["waits_for"], found["place"]) == ("requests", 2)
    assert len(penstock("jobs", "why", job_id, "-n", 1, "-o", "json").json) == 1
    assert penstock("jobs", "why", uuid4(), "-o", "json").refusal == (5, "unknown_job")
    assert penstock("jobs", "why", job_id, 10**9, "-o", "json").refusal == (5, "unknown_task")
    penstock("jobs", "cancel", job_id)
    assert penstock("jobs", "why", job_id).err == "No task is waiting.\n"


def test_budget_can_be_raised(db: testing.Database, penstock: Command, priced: Callable[..., UUID]) -> None:
    job_id = priced(2, budget="0.6")
    run_all(db)
    run_all(db)
    db.execute("select penstock.upkeep()")
    assert "budget: 0.6 of 0.6 USD spent" in penstock("jobs", "ls").out
    assert penstock("jobs", "budget", job_id, "1.2").err == "Budget: 1.20, 0.60 spent, 0.00 reserved.\n"
    assert penstock("jobs", "budget", job_id, "none", "-o", "json").json == {
        "job_id": str(job_id),
        "cost": "0.6",
        "held": "0",
        "budget": None,
    }
    assert penstock("jobs", "budget", job_id, "much", "-o", "json").refusal == (2, "usage")
    assert penstock("jobs", "budget", uuid4(), "1", "-o", "json").refusal == (5, "unknown_job")
    run_all(db)
    assert penstock("jobs", "budget", job_id, "1", "-o", "json").refusal == (6, "job_ended")


# CSV


def test_csv_is_safe_to_open_in_a_spreadsheet(penstock: Command) -> None:
    penstock("tenants", "create", '=HYPERLINK("x")')
    penstock("tenants", "create", "a,b")
    table = list(csv.DictReader(io.StringIO(penstock("tenants", "ls", "-o", "csv").out)))
    assert [line["name"] for line in table] == ['\'=HYPERLINK("x")', "a,b"]
    assert penstock("jobs", "ls", "-o", "csv") == CommandResult(0, "", "")
