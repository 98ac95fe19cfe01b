"""Users of notes: profiles, tiers, counted calls, waitlist, audit lines, erasure."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.apps.notes.app import SYNCED, app
from tests.apps.notes_library import DENIED, KEY, Library, filled, join

pytestmark = [pytest.mark.every_postgres, pytest.mark.own_sql(app)]


def test_custom_ideas_and_devices_count_and_their_gates_observe_then_enforce(own_library: Library) -> None:
    """A gate in observe mode lets the eleventh idea pass and records it; in enforce mode it is refused with 402."""
    library = own_library
    for n in range(11):
        assert library.push("custom_ideas", id=f"i{n}", name=f"idea {n}")["outcome"] == "applied"
    assert library.used("custom_ideas") == 11
    blocked = (
        "select count(*) from penstock.usage_events where details ? 'would_have_blocked' and tenant_id = %s"
    )
    assert library.one(blocked, library.tenant) >= 1
    library.push("custom_ideas", id="i0", name="idea 0", deleted=True)
    library.push("custom_ideas", id="i1", name="idea 1", deleted=True)
    assert library.used("custom_ideas") == 9
    library.db.execute("select penstock.set_gate('custom_ideas_limit', '{\"mode\": \"enforce\"}')")
    assert library.push("custom_ideas", id="i0", name="back", deleted=False)["outcome"] == "applied"
    row = library.push("custom_ideas", id="i20", name="too many")
    assert (row["outcome"], row["code"]) == ("refused", "upgrade_required")
    assert library.used("custom_ideas") == 10
    library.db.execute("select penstock.set_gate('max_devices', '{\"mode\": \"enforce\"}')")
    for _ in range(2):
        library.call(KEY, "prf-v1", "x")
    assert library.refused(KEY, "prf-v1", "x") == ("PT402", "upgrade_required")


def test_profile_shows_intent_and_effective_tier_apart(own_library: Library, clock: testing.Clock) -> None:
    """R2.14/billing-intent: after a subscription has ended user_tier stays pro and effective_tier is free; users
    change only display_name and profile_bio of their own row."""
    library = own_library
    [row] = library.call("select * from notes.user_profiles")
    assert (row["user_tier"], row["effective_tier"], row["month_limit"], row["month_usage"]) == (
        "free",
        "free",
        50,
        0,
    )
    assert row["percent_use"] == 0 and row["stripe_customer_id"] is None
    library.call("update notes.user_profiles set display_name = 'Ada', profile_bio = 'reads'")
    [row] = library.call("select display_name, name, profile_bio from notes.user_profiles")
    assert dict(row) == {"display_name": "Ada", "name": "Ada", "profile_bio": "reads"}
    for column, value in (("month_limit", "9999"), ("user_tier", "'pro'"), ("effective_tier", "'pro'")):
        assert library.refused(f"update notes.user_profiles set {column} = {value}")[0] == DENIED
    other = join(library.db, "eve")
    assert len(other.call("select * from notes.user_profiles")) == 1
    assert other.call("update notes.user_profiles set display_name = 'x' returning id") != []
    assert library.call("select display_name from notes.user_profiles")[0]["display_name"] == "Ada"

    library.db.execute("update notes.user_profiles set month_limit = 60 where user_id = %s", [library.user])
    library.db.execute(
        "update notes.user_profiles set allocation_override = 5, allocation_override_expires_at = current_date + 1"
        " where user_id = %s", [library.user],
    )  # fmt: skip
    [row] = library.call("select * from notes.user_profiles")
    assert (row["month_limit"], row["allocation_override"]) == (60, 5)
    library.db.execute("update notes.user_profiles set user_tier = 'pro' where user_id = %s", [library.user])
    library.db.execute(
        "update penstock.tenants set plan_until = penstock.clock() + interval '1 day', plan_after = 'free' where id = %s",
        [library.tenant],
    )
    [row] = library.call("select user_tier, effective_tier from notes.user_profiles")
    assert dict(row) == {"user_tier": "pro", "effective_tier": "pro"}
    clock.advance(days=2)
    [row] = library.call("select user_tier, effective_tier from notes.user_profiles")
    assert dict(row) == {"user_tier": "pro", "effective_tier": "free"}


def test_managed_calls_are_counted_once_with_tokens_prompt_and_cost(library: Library) -> None:
    """R2.1/events: a call leaves a line with tokens and one with its prompt; a call that is given up counts nothing."""
    begun = library.one("select notes.begin_call(%s, 'discover', 'k1')", library.user)
    assert begun["tenant_id"] == str(library.tenant)
    end = "select notes.end_call(%s, %s, 'discover', 'anthropic/claude-haiku-4-5', %s, %s)"
    details = Jsonb({"prompt_name": "discover_canon", "prompt_version": 0, "fail_open": False})
    tokens = Jsonb({"input_tokens": 1000, "output_tokens": 100})
    for _ in range(2):
        library.one(end, library.tenant, begun["hold_id"], tokens, details)
    assert library.used("managed_ai") == 1
    [day] = library.call("select * from notes.ai_usage_daily")
    assert (day["action_type"], day["request_count"], day["input_tokens"], day["output_tokens"]) == (
        "discover",
        1,
        1000,
        100,
    )
    cost = library.one(
        "select sum(base_amount) from penstock.cost_entries where tenant_id = %s", library.tenant
    )
    assert cost == pytest.approx(Decimal("0.0015"))
    events = library.db.execute(
        "select prompt_name from notes.ai_usage_events where user_id = %s", [library.user]
    )
    assert {row["prompt_name"] for row in events} == {"discover_canon"}
    assert library.refused("select * from notes.ai_usage_events")[0] == DENIED
    assert library.refused("select notes.begin_call(auth.uid(), 'discover', 'k')")[0] == DENIED
    begun = library.one("select notes.begin_call(%s, 'transcribe', 'k2')", library.user)
    library.one("select penstock.release_hold(%s)", begun["hold_id"])
    assert library.used("managed_ai") == 1
    library.one(
        "select notes.upsert_ai_usage(%s, 'discover_batch', (penstock.clock() at time zone 'utc')::date, 5, 5)",
        library.user,
    )
    assert library.used("managed_ai") == 2
    with pytest.raises(psycopg.Error) as caught:
        library.one("select notes.begin_call(%s, 'discover', 'k3')", uuid.uuid4())
    assert "profile_missing" in str(caught.value.diag.message_detail)


def test_image_bytes_never_go_below_zero(library: Library) -> None:
    assert library.one("select notes.adjust_image_storage_bytes(%s, 100)", library.user) == 100
    assert library.one("select notes.adjust_image_storage_bytes(%s, -150)", library.user) == 0


def test_waitlist_is_kept_behind_the_open_sign_up(library: Library) -> None:
    """R2.14/sign-up: a new user has a profile and a library without any request; the list is for the service."""
    assert library.push("notes", id="n1", text="first")["outcome"] == "applied"
    assert library.refused("select * from notes.waitlist_requests")[0] == DENIED
    email = library.one("select email from penstock.profiles where user_id = %s", library.user)
    library.db.execute(
        "insert into notes.waitlist_requests (email, name) values (%s, 'Ada L.')", [email.upper()]
    )
    for _ in range(2):
        found = library.one("select notes.approve_waitlist(%s)", email)
        assert found["status"] == "approved"
    assert library.call("select display_name from notes.user_profiles")[0]["display_name"] == "Ada L."
    with pytest.raises(psycopg.Error):
        library.one("select notes.approve_waitlist('nobody@x.org')")


def test_erasing_a_user_removes_the_library(library: Library) -> None:
    filled(library)
    library.call(KEY, "prf-v1", "x")
    library.db.execute("select penstock.erase_user(%s)", [library.user])
    for table in (*SYNCED, "wrapped_key_blobs", "profile_bios", "images"):
        assert library.one(f"select count(*) from notes.{table} where user_id = %s", library.user) == 0, table


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"full_name": "Ada Lovelace"}, "Ada Lovelace"),
        ({"full_name": "  "}, "ada"),
        ({}, "ada"),
        (None, "ada"),
        ({"full_name": "a\u202eb"}, None),
    ],
)
def test_profile_name_comes_from_the_sign_up(conn: Any, metadata: Any, expected: str | None) -> None:
    """R2.14/profile-name: from full_name of the metadata, otherwise from the address."""
    user = uuid.uuid4()
    conn.execute(
        "insert into auth.users (id, email, raw_user_meta_data) values (%s, 'ada@x.org', %s)",
        [user, Jsonb(metadata)],
    )
    [row] = conn.execute("select display_name from penstock.profiles where user_id = %s", [user]).fetchall()
    assert row["display_name"] == expected


def test_usage_events_are_append_only(library: Library) -> None:
    """R2.1/events: neither users nor the service can change or delete a line."""
    for role in ("authenticated", "service_role"):
        for statement in (
            "delete from penstock.usage_events",
            "update penstock.usage_events set units = '{}'",
        ):
            with library.db.connect() as conn:
                conn.execute(f"set role {role}")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(statement)


def test_audit_lines_are_added_by_the_service_and_never_changed(library: Library) -> None:
    """admin_audit_log: insert and select for the service, nothing else for anybody."""

    def service(statement: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.Connection[dict[str, Any]].connect(library.db.dsn, row_factory=dict_row) as conn:
            conn.execute("set role service_role")
            made = conn.execute(statement, values)  # pyright: ignore[reportArgumentType]
            return list(made.fetchall()) if made.description else []

    add = "insert into notes.admin_audit_log (action, subject, details, tenant_id) values ('override', 'user:1', '{\"n\": 1}', %s)"
    service(add, library.tenant)
    [row] = service("select action, subject from notes.admin_audit_log where tenant_id = %s", library.tenant)
    assert dict(row) == {"action": "admin.override", "subject": "user:1"}
    for statement in ("delete from notes.admin_audit_log", "update notes.admin_audit_log set subject = 'x'"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            service(statement)
    assert library.refused("select * from notes.admin_audit_log")[0] == DENIED
    for view in ("fixed_costs", "cost_snapshot", "prompts", "stripe_webhook_events"):
        service(f"select * from notes.{view}")
        assert library.refused(f"select * from notes.{view}")[0] == DENIED
