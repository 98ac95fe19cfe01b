"""What Penstock's work has to do with the outside: conversions at a simulated CloudConvert that loses, doubles, delays and
reorders webhooks, questions that are answered or time out, and failures that alert by mail. And what must hold of it."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiosmtpd.controller import Controller

from faults.history import History
from penstock import simulator
from penstock.apps.slides import cloudconvert, samples
from penstock.apps.slides.settings import Settings
from penstock.sdk.operations import Operation, Settled
from penstock.simulator import CloudConvertServer

CONVERTER, PLACES = "sim/converter", 20
UNITS = {"conversions": 1}
TIMEOUT, CHECKS_AT = "15s", ("1s", "3s", "6s")
ANSWER_SECONDS = 8
ADDRESS, SENDER = "operator@faults.example", "penstock@faults.example"
_WIRE: dict[str, Any] = {
    "latency": (0.1, 2),
    "late_seconds": 20,
    "faults": {"500": 0.03, "429": 0.01, "timeout": 0.03},
    "job_faults": {"error": 0.03, "stuck": 0.03},
    "webhook_faults": {"lost": 0.1, "doubled": 0.1, "early": 0.1, "late": 0.1, "reordered": 0.1},
}
_PICTURE = samples.picture("x", "PNG")


# --- in a worker ---


def _client() -> Any:
    url, webhooks = os.environ["FAULTS_CONVERTER"], os.environ.get("FAULTS_WEBHOOKS")
    return cloudconvert.connect(Settings(url, "simulated", webhooks, timeout=0, checks=(), answer_timeout=10))


async def submit(operation: Operation) -> str:
    async with _client() as client:
        job = await client.create(str(operation.id), width=16)
        await client.upload(job, "x.png", _PICTURE)
        return job["id"]


async def find(operation: Operation) -> str | None:
    async with _client() as client:
        return await client.find(str(operation.id))


async def check(operation: Operation) -> Settled | None:
    async with _client() as client:
        job = await client.get(operation.external_id)
        if job is None:
            return Settled("canceled", message="there is no such job any more")
        if job["status"] == "finished":
            return Settled("completed", job["id"])
        if job["status"] == "error":
            return Settled("failed", message="the job failed")
        # A worker may have died between the creation of the job and its upload.
        await client.upload(job, "x.png", _PICTURE)
        return None


async def cancel(operation: Operation) -> None:
    async with _client() as client:
        await client.cancel(operation.external_id)


# --- in the run ---


class Outside:
    """The converter and the mail server of a run."""

    def __init__(self, converter: CloudConvertServer, history: History) -> None:
        self._converter, self._history = converter, history
        self.mail_url = ""

    def environment(self, api_url: str | None) -> dict[str, str]:
        """For the processes of the run. `api_url`: where webhooks go, or nowhere."""
        webhooks = {} if api_url is None else {"FAULTS_WEBHOOKS": f"{api_url}/webhooks/converter"}
        return {
            "FAULTS_CONVERTER": f"{self._converter.url}/v2",
            "PENSTOCK_SMTP_URL": self.mail_url,
            "PENSTOCK_MAIL_FROM": SENDER,
            **webhooks,
        }

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        """Called by the mail server for each message."""
        for line in envelope.content.decode().splitlines():
            if line.startswith("Message-ID: <"):
                self._history.note("mailed", id=line.removeprefix("Message-ID: <").partition("@")[0])
        return "250 OK"

    def note_jobs(self) -> None:
        """Record the converter's jobs, but those that were canceled."""
        for job in self._converter.jobs.values():
            self._history.note("converted", job=job.id, tag=job.tag, status=job.status)


@asynccontextmanager
async def serving(seed: int, history: History) -> AsyncGenerator[Outside]:
    """The converter and the mail server, which no fault of the run hits."""
    async with simulator.serve(cloudconvert=_WIRE, seed=seed) as sim:
        made = Outside(sim.cloudconvert, history)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        mail = Controller(made, hostname="127.0.0.1", port=port)
        mail.start()
        try:
            made.mail_url = f"smtp://127.0.0.1:{port}?tls=none"
            yield made
        finally:
            mail.stop()


# --- afterwards ---

PREPARE = (
    f"select penstock.set_provider('{CONVERTER}', '{{\"concurrency\": {PLACES}, \"backpressure_threshold\": null}}')",
    "select penstock.set_meter('conversions', '{}')",
    "select penstock.set_limit(%(tenant)s, 'conversions', 1000000000)",
    f"""select penstock.set_notification_target('email', '{ADDRESS}', array['alert'],
      jsonb_build_object('tenant_id', %(tenant)s::text))""",
)
# Three of four questions; the others time out.
ANSWER = """
select penstock.answer_wait(w.id, 'yes') from (
  select id from penstock.waits where kind = 'answer' and outcome is null and hashtext(id::text) % 4 <> 0 limit 50) as w"""
# After the last fault: a message whose sender was killed comes after five seconds, not after a minute.
RESEND = """
update penstock.notifications set next_try_at = now()
where status in ('queued', 'sending') and next_try_at between now() + interval '1 second' and now() + interval '55 seconds'"""
TABLES = """
create table faults.converted (job text, tag text, status text);
create table faults.mailed (id text);
create table faults.stepped (task_id bigint, lease bigint);
create table faults.answered (task_id bigint, lease bigint, option text, step bigint);
create table faults.outcomes (
  seq bigint generated always as identity, task_id bigint, scope text, is_success boolean, is_alert boolean);
"""
LINES = {
    "converted": ("converted", ("job", "tag", "status")),
    "mailed": ("mailed", ("id",)),
    "stepped": ("stepped", ("task", "lease")),
    "answered": ("answered", ("task", "lease", "option", "step")),
}
# Tasks that had failed when their operation succeeded after its timeout.
REPLAYED = """
(select job_id, (details ->> 'task_id')::bigint as task_id from penstock.audit_log where action = 'operation.late') as late"""
# How often a task's conversions were counted. An attempt that died before it began its operation is charged an estimate.
_COUNTED = """
select t.id, (select count(*) from penstock.operations o where o.job_id = t.job_id and o.task_id = t.id and o.status = 'completed') as completed,
  (select count(*) from faults.moves m join penstock.attempts a on a.job_id = t.job_id and a.task_id = t.id and a.lease = m.lease
    where m.task_id = t.id and m.what = 'released' and m.is_gated and a.outcome = 'lost') as lost,
  (select coalesce(sum((u.units ->> 'conversions')::numeric), 0) from penstock.usage_events u where u.task_id = t.id) as counted
from penstock.tasks t where t.kind = 'convert'"""
# The operation of a dead worker has no place until its task is claimed again, although the provider may work on it.
_PLACED = """
select o.started_at, o.completed_at from penstock.operations o where not o.is_late and not exists (
  select from penstock.attempts a where a.job_id = o.job_id and a.task_id = o.task_id and a.outcome = 'lost'
    and a.ended_at between o.started_at and o.completed_at)"""
CHECKS: dict[str, dict[str, str]] = {
    "operations": {
        "an operation has not ended": "select id, object, status from penstock.operations where status in ('pending', 'processing')",
        "an object had two live operations at once": """
            select o.object, o.id, p.id as other from penstock.operations o join penstock.operations p on p.object = o.object and p.id > o.id
            where p.started_at < o.completed_at and not o.is_late""",
        "too many conversions at once": f"""
            select * from (
              select at, sum(one) over (order by at, one) as running from ({_PLACED}) as o
              cross join lateral (values (o.started_at, 1), (o.completed_at, -1)) as moves(at, one)) as s
            where s.running > {PLACES}""",
        "a job at the converter that is no operation's": """
            select c.* from faults.converted c where not exists (select from penstock.operations o where o.id::text = c.tag)""",
        # A worker that was stopped before its call makes the call when it continues: the converter has no idempotency keys.
        "an operation was submitted twice": """
            select c.tag, count(*) from faults.converted c join penstock.operations o on o.id::text = c.tag
            where not exists (select from faults.stops s where s.at between extract(epoch from o.started_at) - 1 and extract(epoch from o.completed_at))
            group by c.tag having count(*) > 1""",
        "a completed operation that the converter did not finish": """
            select o.id, c.status from penstock.operations o left join faults.converted c on c.tag = o.id::text
            where o.status = 'completed' and c.status is distinct from 'finished'""",
        "a conversion that succeeded has no completed operation": """
            select t.id from penstock.tasks t join penstock.results r on r.job_id = t.job_id and r.task_id = t.id and r.outcome = 'succeeded'
            where t.kind = 'convert' and not exists (select from penstock.operations o where o.task_id = t.id and o.status = 'completed')""",
        "conversions that were completed were not counted, or counted twice": f"""
            select * from ({_COUNTED}) as c where c.counted not between c.completed and c.completed + c.lost""",
        "a webhook was not processed": """
            select source, key, outcome, error from penstock.webhooks where outcome is null or outcome not in ('applied', 'stale', 'ignored')""",
    },
    "waits": {
        "a stored step was repeated": """
            select s.* from faults.stepped s join penstock.steps p on p.task_id = s.task_id where s.lease > p.lease""",
        "a handler got another answer or step than what is stored": """
            select a.*, w.option as stored from faults.answered a join penstock.waits w on w.task_id = a.task_id and w.kind = 'answer'
            left join penstock.steps p on p.task_id = a.task_id
            where a.option is distinct from coalesce(w.option, 'no') or a.step is distinct from (p.output #>> '{}')::bigint""",
        "a question of a task that succeeded is open": """
            select w.id from penstock.waits w join penstock.results r on r.job_id = w.job_id and r.task_id = w.task_id
            where r.outcome = 'succeeded' and w.outcome is null""",
    },
    "mails": {
        "a failure was not recorded, or twice": """
            select o.task_id, count(f.id) from faults.outcomes o left join penstock.failures f on f.subject = o.task_id::text
            where not o.is_success group by o.task_id having count(f.id) <> 1""",
        "a streak alerted twice": """
            select a.scope, a.seq, b.seq as other from faults.outcomes a join faults.outcomes b on b.scope = a.scope and b.seq > a.seq
            where a.is_alert and b.is_alert and not exists (
              select from faults.outcomes s where s.scope = a.scope and s.is_success and s.seq between a.seq and b.seq)""",
        "an alert has not one message": """
            select count(*) from faults.outcomes where is_alert having count(*) <> (select count(*) from penstock.notifications)""",
        "a message was lost": """
            select n.id, n.status, n.last_error from penstock.notifications n
            where n.status <> 'sent' or not exists (select from faults.mailed m where m.id = n.id::text)""",
        "a mail that nobody wrote": "select m.id from faults.mailed m where not exists (select from penstock.notifications n where n.id::text = m.id)",
    },
}  # fmt: skip
FIGURES = {
    "operations": "select count(*) from penstock.operations",
    "operations completed": "select count(*) from penstock.operations where status = 'completed'",
    "operations completed late": "select count(*) from penstock.operations where is_late",
    "operations timed out": "select count(*) from penstock.operations where status = 'timeout'",
    "webhooks taken": "select coalesce(sum(deliveries), 0) from penstock.webhooks",
    "operations settled without a webhook": "select count(*) from penstock.operations where status = 'completed' and webhook_received_at is null",
    "questions answered": "select count(*) from penstock.waits where outcome = 'answered'",
    "questions that timed out": "select count(*) from penstock.waits where outcome = 'timeout'",
    "alerts": "select count(*) from penstock.notifications",
    "mails": "select count(*) from faults.mailed",
}
