"""Sample data for every page, created through the public SQL functions."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

from penstock import testing

KINDS = ("write", "typeset", "narrate", "bind", "render")
WORKER = "box-1:2210"
TRAILER = {"title": "Trailer"}
STACK = """Traceback (most recent call last):
  File "/srv/app/reading.py", line 41, in narrate
    return speak(text, voice)
  File "/usr/lib/python3.12/site-packages/ttslib/client.py", line 210, in speak
    raise VoiceMissing(voice)
ttslib.errors.VoiceMissing: voice "nova" is not there
"""


@dataclass
class Sample:
    """The sample data."""

    db: testing.Database
    acme: uuid.UUID
    other: uuid.UUID
    jobs: dict[str, uuid.UUID] = field(default_factory=dict)

    def beat(self) -> None:
        """Send the workers' heartbeats."""
        self._report(WORKER, "running", 4)
        self._report("box-2:881", "draining", 0)

    def stop_worker(self) -> None:
        """Add a worker that has stopped."""
        self._report("box-3:7", "stopped", 0)

    def _report(self, worker: str, state: str, running: int) -> None:
        info = {
            "host": worker.split(":")[0], "pid": 2210, "kinds": list(KINDS), "concurrency": 10,
            "version": "0.1.0", "state": state, "running": running,
        }  # fmt: skip
        call(self.db, "report_worker", worker, document(info))


class Session:
    """One connection for all statements."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, query: str, params: Any = None) -> list[dict]:
        cursor = self._connection.execute(query.encode(), params)
        return cursor.fetchall() if cursor.description else []


def call(db: Any, function: str, *arguments: Any) -> Any:
    marks = ", ".join(["%s"] * len(arguments))
    [row] = db.execute(f"select penstock.{function}({marks}) as value", list(arguments))
    return row["value"]


def document(value: Any) -> str:
    return json.dumps(value)


def start(db: Any, tenant: uuid.UUID, type: str, tasks: list[dict[str, Any]], **options: Any) -> uuid.UUID:
    params = options.pop("params", {"title": "River animals", "api_key": "psk_should_never_be_seen"})
    return call(
        db,
        "start_job",
        type,
        document(params),
        document(tasks),
        document({"tenant_id": str(tenant), **options}),
    )


def claim(db: Any, count: int, kinds: tuple[str, ...] = KINDS, worker: str = WORKER) -> list[dict]:
    return db.execute("select * from penstock.claim_tasks(%s, %s, %s, 600)", [worker, count, list(kinds)])


def complete(db: Any, row: dict, output: Any, worker: str = WORKER) -> None:
    call(db, "complete_task", row["id"], worker, document(output), row["lease"])


def fail(db: Any, row: dict, code: str, message: str, *, permanent: bool = True) -> None:
    details = document({"type": "VoiceMissing", "stack": STACK})
    call(db, "fail_task", row["id"], WORKER, message, row["lease"], None, permanent, code, details)


def publish(count: int, **extra: Any) -> list[dict[str, Any]]:
    """Tasks of a book: each chapter is written, typeset and narrated; then all are bound."""
    tasks: list[dict[str, Any]] = []
    for n in range(1, count + 1):
        tasks.append(
            {
                "kind": "write",
                "key": f"chapter {n}",
                "input": {"topic": f"Chapter {n}", "token": "t"},
                **extra,
            }
        )
        tasks.append({"kind": "typeset", "key": f"pages {n}", "after": [f"chapter {n}"]})
        tasks.append({"kind": "narrate", "key": f"audio {n}", "after": [f"pages {n}"]})
    tasks.append({"kind": "bind", "key": "book", "after": [f"pages {n}" for n in range(1, count + 1)]})
    return tasks


def fill(db: Any, *, acme: uuid.UUID, other: uuid.UUID) -> Sample:
    """Create the sample data."""
    sample = Sample(db, acme, other)
    db = Session(db.connect())
    for kind in KINDS:
        call(db, "define_kind", kind, document({"max_attempts": 3, "backoff_seconds": 30}))
    call(
        db,
        "define_job_type",
        "publish",
        document([{"name": kind, "weight": 25} for kind in ("write", "typeset", "narrate", "bind")]),
        "continue",
    )
    call(db, "define_params", document({"publish": {"title": "{title}"}, "render": {"title": "{title}"}}))
    call(
        db,
        "set_provider",
        "openai/gpt-5",
        document({"requests_per_minute": 24, "tokens_per_minute": 90_000, "concurrency": 8}),
        None,
    )
    call(db, "set_provider", "tts/nova", document({"requests_per_minute": 60, "concurrency": 2}), None)
    call(db, "set_price", "openai/gpt-5", "tokens", "0.000004", document({}))
    call(db, "set_tenant_plan", acme, "premium")
    sample.beat()

    uses = {"provider": "openai/gpt-5", "units": {"requests": 1, "tokens": 1500}}
    # One job per status; the failed one has two causes.
    done = sample.jobs["completed"] = start(
        db, acme, "publish", publish(4), budget="2.50", params={"title": "Garden birds"}
    )
    _work_off(db, done)
    failed = sample.jobs["failed"] = start(db, acme, "publish", publish(6, **uses), budget="1.00")
    _work_off(
        db, failed, fails={"audio 2": "voice_missing", "audio 5": "voice_missing", "pages 3": "handler_error"}
    )
    sample.jobs["canceled"] = start(
        db, acme, "render", [{"kind": "render", "input": {"scene": n}} for n in range(5)], params=TRAILER
    )
    call(db, "cancel_job", sample.jobs["canceled"], "asked by the customer")
    sample.jobs["paused"] = start(db, acme, "render", [{"kind": "render"} for _ in range(3)], params=TRAILER)
    call(db, "pause_job", sample.jobs["paused"], "until the new templates are there")
    for n in range(3):
        start(
            db, other, "render", [{"kind": "render", "input": {"n": n}}], params={"title": f"Scene {n + 1}"}
        )
    running = sample.jobs["running"] = start(db, acme, "publish", publish(16, **uses), budget="1.00")
    rows = claim(db, 12, ("write",))
    for row in rows[:4]:
        complete(db, row, {"text": "All about it.", "words": 812})
    for row in claim(db, 2, ("typeset",)):
        complete(db, row, {"pages": 12})
    for row in rows[4:6]:
        call(db, "report_progress", row["id"], WORKER, row["lease"], 0.6, "drafting part 3")
    sample.jobs["scheduled"] = start(
        db, acme, "publish", publish(2), delay_seconds=7200, params={"title": "Tomorrow's issue"}
    )
    sample.jobs["other"] = start(
        db, other, "publish", publish(2, **uses), params={"title": "Mountain flowers"}
    )
    del running
    db.execute(
        "select penstock.set_schedule('weekly issue', '0 9 * * 1', 'publish', now() + interval '2 days', %s)",
        [document({"tenant_id": str(acme), "timezone": "Europe/Berlin", "tasks": publish(1)})],
    )
    db.execute(
        "select penstock.set_schedule('nightly clean-up', '30 2 * * *', 'render', now() + interval '5 hours', %s)",
        [document({"tenant_id": str(acme), "tasks": [{"kind": "render"}], "is_enabled": False})],
    )
    db.execute(
        "select penstock.report_provider('openai/gpt-5', %s)",
        [document({"status": 429, "retry_after_seconds": 20})],
    )
    for days, amount in ((3, "4.10"), (2, "7.75"), (1, "6.02"), (0, "2.31")):
        db.execute(
            "select penstock.record_cost('render', %s, null, null, null, null, %s, %s)",
            [amount, acme, document({"provider": "openai/gpt-5"})],
        )
        db.execute(
            "update penstock.cost_sums set day = day - %s where cost_type = 'render'"
            " and day = (penstock._now() at time zone 'utc')::date",
            [days],
        )
    _history(db, acme)
    return sample


def _work_off(db: Any, job_id: uuid.UUID, fails: dict[str, str] | None = None) -> None:
    while rows := claim(db, 50, ("write", "typeset", "narrate", "bind")):
        for row in rows:
            [task] = db.execute("select key from penstock.tasks where id = %s", [row["id"]])
            if code := (fails or {}).get(task["key"]):
                fail(db, row, code, f'voice "nova" is not there ({task["key"]})')
            else:
                complete(db, row, {"ok": True, "secret": "never shown"})
    del job_id


def _history(db: Any, acme: uuid.UUID) -> None:
    """Insert the sums of an hour, as maintenance would."""
    db.execute(
        """insert into penstock.task_sums (tenant_id, minute, succeeded, failed, waits, runs)
        select t, date_trunc('minute', penstock._now() - interval '10 seconds') - n * interval '1 minute',
          (60 + 40 * sin(n / 6.0))::integer, (n %% 11 = 3)::integer * 4,
          jsonb_build_object((16 + n %% 3)::text, 50, '22', 8), jsonb_build_object((23 + n %% 2)::text, 50, '27', 4)
        from generate_series(1, 60) as n cross join (values (null::uuid), (%s)) as v(t)""",
        [acme],
    )
