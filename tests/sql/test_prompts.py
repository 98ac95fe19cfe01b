"""Prompts: versions that never change, one active per name, pins of jobs, and the versions that calls used."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Call, Contract, Sessions


def add(sql: Contract, body: str = "Hello {{who}}", name: str = "greet", **options: Any) -> int:
    return sql.value("add_prompt", name=name, body=body, options=Jsonb(options))


def activate(sql: Contract, version: int, expected: int | None = None, name: str = "greet") -> int:
    return sql.value("activate_prompt", name=name, version=version, expected=expected)


def active(sql: Contract) -> dict[str, int]:
    return {row["name"]: row["version"] for row in sql.rows("active_prompts")}


def declare(sql: Contract, body: str = "Hi {{who}}", name: str = "greet", **values: Any) -> None:
    sql.value("declare_prompts", prompts=Jsonb([{"name": name, "body": body, **values}]))


class TestVersions:
    def test_one_version_per_name_is_active(self, sql: Contract) -> None:
        """R2.6/versions: a prompt has versions, of which one is active per name."""
        assert [add(sql, f"Hello {n}") for n in range(3)] == [1, 2, 3]
        assert add(sql, "Bye", name="part", activate=True) == 1
        assert active(sql) == {"part": 1}
        assert activate(sql, 2) == 0
        assert activate(sql, 3) == 2
        assert active(sql) == {"greet": 3, "part": 1}
        with pytest.raises(psycopg.errors.UniqueViolation), sql.connection.transaction():
            sql.execute("update penstock.prompts set is_active = true where name = 'greet' and version = 1")

    def test_a_version_keeps_variables_model_and_max_tokens(self, sql: Contract) -> None:
        """R2.6/template: template variables, a model and max_tokens."""
        add(sql, "{{b}} {{ a }} {{b}} {{1}} {c}", model="claude", max_tokens=300, activate=True)
        [row] = sql.rows("active_prompts")
        assert (row["model"], row["max_tokens"]) == ("claude", 300)
        assert sql.one("select variables from penstock.prompts") == ["a", "b"]

    @pytest.mark.parametrize("change", ["body = 'x'", "model = 'x'", "version = 9", "created_by = 'x'"])
    def test_a_version_never_changes(self, sql: Contract, change: str) -> None:
        add(sql)
        with sql.refused(409, "prompt_fixed"):
            sql.execute(f"update penstock.prompts set {change}")
        with sql.refused(409, "prompt_fixed"):
            sql.execute("delete from penstock.prompts")

    @pytest.mark.parametrize(
        ("name", "body", "options"),
        [
            ("Greet", "x", {}),
            ("", "x", {}),
            ("greet", "", {}),
            ("greet", "x" * 100_001, {}),
            ("greet", "x", {"max_tokens": 0}),
            ("greet", "x", {"max_tokens": "many"}),
            ("greet", "x", {"model": ""}),
        ],
    )
    def test_bad_input_is_rejected(self, sql: Contract, name: str, body: str, options: Any) -> None:
        with sql.refused(422, "invalid_prompt"):
            sql.value("add_prompt", name=name, body=body, options=Jsonb(options))
        with sql.refused(422, "unknown_field"):
            add(sql, modle="x")
        assert sql.one("select count(*) from penstock.prompts") == 0

    def test_the_constant_of_the_code_is_version_0(self, sql: Contract) -> None:
        declare(sql, "Hi {{who}}", model="a")
        declare(sql, "Hey {{who}}", model="b")
        assert sql.execute("select version, body, model, is_active from penstock.prompts") == [
            {"version": 0, "body": "Hey {{who}}", "model": "b", "is_active": False}
        ]
        assert add(sql) == 1

    def test_a_variable_that_the_code_does_not_pass_is_rejected(self, sql: Contract) -> None:
        declare(sql)
        with sql.refused(422, "unknown_variable") as refusal:
            add(sql, "Hello {{whom}}")
        assert refusal.details["variables"] == ["whom"]
        assert add(sql, "Hello") == 1


class TestActivation:
    def test_rollback_goes_to_the_version_that_was_active_before(self, sql: Contract) -> None:
        """R2.6/rollback: activate and roll back, with an audit line each."""
        declare(sql)
        for _ in range(4):
            add(sql)
        for version in (1, 3, 4):
            activate(sql, version)
        assert sql.value("rollback_prompt", name="greet") == 3
        assert sql.value("rollback_prompt", name="greet", expected=3) == 1
        assert sql.value("rollback_prompt", name="greet") == 0
        assert active(sql) == {}
        with sql.refused(409, "no_earlier_version"):
            sql.value("rollback_prompt", name="greet")
        moves = sql.execute(
            "select details from penstock.audit_log where action = 'prompt.activated' order by id"
        )
        assert [(row["details"]["from"], row["details"]["to"]) for row in moves] == [
            (0, 1), (1, 3), (3, 4), (4, 3), (3, 1), (1, 0),
        ]  # fmt: skip

    def test_activation_compares_with_the_expected_version(self, sql: Contract) -> None:
        add(sql)
        add(sql)
        activate(sql, 1, expected=0)
        with sql.refused(409, "prompt_moved") as refusal:
            activate(sql, 2, expected=0)
        assert refusal.details["active"] == 1
        with sql.refused(409, "prompt_moved"):
            sql.value("rollback_prompt", name="greet", expected=2)
        with sql.refused(404, "unknown_prompt"):
            activate(sql, 7)
        with sql.refused(404, "unknown_prompt"):
            activate(sql, 1, name="other")
        assert active(sql) == {"greet": 1}

    def test_of_two_activations_at_once_one_is_rejected(self, sessions: Sessions) -> None:
        one, other = sessions.open(), sessions.open()
        for version in (1, 2):
            assert add(one) == version
        with one.connection.transaction():
            activate(one, 1, expected=0)
            call = Call(lambda: activate(other, 2, expected=0))
            sessions.wait_until_blocked(other, call)
        with pytest.raises(psycopg.Error, match="version 1 of prompt greet is active"):
            call.result()
        assert active(one) == {"greet": 1}

    def test_two_additions_at_once_get_two_numbers(self, sessions: Sessions) -> None:
        one, other = sessions.open(), sessions.open()
        with one.connection.transaction():
            assert add(one) == 1
            call = Call(lambda: add(other))
            sessions.wait_until_blocked(other, call)
        assert call.result() == 2


class TestPins:
    def test_a_job_keeps_the_versions_that_were_active(self, sql: Contract) -> None:
        declare(sql)
        declare(sql, name="plain")
        add(sql, activate=True)
        job = sql.start(["work", "work"])
        first, second = sql.claim(2)

        def pin(task: Any) -> None:
            sql.value(
                "pin_prompts",
                task_id=task["id"],
                worker_id="w1",
                lease=task["lease"],
                names=["greet", "plain", "none"],
            )

        pin(first)
        add(sql, "New {{who}}", activate=True)
        pin(second)
        pinned = {row["name"]: row["version"] for row in sql.rows("pinned_prompts", job_id=job)}
        assert pinned == {"greet": 1, "plain": 0}
        with sql.refused(410, "lease_lost"):
            sql.value(
                "pin_prompts", task_id=first["id"], worker_id="x", lease=first["lease"], names=["greet"]
            )


class TestUses:
    def use(self, sql: Contract, task: Any, **values: Any) -> None:
        use = {
            "job_id": str(task["job_id"]),
            "task_id": task["id"],
            "lease": task["lease"],
            "name": "greet",
            "version": 1,
        }
        sql.value("record_prompt_uses", uses=Jsonb([{**use, **values}]))

    def test_a_repeated_line_counts_once(self, sql: Contract) -> None:
        sql.start()
        [task] = sql.claim()
        for _ in range(2):
            self.use(sql, task, seconds=1.5, is_failed=True)
        [row] = sql.execute("select * from penstock.prompt_uses")
        assert (row["tenant_id"], row["action"], row["seconds"]) == (sql.tenant, "work", 1.5)
        assert row["is_failed"]
        assert not row["is_fallback"]

    def test_an_estimate_carries_the_prompt_of_its_attempt(self, sql: Contract) -> None:
        sql.value("set_provider", name="anthropic/small", values=Jsonb({"concurrency": 2}))
        sql.start([{"kind": "work", "provider": "anthropic/small", "units": {"tokens": 10}}])
        [task] = sql.claim()
        self.use(sql, task)
        sql.complete(task)
        assert sql.one("select details from penstock.usage_events") == {
            "prompt_name": "greet",
            "prompt_version": 1,
            "prompt_fallback": False,
        }

    def test_usage_outside_of_a_task_records_its_prompt(self, sql: Contract) -> None:
        details = {"prompt_name": "greet", "prompt_version": 0, "prompt_fallback": True, "seconds": 2}
        call: dict[str, Any] = {"units": Jsonb({"requests": 1}), "tenant_id": sql.tenant, "action": "ask"}
        sql.value("record_usage", **call, options=Jsonb({"details": details}))
        [row] = sql.execute("select * from penstock.prompt_uses")
        assert (row["name"], row["version"], row["is_fallback"], row["seconds"]) == ("greet", 0, True, 2)
        with sql.refused(422, "invalid_prompt"):
            sql.value("record_usage", **call, options=Jsonb({"details": {"prompt_name": "greet"}}))
        with sql.refused(422, "invalid_prompt"):
            sql.value("record_usage", **call, options=Jsonb({"details": {**details, "seconds": "long"}}))

    def test_old_uses_and_pins_are_removed(self, sql: Contract, clock: Clock) -> None:
        add(sql, activate=True)
        sql.start()
        [task] = sql.claim()
        sql.value("pin_prompts", task_id=task["id"], worker_id="w1", lease=task["lease"], names=["greet"])
        self.use(sql, task)
        sql.complete(task)
        clock.advance(days=91)
        sql.value("prune")
        assert sql.one("select count(*) from penstock.prompt_uses") == 0
        assert sql.one("select count(*) from penstock.prompt_pins") == 0


class TestStats:
    def test_versions_are_compared_by_failures_duration_and_cost(self, sql: Contract, clock: Clock) -> None:
        add(sql, activate=True)
        sql.value("set_provider", name="anthropic/small", values=Jsonb({"concurrency": 5}))
        sql.value("set_price", provider="anthropic/small", meter="tokens", amount=2)
        sql.start([{"kind": "work", "provider": "anthropic/small", "units": {"tokens": 10}}] * 4)
        for n, task in enumerate(sql.claim(4)):
            use = {
                "job_id": str(task["job_id"]),
                "task_id": task["id"],
                "lease": task["lease"],
                "name": "greet",
            }
            line = {**use, "version": min(n, 1), "seconds": n, "is_failed": n == 3, "is_fallback": n == 0}
            sql.value("record_prompt_uses", uses=Jsonb([line]))
            sql.complete(task)
        found = {row["version"]: row for row in sql.rows("prompt_stats", name="greet")}
        assert (found[1]["uses"], found[1]["failures"], found[1]["median_seconds"]) == (3, 1, 2)
        assert (found[1]["cost"], found[0]["fallbacks"]) == (60, 1)
        assert [(row["name"], row["uses"]) for row in sql.rows("prompt_fallbacks")] == [("greet", 1)]
        activate(sql, 0)
        assert sql.rows("prompt_fallbacks") == [], "without an active version the constant is no fallback"
        clock.advance(days=31)
        assert sql.rows("prompt_stats", name="greet") == []


class TestTrial:
    def test_a_version_runs_on_inputs_of_a_past_job(self, sql: Contract) -> None:
        declare(sql)
        add(sql, activate=True)
        job = sql.start([
            {"kind": "other", "key": "a"}, {"kind": "work", "key": "b", "after": ["a"], "input": {"x": 1}},
            {"kind": "work", "key": "c", "input": {"x": 2}}, {"kind": "work", "key": "d"},
        ])  # fmt: skip
        uses = TestUses()
        while tasks := sql.claim(4):
            for task in tasks:
                if task["key"] in ("b", "c"):
                    uses.use(sql, task)
                sql.complete(task, output=task["key"])
        assert add(sql, "Trial {{who}}") == 2
        trial = sql.value("try_prompt", name="greet", version=2, job_id=job, rows=20)
        assert {row["version"] for row in sql.rows("pinned_prompts", job_id=trial)} == {2}
        new = sql.claim(9)
        assert sorted(str(task["input"]) for task in new) == ["{'x': 1, 'after': {'a': 'a'}}", "{'x': 2}"]
        sql.complete(new[0], output="new")
        sql.value(
            "fail_task",
            task_id=new[1]["id"],
            worker_id="w1",
            error="no",
            lease=new[1]["lease"],
            permanent=True,
        )
        rows = sql.rows("prompt_trial", job_id=trial)
        assert {row["output"] for row in rows} == {"b", "c"}
        assert sorted((str(row["new_output"]), str(row["new_error"])) for row in rows) == [
            ("None", "no"), ("new", "None"),
        ]  # fmt: skip
        assert active(sql) == {"greet": 1}

    def test_bad_input_is_rejected(self, sql: Contract) -> None:
        add(sql)
        job = sql.start()
        call: dict[str, Any] = {"name": "greet", "version": 1, "job_id": job}
        with sql.refused(422, "no_sample"):
            sql.value("try_prompt", **call)
        for rows in (0, 1001, None):
            with sql.refused(422, "invalid_rows"):
                sql.value("try_prompt", **call, rows=rows)
        with sql.refused(404, "unknown_prompt"):
            sql.value("try_prompt", **{**call, "version": 9})
        with sql.refused(404, "unknown_job"):
            sql.value("try_prompt", **{**call, "job_id": sql.tenant})
