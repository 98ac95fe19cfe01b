"""`penstock doctor`: the finding of each check."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import UUID

from penstock import doctor, testing
from penstock.doctor import Check
from penstock.postgres import db as database
from penstock.postgres import migrate

SUPABASE = Path(__file__).parents[1] / "docs/deploy/supabase.md"


def printed_sql(word: str) -> str:
    """The SQL block of the page about Supabase that has this word."""
    blocks = re.findall(r"^```sql\n(.*?)^```$", SUPABASE.read_text(), re.M | re.S)
    [found] = [block for block in blocks if word in block]
    return found


async def examine(db: testing.Database) -> dict[str, Check]:
    return {check.name: check for check in await doctor.examine(db.dsn)}


async def test_all_checks_run(db: testing.Database) -> None:
    found = await examine(db)
    assert list(found) == [
        "database", "durability", "clock", "transactions", "vacuum", "LISTEN", "schema",
        "exposure", "maintenance", "workers", "backlog", "chores", "webhooks", "operations", "prompts", "schedules", "providers", "audit log", "alerts",
    ]  # fmt: skip
    # The test server runs without fsync and autovacuum, and its clock function differs from the schema's.
    wrong = {name: check.state for name, check in found.items() if check.state != "ok"}
    assert wrong == {"durability": "fail", "vacuum": "warn", "schema": "fail"}
    assert all(check.action for check in found.values() if check.state != "ok")


async def test_unhandled_tasks_and_overdue_schedules_are_warnings(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    db.execute("select penstock.define_kind('audio')")
    db.execute("select penstock.report_worker('w1', '{\"kinds\": [\"text\"]}')")
    options = json.dumps({"tenant_id": str(tenant)})
    [job] = db.execute("select penstock.start_job('t', '{}', '[{\"kind\": \"audio\"}]', %s) as id", [options])
    assert "no worker handles audio" in (await examine(db))["workers"].finding
    db.execute("select penstock.pause_job(%s)", [job["id"]])
    db.execute(
        "insert into penstock.schedules (tenant_id, name, cron, job_type, next_run_at, created_at)"
        " values (%s, 'nightly', '* * * * *', 't', penstock._now(), penstock._now())",
        [tenant],
    )
    db.execute("select penstock.set_setting('maintenance', 'true')")
    clock.advance(hours=2)
    found = await examine(db)
    states = {
        name: found[name].state for name in ("workers", "backlog", "chores", "schedules", "maintenance")
    }
    assert set(states.values()) == {"warn"}
    assert "nightly was due 2 h ago" in found["schedules"].finding


async def test_unresponsive_worker_is_a_warning(db: testing.Database, clock: testing.Clock) -> None:
    db.execute("select penstock.report_worker('w1', '{}')")
    clock.advance(minutes=2)
    check = (await examine(db))["workers"]
    assert check.state == "warn"
    assert "w1 last responded" in check.finding


async def test_webhooks_and_operations_that_nobody_processes_are_warnings(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    db.execute("select penstock.take_webhook('stripe', 'evt_1', 'paid', '{}')")
    db.execute("select penstock.define_kind('convert')")
    options = json.dumps({"tenant_id": str(tenant)})
    db.execute("select penstock.start_job('t', '{}', '[{\"kind\": \"convert\"}]', %s)", [options])
    [task] = db.execute("select * from penstock.claim_tasks('w', 1, array['convert'])")
    db.execute("select penstock.begin_operation(%s, 'w', %s, 'slide:1', 60)", [task["id"], task["lease"]])
    found = await examine(db)
    assert (found["webhooks"].state, found["operations"].state) == ("ok", "ok")
    clock.advance(minutes=12)
    db.execute("select penstock.take_webhook('another', 'evt_2', 'paid', '{}')")
    found = await examine(db)
    assert (found["webhooks"].state, found["operations"].state) == ("warn", "warn")
    assert (
        "1 webhook not processed for more than 10 minutes, for example of stripe" in found["webhooks"].finding
    )
    assert "1 live operation, 1 past the deadline" in found["operations"].finding


async def test_provider_without_hosts_is_a_warning(db: testing.Database) -> None:
    """Only answers of a provider's own hosts slow it, and those of an unknown name are not known."""
    db.execute("select penstock.set_provider('openai/gpt'), penstock.set_provider('acme/voice')")
    check = (await examine(db))["providers"]
    assert check.state == "warn"
    assert "acme/voice" in check.finding and "openai" not in check.finding
    db.execute("""select penstock.set_provider('acme/voice', '{"hosts": ["api.acme.example"]}')""")
    assert (await examine(db))["providers"].state == "ok"


async def test_open_transaction_is_reported(db: testing.Database) -> None:
    with db.connect().transaction():
        assert "has been open for 0 s" in (await examine(db))["transactions"].finding


async def test_missing_schema_fails(server: testing.Server) -> None:
    name = server.create()
    try:
        checks = await doctor.examine(server.dsn(name))
    finally:
        server.drop(name)
    assert checks[-1].name == "schema"
    assert checks[-1].state == "fail"
    assert "penstock migrate" in (checks[-1].action or "")


async def test_unreachable_database_fails() -> None:
    [check] = await doctor.examine("postgresql://nobody@127.0.0.1:1/x")
    assert (check.name, check.state) == ("database", "fail")


def test_old_postgresql_versions_are_reported() -> None:
    """S17: doctor reports a server version whose row-level security can be bypassed."""
    found = {
        number: doctor._version(number, "").state
        for number in (140022, 150013, 150014, 160009, 170006, 180000, 190001)
    }
    assert found == {
        140022: "fail", 150013: "warn", 150014: "ok", 160009: "warn", 170006: "ok", 180000: "ok", 190001: "warn",
    }  # fmt: skip


async def test_grants_of_the_guide_to_custom_schemas_are_found_and_repaired(db: testing.Database) -> None:
    """They let everybody execute functions of the service. `migrate` revokes them; default privileges stay."""
    assert (await examine(db))["exposure"].state == "ok"
    for objects in ("tables", "routines", "sequences"):
        roles = "anon, authenticated, service_role"
        db.execute(f"grant all on all {objects} in schema penstock to {roles}")
        db.execute(f"alter default privileges in schema penstock grant all on {objects} to {roles}")
    found = (await examine(db))["exposure"]
    assert found.state == "fail" and "anybody can act as the service" in found.finding
    db.execute("set role anon; select penstock.backlog(); reset role")
    migrate.migrate(db.dsn)
    found = (await examine(db))["exposure"]
    assert (found.state, "default privileges" in found.finding) == ("warn", True)
    db.execute(printed_sql("alter default privileges"))
    assert (await examine(db))["exposure"].state == "ok"


def test_logins_of_the_page_act_only_as_what_they_are_for(conn: database.SyncConnection) -> None:
    """A worker acts as the service at once; the API's login has no right until it switches its role."""
    conn.execute(re.sub(r"(penstock_(?:worker|api))", r"\1_of_the_page", printed_sql("create role")).encode())
    row = conn.execute("""
        select pg_has_role('penstock_worker_of_the_page', 'service_role', 'usage') as worker,
          pg_has_role('penstock_api_of_the_page', 'authenticated', 'usage') as api,
          pg_has_role('penstock_api_of_the_page', 'authenticated', 'member') as may_switch,
          pg_has_role('penstock_api_of_the_page', 'service_role', 'member') as may_be_service""").fetchone()
    assert row == {"worker": True, "api": False, "may_switch": True, "may_be_service": False}


async def test_one_function_open_to_anon_is_found(db: testing.Database) -> None:
    db.execute("grant execute on function penstock.claim_tasks(text, integer, text[], integer) to anon")
    assert "execute 1 function," in (await examine(db))["exposure"].finding
