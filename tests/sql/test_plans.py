"""Every listed query uses its index; a claim costs the same at every queue length.

Cost is counted in pages of the buffer cache, never in time.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.testing import Database, Server
from tests.sql.conftest import Contract, prepare

ROWS = 100_000
ENDED_ROWS = 30_000
TENANTS = 500
BATCH = 50

# Jobs of many tenants in every state, a task for each, and as much of all that hangs on them.
FILL = f"""
set session_replication_role = replica;

insert into penstock.tenants (id, name, plan)
select md5('tenant ' || n)::uuid, 'tenant ' || n, 'unlimited' from generate_series(0, {TENANTS - 1}) as n;

create table fill as
select lpad(to_hex(n), 32, '0')::uuid as id, md5('tenant ' || n % {TENANTS})::uuid as tenant_id, n,
  nextval('penstock.task_ids') as task_id,
  (array['completed', 'failed', 'canceled', 'running', 'queued', 'paused', 'completed', 'completed'])[
    1 + n / {TENANTS} % 8] as status
from generate_series(0, {ROWS - 1}) as n;

insert into penstock.jobs (id, tenant_id, type, status, created_by, created_at, finished_at)
select id, tenant_id, 'fill', status, 'test', now(),
  case when status in ('completed', 'failed', 'canceled') then now() end
from fill;
insert into penstock.phases (job_id, position, tenant_id, name, total, failed)
select id, 1, tenant_id, 'work', 1, (status = 'failed')::integer from fill where n % 5 = 0;
insert into penstock.tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, kind, input)
select fill.id, task_id, fill.tenant_id, now(), l.id, 1, 5, 'work', '{{}}'
from fill, penstock.lanes l where l.kind = 'work' order by task_id;
insert into penstock.edges (job_id, parent_id, child_id)
select id, task_id, task_id from fill where status = 'completed' and n % 5 = 0;
insert into penstock.results (job_id, task_id, lease, tenant_id, finished_at, attempt, phase, outcome)
select id, task_id, 1, tenant_id, now(), 1, 1, case status when 'failed' then 'failed' else 'succeeded' end
from fill where status in ('completed', 'failed');
insert into penstock.attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at,
  outcome, error_code)
select id, task_id, 1, tenant_id, 1, 'w', now(), now(), 'failed', 'x' from fill where n % 5 = 0;
insert into penstock.parked (task_id, job_id, tenant_id, lane_id, priority, phase, until, reason)
select task_id, fill.id, fill.tenant_id, l.id, 5, 1, now() + interval '1 day' + n * interval '1 second', 'retry'
from fill, penstock.lanes l where l.kind = 'work';
insert into penstock.dead_letters (tenant_id, job_id, task_id, kind, reason, error_code, attempts, died_at)
select tenant_id, id, task_id, case when n % 3 = 0 then 'work' else 'other' end, 'attempts', 'code_' || n % 7,
  3, now()
from fill;
insert into penstock.audit_log (at, tenant_id, actor, action, job_id, subject)
select now(), tenant_id, 'test', 'job.queued', id, 'job:' || id from fill;
insert into penstock.members (tenant_id, user_id) select tenant_id, md5('user ' || n)::uuid from fill;
insert into penstock.schedules (tenant_id, name, cron, job_type, next_run_at, created_at, id)
select tenant_id, 'schedule ' || n, '* * * * *', 'fill', now() + interval '1 day' + n * interval '1 second',
  now(), id
from fill;

set session_replication_role = origin"""


@contextmanager
def own_database(server: Server) -> Generator[Database]:
    """A database that the tests of this file share."""
    with server.database() as made:
        prepare(Contract(made.connect()))
        yield made


@contextmanager
def without_indexes(sql: Contract) -> Generator[None]:
    """Building indexes afterwards takes a third of the time. Indexes of constraints stay."""
    indexes = sql.execute("""
        select x.indexrelid::regclass::text as name, pg_get_indexdef(x.indexrelid) as definition
        from pg_index x join pg_class c on c.oid = x.indrelid
        where c.relnamespace = 'penstock'::regnamespace and not c.relispartition
          and not exists (select from pg_constraint n where n.conindid = x.indexrelid)
        order by x.indexrelid""")
    with sql.connection.transaction():
        for index in indexes:
            sql.execute(f"drop index {index['name']}")
        yield
        for index in indexes:
            sql.execute(index["definition"])


def explain(sql: Contract, query: str, *params: Any, options: str = "") -> dict[str, Any]:
    """The plan of a statement, which is rolled back."""
    with sql.connection.transaction(force_rollback=True):
        return sql.one(f"explain (format json{options}) {query}", *params)[0]["Plan"]


def nodes(plan: dict[str, Any]) -> Generator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def pages(sql: Contract, query: str, *params: Any) -> int:
    """The number of pages that a statement touches, with its functions, in a session with warm caches."""
    counts: list[int] = []
    for _ in range(3):
        plan = explain(sql, query, *params, options=", analyze, buffers, timing off")
        counts.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    return min(counts)


def scans(sql: Contract, query: str, *params: Any, avoid_tables: bool = False) -> dict[str, int]:
    """How often a call begins to read each table from its start (`seq jobs`) and each index.

    With `avoid_tables` the planner reads a table from its start only where no index can serve the query.
    """
    count = """
        select 'seq ' || relname as name, pg_stat_get_xact_numscans(oid) as n from pg_class
        where relnamespace = 'penstock'::regnamespace and relkind = 'r'
        union all
        select relname, pg_stat_get_xact_numscans(oid) from pg_class
        where relnamespace = 'penstock'::regnamespace and relkind = 'i'"""
    if avoid_tables:
        sql.execute("discard plans")
    with sql.connection.transaction(force_rollback=True):
        if avoid_tables:
            sql.execute("set local enable_seqscan = off")
        before = {row["name"]: row["n"] for row in sql.execute(count)}
        sql.execute(query, *params)
        after = {row["name"]: row["n"] for row in sql.execute(count)}
    return {name: n - before[name] for name, n in after.items() if n > before[name]}


class Big:
    """A filled database, and one id of everything in it."""

    def __init__(self, sql: Contract) -> None:
        self.sql = sql
        with without_indexes(sql):
            for statement in FILL.split(";\n"):
                sql.execute(statement)
        sql.execute("analyze")
        (row,) = sql.execute("select * from fill where n = 12345")
        self.tenant: uuid.UUID = row["tenant_id"]
        self.job: uuid.UUID = row["id"]
        self.task: int = row["task_id"]
        self.user: uuid.UUID = sql.one("select md5('user 12345')::uuid")
        self.large: set[str] = {
            f"seq {row['relname']}"
            for row in sql.execute("""
                select relname from pg_class
                where relnamespace = 'penstock'::regnamespace and relkind = 'r' and reltuples > 5000""")
        }
        assert {"seq jobs", "seq parked", "seq schedules", "seq members", "seq dead_letters"} <= self.large


@pytest.fixture(scope="module")
def big(server: Server) -> Generator[Big]:
    with own_database(server) as own:
        yield Big(Contract(own.connect()))


JOBS = "select * from penstock.job_list where"
TASKS = "select * from penstock.task_list where"
LETTERS = "select * from penstock.dead_letter_list where"
AUDIT = "select * from penstock.audit_log where"

# What is asked, and the indexes that lead to it.
PATTERNS = {
    "a job": (f"{JOBS} id = %(job)s", "jobs_pkey"),
    "jobs of a tenant": (f"{JOBS} tenant_id = %(tenant)s order by id desc limit 50", "jobs_tenant"),
    "jobs of a tenant, next page": (
        f"{JOBS} tenant_id = %(tenant)s and id < %(job)s order by id desc limit 50",
        "jobs_tenant",
    ),
    "jobs of a tenant in a state": (
        f"{JOBS} tenant_id = %(tenant)s and status = 'failed' order by id desc limit 50",
        "jobs_tenant_status",
    ),
    "jobs in a state that few are in": (f"{JOBS} status = 'rare' order by id desc limit 50", "jobs_status"),
    "a job by its key": (
        "select id from penstock.jobs where tenant_id = %(tenant)s and idempotency_key = 'x'",
        "jobs_idempotency",
    ),
    "tasks of a job": (
        f"{TASKS} job_id = %(job)s order by id limit 50",
        "tasks_pkey results_pkey attempts_pkey",
    ),
    "a task by its id alone": (f"{TASKS} id = %(task)s", "tasks_id results_pkey"),
    "attempts of a task": (
        "select * from penstock.attempts where job_id = %(job)s and task_id = %(task)s order by lease",
        "attempts_pkey",
    ),
    "dead letters of a cause": (
        f"{LETTERS} tenant_id = %(tenant)s and kind = 'work' and error_code = 'code_4'"
        " order by id desc limit 50",
        "dead_letters_cause",
    ),
    "dead letters of a job": (f"{LETTERS} job_id = %(job)s", "dead_letters_job"),
    "audit of a tenant": (f"{AUDIT} tenant_id = %(tenant)s order by id desc limit 50", "audit_log_tenant"),
    "audit of a job": (f"{AUDIT} job_id = %(job)s order by id", "audit_log_job"),
    "tenants of a user": ("select tenant_id from penstock.members where user_id = %(user)s", "members_user"),
    "members of a tenant": ("select * from penstock.members where tenant_id = %(tenant)s", "members_pkey"),
    "schedules of a tenant": (
        "select * from penstock.schedules where tenant_id = %(tenant)s order by name",
        "schedules_tenant_id_name_key",
    ),
    "due schedules": (
        "select id from penstock.schedules where is_enabled and next_run_at <= now()"
        " order by next_run_at limit 100",
        "schedules_due",
    ),
    "due parked": (
        "select task_id from penstock.parked where pending = 0 and until <= now() and until < 'infinity'"
        " order by until limit 100",
        "parked_due",
    ),
}
each_pattern = pytest.mark.parametrize("name", PATTERNS)


@pytest.mark.slow
class TestQueries:
    def check(self, big: Big, name: str) -> None:
        query, indexes = PATTERNS[name]
        values = {"tenant": big.tenant, "job": big.job, "task": big.task, "user": big.user}
        bound = [values[key] for key in re.findall(r"%\((\w+)\)s", query)]
        plan = explain(big.sql, re.sub(r"%\(\w+\)s", "%s", query), *bound)
        used = {node["Index Name"] for node in nodes(plan) if "Index Name" in node}
        read = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert set(indexes.split()) <= used
        assert read == [], "a table is read from its start"

    @each_pattern
    def test_has_its_index(self, big: Big, name: str) -> None:
        """R0.8/queries: with 100,000 rows EXPLAIN shows the index."""
        self.check(big, name)

    @each_pattern
    def test_has_it_under_row_security(self, big: Big, name: str) -> None:
        """R0.8/row-security: queries of signed-in users use the index despite the policies."""
        if name in ("due parked", "a job by its key"):
            pytest.skip("not for users")
        with big.sql.connection.transaction(force_rollback=True):
            claims = json.dumps({"sub": str(big.user)})
            big.sql.execute("select set_config('request.jwt.claims', %s, true)", claims)
            big.sql.execute("set local role authenticated")
            self.check(big, name)


@pytest.mark.slow
class TestCalls:
    """Counts what functions read: no sequential scan, few pages."""

    def small(self, big: Big, most: int, query: str, *params: Any) -> dict[str, int]:
        found = scans(big.sql, query, *params)
        # Tables that stay small whatever the load.
        few = {"lanes", "kinds", "job_types", "settings", "tenants", "chores", "leases", "shares", "mixed"}
        few |= {"upkeep_runs", "workers"}
        # Nothing here names a provider or units: these are empty, and no plan for them says anything.
        few |= {
            "endpoints",
            "endpoint_states",
            "accounts",
            "holds",
            "usage_sums",
            "cost_sums",
            "tenant_limits",
            "gates",
            "operations",
        }
        assert big.large & set(found) == set()
        # The plan for a small table depends on the rows that other tests wrote and rolled back. So the question
        # about small tables is whether an index can serve each query.
        served = scans(big.sql, query, *params, avoid_tables=True)
        big.sql.execute("discard plans")
        assert {name for name in served if name.startswith("seq ")} <= {f"seq {name}" for name in few}
        with big.sql.connection.transaction(force_rollback=True):
            # Small tables are full of rows that other tests rolled back.
            big.sql.execute("set local enable_seqscan = off")
            assert pages(big.sql, query, *params) < most
        big.sql.execute("discard plans")
        return found

    def test_due_schedules(self, big: Big) -> None:
        """None of 100,000 schedules that are not due is read."""
        assert self.small(big, 30, "select * from penstock.due_schedules()")["schedules_due"] == 1

    def test_upkeep(self, big: Big) -> None:
        """None of 100,000 tasks that are parked until later is read."""
        # Upkeep reads the oldest entries of many indexes: those of rows that other tests rolled back come first.
        big.sql.execute("vacuum")
        found = self.small(big, 300, "select * from penstock.upkeep()")
        assert found["parked_due"] >= 2 and found["schedules_due"] == 1

    def test_prune(self, big: Big) -> None:
        """None of 100,000 jobs within the retention time is read."""
        query = "select penstock.prune(100)"
        found = scans(big.sql, query)
        assert found["jobs_finished"] >= 1 and "seq jobs" not in found
        assert pages(big.sql, query) < 150

    def test_my_tenants(self, big: Big) -> None:
        """The function that every policy calls."""
        claims = json.dumps({"sub": str(big.user)})
        with big.sql.connection.transaction(force_rollback=True):
            big.sql.execute("select set_config('request.jwt.claims', %s, true)", claims)
            assert self.small(big, 20, "select penstock.my_tenants()")["members_user"] == 1

    def test_discarding_a_cause(self, big: Big) -> None:
        filter = {"tenant_id": str(big.tenant), "kind": "work", "error_code": "code_4", "limit": 1}
        found = self.small(big, 300, "select penstock.discard_dead_letters(%s)", json.dumps(filter))
        assert found["dead_letters_cause"] >= 1

    def test_retry_of_a_job(self, big: Big) -> None:
        job = big.sql.one("select id from fill where status = 'failed' and n % 5 = 0 order by n desc limit 1")
        found = self.small(big, 400, "select penstock.retry_job(%s)", job)
        assert found["dead_letters_job"] >= 1

    @pytest.mark.parametrize("figures", ["backlog", "drain_rates", "wanted_slots", "metric_figures"])
    def test_a_scrape(self, big: Big, figures: str) -> None:
        """R1.8/metrics: /metrics counts no table from its start, with 100,000 jobs, results and parked tasks."""
        found = scans(big.sql, f"select * from penstock.{figures}()", avoid_tables=True)
        assert big.large & set(found) == set()

    @pytest.mark.parametrize("function", ["get_job", "get_job_detail"])
    def test_get_job(self, big: Big, function: str) -> None:
        self.small(big, 60, f"select penstock.{function}(%s)", big.job)

    @pytest.mark.parametrize("verb", ["pause_job", "cancel_job"])
    def test_stopping_a_job(self, big: Big, verb: str) -> None:
        job = big.sql.one(
            "select id from fill where status = 'running' and n % 5 = 0 order by n desc limit 1"
        )
        self.small(big, 150, f"select penstock.{verb}(%s)", job)

    def test_start_job(self, big: Big) -> None:
        self.small(
            big,
            200,
            """select penstock.start_job('fill', '{}', '[{"kind": "work"}]', %s)""",
            json.dumps({"tenant_id": str(big.tenant), "idempotency_key": "x"}),
        )

    def test_functions_without_sequential_scans_turn_jit_off(self, big: Big) -> None:
        """With enable_seqscan = off plans have high estimated costs, so versions before 18 would compile each call."""
        rows = big.sql.execute("""
            select proname, array_to_string(proconfig, ' ') as config from pg_proc
            where pronamespace = 'penstock'::regnamespace""")
        bent = [row for row in rows if "enable_seqscan=off" in (row["config"] or "")]
        assert {"claim_tasks", "complete_tasks", "start_job", "_promote"} <= {row["proname"] for row in bent}
        assert [row["proname"] for row in bent if "jit=off" not in row["config"]] == []


# Claim and completion, with a short and with a long queue

READY = """
with job as (
  insert into penstock.jobs (tenant_id, type, status, created_by, created_at, started_at)
  values (%(tenant)s, 'fill', 'running', 'test', now(), now()) returning id
), phase as (
  insert into penstock.phases (job_id, position, tenant_id, name, total)
  select id, 1, %(tenant)s, 'work', %(n)s from job
), task as (
  insert into penstock.tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, kind, input)
  select job.id, nextval('penstock.task_ids'), %(tenant)s, now(), l.id, 1, 5, 'work', '{}'
  from job, penstock.lanes l, generate_series(1, %(n)s) where l.kind = 'work' returning *
)
insert into penstock.ready (task_id, vtime, job_id, tenant_id, lane_id, priority, phase)
select id, 1000000 * id, job_id, tenant_id, lane_id, 5, 1 from task
"""
ENDED = """
with job as (
  insert into penstock.jobs (id, tenant_id, type, status, created_by, created_at, started_at, finished_at)
  select lpad(to_hex(n), 32, '0')::uuid, md5((n %% 1000)::text)::uuid, 'fill', 'completed', 'test', now(), now(),
    now()
  from generate_series(1, %(n)s) as n returning id
), phase as (
  insert into penstock.phases (job_id, position, tenant_id, name, total, succeeded)
  select id, 1, %(tenant)s, 'work', 1, 1 from job
), task as (
  insert into penstock.tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, kind, input)
  select job.id, nextval('penstock.task_ids'), %(tenant)s, now(), l.id, 1, 5, 'work', '{}'
  from job, penstock.lanes l where l.kind = 'work' returning *
)
insert into penstock.results (job_id, task_id, lease, tenant_id, finished_at, attempt, phase, outcome)
select job_id, id, 1, tenant_id, now(), 1, 1, 'succeeded' from task
"""
# As if the tables had never been looked at.
FORGET = """
delete from pg_statistic where starelid in (
  select oid from pg_class where relnamespace = 'penstock'::regnamespace);
update pg_class set reltuples = -1, relpages = 0, relallvisible = 0
where relnamespace = 'penstock'::regnamespace and relkind in ('r', 'i')"""
COMPLETE = "select * from penstock.complete_tasks('w1', %s::bigint[], %s::bigint[])"


def fill(sql: Contract, statement: str, n: int) -> None:
    sql.execute("set session_replication_role = replica")
    sql.connection.execute(statement.encode(), {"tenant": sql.tenant, "n": n})
    sql.execute("set session_replication_role = origin")


class Costs:
    """Pages for one batch claimed, and for one batch completed."""

    def __init__(self, sql: Contract, batch: int = BATCH, kind: str = "work") -> None:
        claim = f"select * from penstock.claim_tasks('w1', {batch}, '{{{kind}}}')"
        self.scans = scans(sql, claim)
        self.claim = pages(sql, claim)
        with sql.connection.transaction(force_rollback=True):
            tasks = sql.execute(claim)
            assert len(tasks) == batch
            done = [task["id"] for task in tasks], [task["lease"] for task in tasks]
            self.scans_of_complete = scans(sql, COMPLETE, *done)
            self.complete = pages(sql, COMPLETE, *done)


@pytest.fixture(scope="module")
def costs(server: Server) -> Generator[dict[str, Costs]]:
    """Measured in turn, without a look at the tables in between: with 1,000 tasks ready; with 100,000, and
    others ended, by a session that made its plans when there were two jobs, and by a new one; then with good
    statistics, and with none."""
    with own_database(server) as own:
        # Two sessions: one that fills, and one whose plans nothing throws away.
        sql, filler = Contract(own.connect()), Contract(own.connect())
        sql.tenant = filler.tenant = sql.value("create_tenant", name="big")
        sql.start(1)
        sql.drain()
        sql.start(1)
        filler.execute("analyze")
        sql.execute("discard plans")
        assert sql.drain() == 1
        found: dict[str, Costs] = {}
        fill(filler, READY, 1000)
        found["few"] = Costs(sql)
        fill(filler, ENDED, ENDED_ROWS)
        fill(filler, READY, ROWS - 1000)
        found["old plans"] = Costs(sql)
        sql.execute("discard plans")
        found["old statistics"] = Costs(sql)
        filler.execute("analyze")
        found["good statistics"] = Costs(sql)
        filler.execute(FORGET)
        found["no statistics"] = Costs(sql)
        for _ in range(200):
            sql.start(["other"])
        filler.execute("analyze")
        found["5 small jobs"] = Costs(sql, 5, "other")
        found["100 small jobs"] = Costs(sql, 100, "other")
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("when", ["old plans", "old statistics", "good statistics", "no statistics"])
class TestClaim:
    def test_a_claim_costs_the_same_at_every_queue_length(self, costs: dict[str, Costs], when: str) -> None:
        """R0.8/claim: a hundred times as many ready tasks: at most half as many pages more."""
        few, many = costs["few"], costs[when]
        assert many.claim < 1.5 * few.claim, (few.claim, many.claim)
        # A few index pages and a row of each of six tables for each task.
        assert many.claim < 40 * BATCH

    def test_a_completion_costs_the_same_at_every_queue_length(
        self, costs: dict[str, Costs], when: str
    ) -> None:
        few, many = costs["few"], costs[when]
        assert many.complete < 1.5 * few.complete, (few.complete, many.complete)
        assert many.complete < 40 * BATCH

    def test_claim_and_completion_use_indexes(self, costs: dict[str, Costs], when: str) -> None:
        """R0.8/claim: with good, stale and missing statistics."""
        seen = costs[when]
        assert seen.scans["ready_claim"] == 1
        assert sum(n for name, n in seen.scans.items() if name.startswith("jobs_")) <= BATCH + 10
        assert seen.scans["tasks_pkey"] == BATCH
        assert seen.scans_of_complete["leases_pkey"] == BATCH
        large = {f"seq {name}" for name in ("ready", "jobs", "tasks", "results", "leases", "phases")}
        assert not large & {*seen.scans, *seen.scans_of_complete}


@pytest.mark.slow
def test_the_cost_of_ending_jobs_is_linear(costs: dict[str, Costs]) -> None:
    """R1.5/no-hot-row: twenty times as many jobs in a batch cost twenty times as much, not four hundred times."""
    few, many = costs["5 small jobs"], costs["100 small jobs"]
    assert many.claim / 100 < 1.5 * few.claim / 5
    assert many.complete / 100 < 1.5 * few.complete / 5


YOUNG_CALLS = [
    """start_job('report', '{}', '[{"kind": "work"}]', '{"tenant_id": "TENANT", "idempotency_key": "x"}')""",
    """open_job('report', '{}', '{"tenant_id": "TENANT", "idempotency_key": "x"}')""",
    """add_tasks('JOB', '[{"kind": "work"}]')""",
    "get_job('JOB')",
    "get_job_detail('JOB')",
]


@pytest.mark.parametrize("call", YOUNG_CALLS, ids=[call.split("(")[0] for call in YOUNG_CALLS])
def test_plans_made_on_young_tables_use_indexes(db: Database, call: str) -> None:
    """A session keeps its plans while tables grow. Only leases and kinds are read whole: both stay small."""
    sql = prepare(Contract(db.connect()))
    sql.tenant = sql.value("create_tenant", name="young")
    job, *_ = [sql.start(1) for _ in range(10)]
    sql.execute("analyze")
    found = scans(sql, "select penstock." + call.replace("JOB", str(job)).replace("TENANT", str(sql.tenant)))
    assert {name for name in found if name.startswith("seq ")} <= {"seq leases", "seq kinds"}
