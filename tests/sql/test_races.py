"""Concurrent sessions. Tests read from pg_stat_activity which session waits; nothing sleeps."""

from __future__ import annotations

import random
import threading
import time
import uuid
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions, graph


def beats(*tasks: db.Row) -> Jsonb:
    return Jsonb([{"id": task["id"], "lease": task["lease"]} for task in tasks])


class TestClaim:
    def test_no_task_is_claimed_twice(self, sessions: Sessions) -> None:
        """R1.2/skip-locked: six sessions claim batches of different sizes from one queue."""
        sql = sessions.open()
        for _ in range(4):
            sql.start([{"kind": "work", "priority": n % 3} for n in range(150)])

        def take(own: Contract, seed: int) -> list[int]:
            chosen = random.Random(seed)
            found: list[int] = []
            while tasks := own.claim(chosen.randint(1, 20), f"w{seed}"):
                found += [task["id"] for task in tasks]
            return found

        calls = [Call(lambda own=sessions.open(), n=n: take(own, n)) for n in range(6)]
        found = [task_id for call in calls for task_id in call.result()]
        found += [
            task["id"] for task in sql.claim(1000)
        ]  # what one passed over because another just looked at it
        assert len(found) == len(set(found)) == 600
        sql.check()

    def test_locked_tasks_are_skipped_without_waiting(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        one.start(10)
        with one.connection.transaction():
            first = one.claim(4)
            second = two.claim(10)
        assert len(first) == 4
        assert len(second) == 6
        assert not {task["id"] for task in first} & {task["id"] for task in second}

    def test_a_claim_that_is_rolled_back_leaves_its_tasks(self, sessions: Sessions) -> None:
        """A worker that dies before the commit of its claim loses nothing."""
        one, two = sessions.open(), sessions.open()
        one.start(10)
        with one.connection.transaction(force_rollback=True):
            assert len(one.claim(10)) == 10
            assert two.claim(10) == []
        assert len(two.claim(10)) == 10
        two.check()

    def test_a_task_that_commits_late_is_found(self, sessions: Sessions, clock: Clock) -> None:
        """B1/late-commits: the claim reads from the lane's clock on; a slower sweep finds tasks that committed behind it."""
        clock.freeze()
        slow, fast, worker = sessions.open(), sessions.open(), sessions.open()
        with slow.connection.transaction():
            late = slow.start(2)
            for _ in range(5):
                fast.start(50)
                clock.advance(milliseconds=300)
                assert len(worker.claim(100)) == 50
        clock.advance(milliseconds=1100)
        assert {task["job_id"] for task in worker.claim(100)} == {late}

    def test_an_enqueue_does_not_wait_for_another(self, sessions: Sessions) -> None:
        """An open transaction that has started a job does not delay other starts of the tenant."""
        one, two = sessions.open(), sessions.open()
        with one.connection.transaction():
            one.start(5)
            two.start(5)
            one.start(5, priority=1)
            two.start(5, priority=9)
        assert len(one.claim(100)) == 20


class TestLease:
    def test_a_completion_that_waits_for_a_heartbeat_succeeds(self, sessions: Sessions) -> None:
        """The heartbeat moves the row while the completion waits for it; the completion finds the new version."""
        worker, heart = sessions.open(), sessions.open()
        job = worker.start(3)
        tasks = worker.claim(3)
        with heart.connection.transaction():
            heart.rows("heartbeat_tasks", worker_id="w1", leases=beats(*tasks[:2]))
            call = Call(lambda: worker.complete_all(tasks))
            sessions.wait_until_blocked(worker, call)
        assert call.result() == []
        assert heart.status(job) == "completed"
        heart.check()

    @pytest.mark.parametrize("verb", ["complete", "fail", "reschedule"])
    def test_a_completion_that_waits_for_a_progress_report_succeeds(
        self, sessions: Sessions, verb: str
    ) -> None:
        worker, other = sessions.open(), sessions.open()
        worker.start()
        task = worker.claim_one()
        with other.connection.transaction():
            other.report(task, 0.5, "half")
            call = Call(lambda: getattr(worker, verb)(task))
            sessions.wait_until_blocked(worker, call)
        assert call.result() is True
        assert other.where(task) == [{"complete": "results", "fail": "ready", "reschedule": "ready"}[verb]]

    def test_a_heartbeat_skips_a_task_that_is_being_completed(self, sessions: Sessions) -> None:
        """Opposite lock orders cannot deadlock, because the heartbeat does not wait."""
        worker, heart = sessions.open(), sessions.open()
        worker.start(2)
        one, two = worker.claim(2)
        with worker.connection.transaction():
            worker.complete(one)
            assert heart.rows("heartbeat_tasks", worker_id="w1", leases=beats(two, one)) == []
            worker.complete(two)
        worker.check()

    def test_a_completion_comes_before_the_reclaim(self, sessions: Sessions, clock: Clock) -> None:
        worker, upkeep = sessions.open(), sessions.open()
        job = worker.start()
        task = worker.claim_one()
        clock.advance(seconds=31)
        with worker.connection.transaction():
            assert worker.complete(task)
            assert upkeep.reclaim() == 0
        assert upkeep.status(job) == "completed"
        upkeep.check()

    @pytest.mark.parametrize("verb", ["complete", "fail", "reschedule", "beat"])
    def test_the_reclaim_comes_before_the_worker(self, sessions: Sessions, clock: Clock, verb: str) -> None:
        worker, upkeep = sessions.open(), sessions.open()
        worker.start()
        task = worker.claim_one()
        clock.advance(seconds=31)
        with upkeep.connection.transaction():
            assert upkeep.reclaim() == 1
            if verb == "beat":  # it does not wait
                assert worker.rows("heartbeat_tasks", worker_id="w1", leases=beats(task)) == []
                call = None
            else:
                call = Call(lambda: getattr(worker, verb)(task))
                sessions.wait_until_blocked(worker, call)
        with pytest.raises(psycopg.Error) as error:
            call.result() if call else worker.beat(task)
        assert error.value.sqlstate == "PT410"
        assert upkeep.where(task) == ["ready"]
        upkeep.check()

    @pytest.mark.parametrize("verb", ["complete", "fail", "kill"])
    def test_the_cancel_comes_before_the_worker(self, sessions: Sessions, verb: str) -> None:
        worker, user = sessions.open(), sessions.open()
        job = worker.start(2)
        task = worker.claim_one()
        with user.connection.transaction():
            user.cancel(job)
            call = Call(lambda: getattr(worker, verb)(task))
            sessions.wait_until_blocked(worker, call)
        with pytest.raises(psycopg.Error) as error:
            call.result()
        assert error.value.sqlstate == "PT410"
        assert '"canceled"' in (error.value.diag.message_detail or "")
        assert user.progress(job)["canceled"] == 2
        user.check()

    @pytest.mark.parametrize("verb", ["complete", "fail", "kill"])
    def test_the_worker_comes_before_the_cancel(self, sessions: Sessions, verb: str) -> None:
        worker, user = sessions.open(), sessions.open()
        job = worker.start(graph(a="", b="a", c=""))
        task = next(task for task in worker.claim(2) if task["key"] == "a")
        with worker.connection.transaction():
            assert getattr(worker, verb)(task)
            call = Call(lambda: user.cancel(job))
            if verb == "kill":  # ending for good looks at the job only at the last task
                call.result()
            else:
                call.result()
        assert user.status(job) == "canceled"
        user.do_chores()
        assert worker.claim(10) == []
        user.check()


class TestEnd:
    def test_two_last_tasks_in_different_phases_end_the_job_once(self, sessions: Sessions) -> None:
        """R1.5/exact: exact under concurrency."""
        one, two = sessions.open(), sessions.open()
        for _ in range(10):
            job = one.start(["work", "other"])
            first, second = one.claim(2)
            with one.connection.transaction():
                one.complete(first)
                call = Call(lambda task=second: two.complete(task))
                sessions.wait_until_blocked(two, call)
            call.result()
            assert one.status(job) == "completed"
            lines = [row["action"] for row in one.audit(job)]
            assert lines == ["job.queued", "job.running", "job.completed"]
        one.check()

    def test_a_task_added_while_the_last_one_ends(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        job = one.start()
        task = one.claim_one()
        with one.connection.transaction():
            one.add(job, 1)
            call = Call(lambda: two.complete(task))
            sessions.wait_until_blocked(two, call)
        call.result()
        assert one.status(job) == "running"
        assert one.drain() == 1
        assert one.status(job) == "completed"
        one.check()

    def test_a_task_added_after_the_last_one_ended(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        job = one.start()
        task = one.claim_one()
        with one.connection.transaction():
            one.complete(task)
            call = Call(lambda: two.add(job, 1))
            sessions.wait_until_blocked(two, call)
        with pytest.raises(psycopg.Error) as error:
            call.result()
        assert error.value.sqlstate == "PT409"
        assert one.progress(job)["total"] == 1
        one.check()

    @pytest.mark.parametrize("verb", ["complete", "kill", "fail", "reschedule"])
    def test_a_child_added_while_its_parent_ends(self, sessions: Sessions, verb: str) -> None:
        """In either order the child is released, canceled or still waits, without a deadlock."""
        one, two = sessions.open(), sessions.open()
        child = [{"kind": "work", "key": "child", "after": ["a"]}]
        for first in ("add", "end"):
            job = one.start([*graph(a=""), "other"])
            task = one.claim_one(kinds=["work"])
            with one.connection.transaction():
                if first == "add":
                    one.add(job, child)
                    call = Call(lambda verb=verb, task=task: getattr(two, verb)(task))
                else:
                    getattr(one, verb)(task)
                    call = Call(lambda job=job: two.add(job, child))
                sessions.wait_until_blocked(two, call)
            call.result()
            expected = {"complete": "queued", "kill": "canceled"}.get(verb, "blocked")
            assert one.states(job)["child"] == expected
            one.check()
            one.drain()
            one.check()
            assert one.states(job)["child"] == ("canceled" if verb == "kill" else "succeeded")
            assert one.status(job) == ("failed" if verb == "kill" else "completed")

    def test_children_added_to_several_parents_that_end_in_a_batch(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        for turn in range(4):
            job = one.start([*graph(a="", b="", c="a b"), "other"])
            tasks = one.claim(2, kinds=["work"])
            child = [{"kind": "work", "key": "d", "after": ["c", "b", "a"]}]
            with one.connection.transaction():
                if turn % 2:
                    one.add(job, child)
                    call = Call(lambda tasks=tasks: two.complete_all(tasks))
                else:
                    one.complete_all(tasks)
                    call = Call(lambda job=job, child=child: two.add(job, child))
                sessions.wait_until_blocked(two, call)
            call.result()
            one.check()
            one.drain()
            assert one.status(job) == "completed"

    def test_two_failing_parents_with_tangled_descendants(self, sessions: Sessions) -> None:
        """Both cancel descendants of each other's children: one waits, and neither deadlocks."""
        one, two = sessions.open(), sessions.open()
        for _ in range(3):
            job = one.start(graph(p="", q="", a="q", b="p a", c="q b"))
            tasks = {task["key"]: task for task in one.claim(2)}
            start = threading.Barrier(2)

            def end(own: Contract, task: db.Row, start: threading.Barrier = start) -> None:
                start.wait()
                own.kill(task)

            calls = [
                Call(lambda own=own, key=key, tasks=tasks: end(own, tasks[key]))
                for own, key in ((one, "p"), (two, "q"))
            ]
            for call in calls:
                call.result()
            assert one.states(job) == {
                "p": "failed",
                "q": "failed",
                "a": "canceled",
                "b": "canceled",
                "c": "canceled",
            }
            assert one.status(job) == "failed"
        one.check()

    def test_jobs_that_stop_and_jobs_that_are_full_are_locked_in_one_order(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        stops = one.start(2, on_failure="stop")
        while (full := one.start(1)) < stops:
            pass
        tasks = {task["job_id"]: task for task in one.claim(10)}
        lost = [tasks[stops], tasks[full]]
        one.connection.execute("begin")
        # As a cancel of both does, first the first.
        one.execute("select from penstock.jobs where id = %s for no key update", stops)
        failing = Call(
            lambda: two.rows(
                "fail_tasks",
                worker_id="w1",
                task_ids=[task["id"] for task in lost],
                leases=[task["lease"] for task in lost],
                errors=[Jsonb({"permanent": True}) for _ in lost],
            )
        )
        sessions.wait_until_blocked(two, failing)
        one.cancel(full)
        one.connection.execute("commit")
        assert failing.result() == []
        assert (one.status(stops), one.status(full)) == ("failed", "canceled")
        one.do_chores()
        one.check()


class TestIdempotency:
    def test_two_starts_with_one_key_make_one_job(self, sessions: Sessions) -> None:
        """R0.1/idempotent: starting twice with one idempotency key gives one job, also at the same time."""
        one, two = sessions.open(), sessions.open()
        with one.connection.transaction():
            job = one.start(3, idempotency_key="k")
            call = Call(lambda: two.start(3, idempotency_key="k"))
            sessions.wait_until_blocked(two, call)
        assert call.result() == job
        assert one.progress(job)["total"] == 3
        one.check()

    def test_the_second_start_makes_the_job_if_the_first_rolls_back(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        with one.connection.transaction(force_rollback=True):
            gone = one.start(3, idempotency_key="k")
            call = Call(lambda: two.start(3, idempotency_key="k"))
            sessions.wait_until_blocked(two, call)
        assert call.result() != gone
        assert one.one("select count(*) from penstock.jobs") == 1

    def test_a_second_start_with_other_params_is_refused(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        with one.connection.transaction():
            one.start(3, idempotency_key="k")
            call = Call(lambda: two.start(4, idempotency_key="k"))
            sessions.wait_until_blocked(two, call)
        with pytest.raises(psycopg.Error) as error:
            call.result()
        assert error.value.sqlstate == "PT409"

    def test_many_starts_with_one_key_make_one_job(self, sessions: Sessions) -> None:
        start = threading.Barrier(6)

        def begin(own: Contract) -> uuid.UUID:
            start.wait()
            return own.start(3, idempotency_key="k")

        calls = [Call(lambda own=sessions.open(): begin(own)) for _ in range(6)]
        assert len({call.result() for call in calls}) == 1


class TestPause:
    def test_a_claim_after_the_pause_returns_nothing(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        job = one.start(10)
        one.pause(job)
        assert two.claim(10) == []
        one.check()

    def test_a_resume_restores_tasks_that_a_claim_parks(self, sessions: Sessions) -> None:
        """The claim has parked tasks that were requeued during the pause, and commits after the resume."""
        one, two, third = sessions.open(), sessions.open(), sessions.open()
        job = one.start(5)
        running = one.claim(2)
        one.pause(job)
        one.do_chores()
        for task in running:
            one.reschedule(task)
        with one.connection.transaction():
            assert one.claim(10) == []
            assert one.where(running[0]) == ["parked"]
            call = Call(lambda: two.resume(job))
            try:
                sessions.wait_until_blocked(two, call)
            except pytest.fail.Exception:
                call.result()  # it may as well not need to wait
        call.result()
        third.do_chores()
        assert len(third.claim(10)) == 5
        third.check()

    def test_a_claim_does_not_wait_for_a_resume(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        job, other = one.start(5), one.start(1)
        running = one.claim(2)
        one.pause(job)
        one.do_chores()
        for task in running:
            one.reschedule(task)
        with one.connection.transaction():
            one.resume(job)
            assert [task["job_id"] for task in two.claim(10)] == [other]
        assert len(two.claim(10)) == 5
        two.check()

    @pytest.mark.parametrize("how", ["complete", "fail", "reschedule"])
    def test_a_task_that_ends_during_the_resume_is_counted(self, sessions: Sessions, how: str) -> None:
        """The worker's transaction began while the job was paused and ends after it was resumed."""
        one, two = sessions.open(), sessions.open()
        job = one.start(graph(a="", b="a"))
        task = one.claim_one()
        one.pause(job)
        with one.connection.transaction():
            getattr(one, how)(task)
            call = Call(lambda: two.resume(job))
            try:
                sessions.wait_until_blocked(two, call)
            except pytest.fail.Exception:
                call.result()
        call.result()
        two.check()
        two.drain()
        assert two.status(job) == "completed"

    def test_upkeep_and_resume_at_once(self, sessions: Sessions) -> None:
        """Upkeep has parked some tasks of the pause and not committed when the job is resumed."""
        one, two = sessions.open(), sessions.open()
        job = one.start(50)
        one.pause(job)
        with one.connection.transaction():
            assert one.upkeep()["chores"] == 50
            call = Call(lambda: two.resume(job))
            sessions.wait_until_blocked(two, call)
        assert call.result() == "queued"
        two.check()
        assert two.drain() == 50

    def test_a_task_locked_during_the_resume_is_requeued(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        job = one.start(5)
        one.pause(job)
        one.do_chores()
        with one.connection.transaction():
            one.execute("select from penstock.parked where job_id = %s limit 2 for update", job)
            two.resume(job)
        two.do_chores()
        two.check()
        assert two.drain() == 5
        assert two.status(job) == "completed"

    def test_pause_during_a_claim(self, sessions: Sessions) -> None:
        """A task claimed before the pause runs, and its completion is accepted."""
        one, two = sessions.open(), sessions.open()
        job = one.start(2)
        with one.connection.transaction():
            task = one.claim_one()
            call = Call(lambda: two.pause(job))
            try:
                sessions.wait_until_blocked(two, call)
            except pytest.fail.Exception:
                call.result()
        call.result()
        assert two.claim(5) == []
        one.complete(task)
        assert two.status(job) == "paused"
        two.resume(job)
        two.drain()
        assert two.status(job) == "completed"
        two.check()


class Storm:
    """Random verbs in several sessions; then everything runs to its end."""

    def __init__(self, sessions: Sessions, clock: Clock, seed: int) -> None:
        self.sessions = sessions
        self.clock = clock
        self.stop = threading.Event()
        self.jobs: list[uuid.UUID] = []
        self.seed = seed
        self.refusals: dict[str, int] = {}

    def graph(self, chosen: random.Random) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = []
        for n in range(chosen.randint(1, 12)):
            task: dict[str, Any] = {"kind": chosen.choice(["work", "other"]), "key": f"t{n}"}
            if n and chosen.random() < 0.7:
                task["after"] = [f"t{chosen.randrange(n)}" for _ in range(chosen.randint(1, 3))]
                task["after_failure"] = chosen.choice(["cancel", "cancel", "run"])
            if chosen.random() < 0.3:
                task["priority"] = chosen.randint(0, 10)
            if chosen.random() < 0.2:
                task["phase"] = chosen.choice(["first", "second"])
            tasks.append(task)
        if chosen.random() < 0.3:
            chosen.shuffle(tasks)
        return tasks

    def run(self, number: int) -> None:
        chosen = random.Random(self.seed * 100 + number)
        sql = self.sessions.open()
        worker = f"w{number}"
        held: list[db.Row] = []
        while not self.stop.is_set():
            # Mostly the newest few, so that the sessions meet.
            job = chosen.choice(self.jobs[-4:] if chosen.random() < 0.8 else self.jobs) if self.jobs else None
            action = chosen.random()
            try:
                if action < 0.12 or job is None:
                    self.jobs.append(
                        sql.start(
                            self.graph(chosen), on_failure=chosen.choice(["continue", "continue", "stop"])
                        )
                    )
                elif action < 0.40:
                    held += sql.claim(chosen.randint(1, 8), worker)
                elif action < 0.70 and held:
                    some = [held.pop(chosen.randrange(len(held))) for _ in range(min(len(held), 4))]
                    end = chosen.random()
                    arrays: dict[str, Any] = {
                        "worker_id": worker,
                        "task_ids": [task["id"] for task in some],
                        "leases": [task["lease"] for task in some],
                    }
                    if end < 0.6:
                        sql.rows("complete_tasks", **arrays)
                    elif end < 0.9:
                        error = Jsonb({"permanent": chosen.random() < 0.3})
                        sql.rows("fail_tasks", **arrays, errors=[error for _ in some])
                    else:
                        sql.rows("reschedule_tasks", **arrays, delay_seconds=chosen.choice([0.0, 0.05]))
                elif action < 0.76 and held:
                    chosen.shuffle(held)
                    gone = sql.rows("heartbeat_tasks", worker_id=worker, leases=beats(*held))
                    held = [task for task in held if task["id"] not in {row["id"] for row in gone}]
                elif action < 0.80 and held:
                    sql.value(
                        "report_progress",
                        task_id=held[0]["id"],
                        worker_id=worker,
                        lease=held[0]["lease"],
                        fraction=chosen.random(),
                    )
                elif action < 0.86:
                    after = [f"t{chosen.randrange(3)}" for _ in range(2)] if chosen.random() < 0.7 else []
                    spec = {"kind": "work", "after": after, "priority": chosen.choice([5, 5, 2])}
                    sql.add(job, [spec])
                elif action < 0.88:
                    sql.pause(job)
                elif action < 0.91:
                    sql.resume(job)
                elif action < 0.92:
                    sql.cancel(job)
                elif action < 0.95:
                    sql.retry(job)
                elif action < 0.96:
                    self.clock.advance(seconds=10)
                elif action < 0.97:
                    sql.replay(all=True)
                else:
                    sql.upkeep()
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith("PT"):
                    self.stop.set()
                    raise
                self.refusals[error.sqlstate or ""] = self.refusals.get(error.sqlstate or "", 0) + 1

    def blow(self, threads: int, seconds: float) -> None:
        calls = [Call(lambda n=n: self.run(n)) for n in range(threads)]
        calls.append(Call(lambda: self.sessions.watch_locks(self.stop)))
        self.stop.wait(seconds)
        self.stop.set()
        for call in calls:
            call.result()

    def settle(self) -> None:
        """Run everything to its end with one worker."""
        sql = self.sessions.open()
        sql.check()
        for job in self.jobs:
            if sql.status(job) == "paused":
                sql.resume(job)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            self.clock.advance(seconds=40)
            upkeep = sql.upkeep()
            if sql.drain("calm") == 0 and upkeep["next_seconds"] is None:
                break
        sql.check()
        open_jobs = sql.execute("select id, status from penstock.jobs where finished_at is null")
        assert open_jobs == []


@pytest.mark.slow
@pytest.mark.parametrize("threads", [4, 8])
def test_random_concurrent_verbs_keep_all_invariants(sessions: Sessions, clock: Clock, threads: int) -> None:
    """R1.2/skip-locked, R1.5/exact: no deadlock, no task in two places, exact counts, every job ends."""
    storm = Storm(sessions, clock, seed=threads)
    storm.blow(threads, seconds=3)
    storm.settle()
    assert len(storm.jobs) > 20


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(3))
def test_long_random_concurrent_verbs_keep_all_invariants(
    sessions: Sessions, clock: Clock, seed: int
) -> None:
    """R1.2/skip-locked, R1.5/exact: the same, longer and with another seed."""
    storm = Storm(sessions, clock, seed=1000 + seed)
    storm.blow(6, seconds=10)
    storm.settle()


class TestAHandlersTransaction:
    """A handler's own transaction keeps its lease alive and blocks nothing else."""

    def keep(self, sql: Contract, task: db.Row) -> None:
        """The first step of `apply` and `undo` of a bulk job."""
        sql.rows(
            "get_bulk_rows", task_id=task["id"], worker_id="w1", lease=task["lease"], job_id=uuid.uuid4(),
            numbers=[1],
        )  # fmt: skip

    def test_heartbeats_progress_and_usage_pass_a_handlers_transaction(
        self, sessions: Sessions, clock: Clock
    ) -> None:
        one, two = sessions.open(), sessions.open()
        one.start(1)
        task = one.claim_one(seconds=60)
        two.execute("set lock_timeout = '2s'")
        with one.connection.transaction():
            self.keep(one, task)
            before = two.one("select expires_at from penstock.leases")
            clock.advance(seconds=30)
            assert two.rows("heartbeat_tasks", worker_id="w1", leases=beats(task), lease_seconds=60) == []
            assert two.one("select expires_at from penstock.leases") > before
            holder = {"task_id": task["id"], "worker_id": "w1", "lease": task["lease"]}
            two.value("report_progress", **holder, fraction=0.5, message=None)
            two.value("record_usage", units=Jsonb({"requests": 1}), **holder)
            two.value("record_cost", cost_type="render", amount=1, **holder)
            clock.advance(minutes=5)
            assert two.value("reclaim_stale_tasks") == 0, "it is somebody's"
            assert two.rows("upkeep")[0]["next_seconds"] >= 1, "and nobody asks for it over and over"
        assert two.one("select fraction from penstock.leases") == 0.5
        one.complete(task)
        two.check()

    @pytest.mark.slow
    def test_a_handlers_open_transaction_blocks_no_other_task(self, sessions: Sessions, clock: Clock) -> None:
        """A worker that vanished just before its commit has the job's counts in hand. What its other tasks, and those
        of others, lost goes back into line all the same; only the one that is to be given up waits."""
        one, two = sessions.open(), sessions.open()
        one.value("set_setting", name="max_deaths", value=Jsonb(2))
        one.start(3)
        first = one.claim(2, "w1")
        clock.advance(minutes=5)
        assert one.reclaim() == 2
        again = one.claim(2, "w2")
        [last] = one.claim(1, "w3")
        assert {task["id"] for task in again} == {task["id"] for task in first}
        with one.connection.transaction(force_rollback=True):
            one.complete(again[0], worker="w2")
            clock.advance(minutes=5)
            assert two.upkeep()["reclaimed"] == 1
            assert [task["id"] for task in two.claim(5)] == [last["id"]]
            # And nobody waits for it for ever.
            with pytest.raises(psycopg.errors.LockNotAvailable):
                two.upkeep()
        assert two.reclaim() == 2
        two.check()

    def test_a_task_with_an_open_transaction_can_get_children(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        job_id = one.start([{"kind": "work", "key": "a"}, {"kind": "work", "key": "b"}])
        a, b = one.claim(2)
        two.execute("set lock_timeout = '2s'")
        with one.connection.transaction():
            self.keep(one, a)
            [child] = two.value(
                "add_tasks", job_id=job_id, tasks=Jsonb([{"kind": "work", "after": ["a", "b"]}]),
                task_id=b["id"], worker_id="w1", lease=b["lease"],
            )  # fmt: skip
        assert one.complete(a) and one.complete(b)
        assert [task["id"] for task in one.claim(5)] == [child]
        two.check()

    def test_progress_of_a_locked_task_is_dropped(self, sessions: Sessions) -> None:
        one, two = sessions.open(), sessions.open()
        job_id = one.start([{"kind": "work", "key": "a"}])
        task = one.claim_one()
        holder = {"task_id": task["id"], "worker_id": "w1", "lease": task["lease"]}
        two.execute("set lock_timeout = '2s'")
        with one.connection.transaction():
            one.value("add_tasks", job_id=job_id, tasks=Jsonb([{"kind": "work", "after": ["a"]}]), **holder)
            two.value("report_progress", **holder, fraction=0.5, message=None)
        assert two.one("select fraction from penstock.leases") is None
        two.value("report_progress", **holder, fraction=0.7, message=None)
        assert two.one("select fraction from penstock.leases") == pytest.approx(0.7)
        with pytest.raises(psycopg.Error):
            two.value("report_progress", **{**holder, "lease": task["lease"] - 1}, fraction=0.9, message=None)
