"""`penstock doctor`: checks of an installation, each with a finding and an action."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, LiteralString, TypeAlias
from uuid import uuid4

import psycopg

from penstock.contract import alerts, audit, prompts, workers
from penstock.errors import PenstockError, Unavailable
from penstock.formatting import counted
from penstock.postgres import db, migrate
from penstock.settings import settings

State: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. `action` says what to do if the state is not ok."""

    name: str
    state: State
    finding: str
    action: str | None = None


async def examine(dsn: str) -> list[Check]:
    """Run all checks. Changes nothing."""
    try:
        # The pool would retry for a long time and then not report the cause.
        (await asyncio.to_thread(db.connect, dsn, name="penstock doctor", wait_seconds=0)).close()
    except (Unavailable, psycopg.Error) as error:
        reason = str(error).strip()
        return [
            Check(
                "database",
                "fail",
                reason,
                "Check DATABASE_URL, and that the server runs and accepts this login.",
            )
        ]
    async with db.pool(dsn, name="penstock doctor", max_size=2) as pool:
        checks = [await _run(name, check, pool) for name, check in _SERVER.items()]
        checks.append(await _run("LISTEN", lambda pool: _listening(pool, dsn), pool))
        checks.append(await asyncio.to_thread(_schema, dsn))
        if not checks[-1].finding.startswith("schema penstock: missing"):
            checks += [await _run(name, check, pool) for name, check in _PENSTOCK.items()]
    return checks


async def examine_providers(dsn: str) -> list[Check]:
    """Try the key of each provider with a free call. The only check that calls other machines."""
    # Imported here because it needs optional packages.
    from penstock.providers import checks

    async with db.pool(dsn, name="penstock doctor", max_size=2) as pool:
        tried = await checks.examine(pool)
    if not tried:
        return [Check("keys", "ok", "no provider has a key", None)]
    return [
        Check(
            each.provider,
            "ok" if each.is_good else "fail",
            f"{each.finding} (key of {each.source})",
            each.action,
        )
        for each in tried
    ]


CheckFunction: TypeAlias = Callable[[db.Pool], Awaitable[Check]]


async def _run(name: str, check: CheckFunction, pool: db.Pool) -> Check:
    try:
        return await check(pool)
    except (PenstockError, psycopg.Error) as error:
        return Check(name, "warn", f"check failed: {error}", "Connect as a role that has the permission.")


# The server


async def _database(pool: db.Pool) -> Check:
    started = time.monotonic()
    [(number, version)] = await db.rows(
        pool, "select current_setting('server_version_num')::integer, current_setting('server_version')", ()
    )
    milliseconds = 1000 * (time.monotonic() - started)
    return _version(number, f"PostgreSQL {version.split()[0]}, responds in {milliseconds:.0f} ms")


# The first minor versions that fix bypasses of row-level security:
# CVE-2023-2455, CVE-2024-10976, CVE-2025-8713.
_FIXED = {15: 14, 16: 10, 17: 6}


def _version(number: int, finding: str) -> Check:
    major, minor = divmod(number, 10_000)
    if major < 15:
        return Check("database", "fail", finding, "Penstock needs PostgreSQL 15 or newer.")
    if minor < _FIXED.get(major, 0):
        action = (
            f"Update to {major}.{_FIXED[major]} or newer: older versions let users bypass row-level security."
        )
        return Check("database", "warn", finding, action)
    if major >= 19:
        return Check("database", "warn", finding, "Penstock is tested with PostgreSQL 15 to 18.")
    return Check("database", "ok", finding)


async def _durability(pool: db.Pool) -> Check:
    names = ["fsync", "full_page_writes", "synchronous_commit"]
    rows = await db.rows(pool, "select name, setting from pg_settings where name = any (%s)", (names,))
    off = [name for name, setting in rows if setting == "off"]
    if off:
        action = (
            f"Set {' and '.join(f'{name} = on' for name in off)}. Otherwise a crash loses accepted tasks."
        )
        return Check("durability", "fail", f"{', '.join(off)} off", action)
    return Check("durability", "ok", "fsync, full_page_writes and synchronous_commit are on")


async def _clock(pool: db.Pool) -> Check:
    before = time.time()
    [(now,)] = await db.rows(pool, "select clock_timestamp()", ())
    after = time.time()
    assert isinstance(now, datetime)
    skew = now.timestamp() - (before + after) / 2
    if abs(skew) > 2 + (after - before):
        word = "ahead of" if skew > 0 else "behind"
        action = "Synchronize both clocks with NTP. Penstock uses the database's, so ages look wrong here."
        return Check("clock", "warn", f"the database is {abs(skew):.0f} s {word} this machine", action)
    return Check("clock", "ok", f"{abs(skew) * 1000:.0f} ms difference to the database")


_OLDEST: LiteralString = """\
select * from (
  select format('pid %%s (%%s, %%s)', pid, coalesce(nullif(application_name, ''), 'no name'), state) as who,
    extract(epoch from clock_timestamp() - xact_start)::float8 as age
  from pg_stat_activity
  where xact_start is not null and backend_type = 'client backend' and pid <> pg_backend_pid()
    and datname = current_database()
  union all
  select format('prepared transaction %%s', gid), extract(epoch from clock_timestamp() - prepared)
  from pg_prepared_xacts where database = current_database()
) as x order by age desc limit 1"""
_SLOTS: LiteralString = """\
select slot_name, age(coalesce(xmin, catalog_xmin)) from pg_replication_slots
where coalesce(xmin, catalog_xmin) is not null and age(coalesce(xmin, catalog_xmin)) > 1000000
order by 2 desc limit 1"""


async def _transactions(pool: db.Pool) -> Check:
    slots = await db.rows(pool, _SLOTS, ())
    if slots:
        finding = f"replication slot {slots[0][0]} holds back vacuum by {slots[0][1]:,} transactions"
        return Check("transactions", "warn", finding, "Let its consumer catch up, or drop the slot.")
    rows = await db.rows(pool, _OLDEST, ())
    who, age = rows[0] if rows else ("none", 0.0)
    if age > 300:
        action = "End it: while it is open, vacuum cannot remove dead rows."
        return Check("transactions", "warn", f"{who} has been open for {_duration(age)}", action)
    return Check(
        "transactions", "ok", f"the oldest has been open for {_duration(age)}" if rows else "none open"
    )


async def _vacuum(pool: db.Pool) -> Check:
    names = ["autovacuum", "track_counts"]
    rows = await db.rows(
        pool, "select name from pg_settings where name = any (%s) and setting = 'off'", (names,)
    )
    if rows:
        return Check(
            "vacuum",
            "warn",
            f"{rows[0][0]} is off",
            f"Set {rows[0][0]} = on. Otherwise the queue slows down.",
        )
    bloated = await db.rows(pool, _DEAD, (_HOT,))
    if bloated:
        table, dead, live = bloated[0]
        finding = f"penstock.{table} has {dead:,} dead rows and {live:,} live rows"
        return Check(
            "vacuum", "warn", finding, f"Find out what blocks vacuum, then run: vacuum penstock.{table}"
        )
    return Check("vacuum", "ok", "autovacuum is on and keeps up")


_HOT = ["ready", "parked", "leases", "lanes", "shares", "phases", "jobs", "workers"]
_DEAD: LiteralString = """\
select relname, n_dead_tup, n_live_tup from pg_stat_user_tables
where schemaname = 'penstock' and relname = any (%s) and n_dead_tup > greatest(50000, 2 * n_live_tup)
order by n_dead_tup desc limit 1"""


async def _listening(pool: db.Pool, dsn: str) -> Check:
    if settings().listen == "off":
        return Check("LISTEN", "ok", "disabled by PENSTOCK_LISTEN; workers poll")
    channel = f"penstock_doctor_{uuid4().hex[:12]}"
    try:
        listening = db.listen(dsn, channel, name="penstock doctor", is_pooled_refused=True)
        async with asyncio.timeout(3), aclosing(listening) as heard:
            async for payload in heard:
                if payload:
                    return Check("LISTEN", "ok", "notifications arrive")
                await db.rows(pool, "select pg_notify(%s, 'heard')", (channel,))
    except (TimeoutError, db.Pooled):
        pass
    return Check(
        "LISTEN",
        "warn",
        "notifications do not arrive; workers poll, and new tasks start later",
        "Connect workers to PostgreSQL directly, or set PENSTOCK_LISTEN=off behind a transaction pooler.",
    )


# Penstock


def _schema(dsn: str) -> Check:
    with db.connect(dsn, name="penstock doctor", wait_seconds=5) as connection:
        differences = migrate.check(connection)
    if not differences:
        return Check("schema", "ok", "matches this version")
    more = f", and {counted(len(differences) - 1, 'more difference')}" if len(differences) > 1 else ""
    action = "Run `penstock migrate`. `penstock migrate --check` lists all differences."
    return Check("schema", "fail", differences[0] + more, action)


# anon has no right to anything in the schema; users and the service execute no function that begins with _,
# except those that a view calls, which are granted by name.
_EXPOSED: LiteralString = """\
select (select count(*) from pg_class c where c.relnamespace = n.oid and c.relkind in ('r', 'p', 'v')
    and has_table_privilege('anon', c.oid, 'select, insert, update, delete, truncate')),
  (select count(*) from pg_proc p where p.pronamespace = n.oid
    and has_function_privilege('anon', p.oid, 'execute')),
  (select count(*) from pg_class c where c.relnamespace = n.oid and c.relkind in ('r', 'p')
    and has_table_privilege('service_role', c.oid, 'truncate')),
  (select count(*) from pg_default_acl d cross join lateral aclexplode(d.defaclacl) as a
    where d.defaclnamespace = n.oid
      and a.grantee in (select r.oid from pg_roles r
        where r.rolname in ('anon', 'authenticated', 'service_role')))
from pg_namespace n where n.nspname = 'penstock'"""


async def _exposure(pool: db.Pool) -> Check:
    """Finds `GRANT ALL … TO anon`, which guides to exposing a schema tell people to run."""
    [(tables, functions, written, defaults)] = await db.rows(pool, _EXPOSED, ())
    if tables or functions or written:
        finding = (
            f"anon may use {counted(tables, 'table')} and execute {counted(functions, 'function')}, "
            f"service_role may empty {counted(written, 'table')}: anybody can act as the service"
        )
        action = (
            "Run `penstock migrate`: it revokes this. See docs/deploy/supabase.md, which grants to leave out."
        )
        return Check("exposure", "fail", finding, action)
    if defaults:
        finding = "default privileges of schema penstock grant rights on every new table or function"
        action = (
            "alter default privileges in schema penstock revoke all on tables (routines, sequences) from …"
        )
        return Check("exposure", "warn", finding, action)
    return Check("exposure", "ok", "anon has no rights in schema penstock")


async def _maintenance(pool: db.Pool) -> Check:
    [(is_on,)] = await db.rows(
        pool, "select value::boolean from penstock.settings where name = 'maintenance'", ()
    )
    if is_on:
        action = "To end it: select penstock.set_setting('maintenance', 'false')"
        return Check("maintenance", "warn", "on: workers claim no tasks", action)
    return Check("maintenance", "ok", "off")


async def _workers(pool: db.Pool) -> Check:
    found = await workers.list(pool)
    alive = [worker for worker in found if worker.is_alive]
    lost = [worker for worker in found if worker.state in ("late", "gone")]
    known = {kind for worker in alive for kind in worker.kinds}
    waiting = {lane.kind for lane in await workers.backlog(pool) if lane.waiting}
    unhandled = sorted(waiting - known)
    finding = f"{len(alive)} alive, {counted(sum(worker.running for worker in alive), 'task')} running"
    if unhandled:
        action = "Start a worker for them: penstock worker module:app"
        return Check("workers", "warn", f"{finding}; no worker handles {', '.join(unhandled[:5])}", action)
    if lost:
        finding += f"; {lost[0].id} last responded at {lost[0].beat_at:%H:%M:%S %Z}"
        return Check("workers", "warn", finding, "Check its log. Other workers have taken over its tasks.")
    return Check("workers", "ok", finding)


async def _backlog(pool: db.Pool) -> Check:
    lanes = await workers.backlog(pool)
    waiting = sum(lane.waiting for lane in lanes)
    oldest = max((lane.oldest_seconds or 0 for lane in lanes), default=0)
    if not waiting:
        return Check("backlog", "ok", "no waiting tasks")
    finding = f"{counted(waiting, 'waiting task')}, the longest for {_duration(oldest)}"
    if oldest > 3600:
        return Check(
            "backlog", "warn", finding, "Start more workers. `penstock backlog` shows for which kinds."
        )
    return Check("backlog", "ok", finding)


async def _webhooks(pool: db.Pool) -> Check:
    [(count, late, source)] = await db.rows(
        pool,
        """select count(*)::integer,
          (count(*) filter (where received_at < penstock._now() - interval '10 minutes'))::integer,
          min(source) filter (where received_at < penstock._now() - interval '10 minutes')
        from penstock.webhooks where processed_at is null""",
        (),
    )
    if not late:
        finding = f"{counted(count, 'webhook')} to be processed" if count else "all processed"
        return Check("webhooks", "ok", finding)
    return Check(
        "webhooks",
        "warn",
        f"{counted(late, 'webhook')} not processed for more than 10 minutes, for example of {source}",
        "See `penstock webhooks ls`. The server needs the app that has the handler; then replay them.",
    )


async def _operations(pool: db.Pool) -> Check:
    [(live, late)] = await db.rows(
        pool,
        """select count(*)::integer,
          (count(*) filter (where deadline_at < penstock._now() - interval '10 minutes'))::integer
        from penstock.operations where status in ('pending', 'processing')""",
        (),
    )
    finding = counted(live, "live operation") if live else "no live operations"
    if not late:
        return Check("operations", "ok", finding)
    return Check(
        "operations",
        "warn",
        f"{finding}, {late} past the deadline",
        "Start a worker that has their kinds. See `penstock operations ls status:processing`.",
    )


async def _chores(pool: db.Pool) -> Check:
    [(count, age)] = await db.rows(
        pool,
        "select count(*), coalesce(extract(epoch from max(penstock._now() - created_at))::float8, 0)"
        " from penstock.chores",
        (),
    )
    if count and age > 60:
        action = "Start a worker: any worker does this."
        return Check(
            "chores",
            "warn",
            f"{counted(count, 'job')} waiting {_duration(age)} to be paused, resumed or cleared",
            action,
        )
    return Check("chores", "ok", f"{count} in progress" if count else "none")


async def _schedules(pool: db.Pool) -> Check:
    failing = await db.rows(
        pool,
        "select name, is_enabled, last_error from penstock.schedules where failures > 0"
        " order by is_enabled, failures desc, name limit 1000",
        (),
    )
    if failing:
        name, is_enabled, error = failing[0]
        finding = f"{len(failing)} failing; {name!r} {'' if is_enabled else 'was turned off: '}({error})"
        action = "Correct it and set it again, or remove it: penstock schedules rm NAME"
        return Check("schedules", "warn", finding, action)
    rows = await db.rows(
        pool,
        "select name, extract(epoch from penstock._now() - next_run_at)::float8 from penstock.schedules"
        " where is_enabled and next_run_at < penstock._now() - interval '1 minute' order by next_run_at",
        (),
    )
    if rows:
        name, late = rows[0]
        finding = f"{len(rows)} overdue; {name} was due {_duration(late)} ago"
        return Check(
            "schedules", "warn", finding, "Start a worker that has its job type, or check the worker's log."
        )
    return Check("schedules", "ok", "none overdue")


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


_SERVER: dict[str, CheckFunction] = {
    "database": _database,
    "durability": _durability,
    "clock": _clock,
    "transactions": _transactions,
    "vacuum": _vacuum,
}
_AUDIT_LINES = 200_000
"""Lines of the audit log that are compared with their seals, the newest first."""


async def _audit(pool: db.Pool) -> Check:
    head = await audit.head(pool)
    problems = await audit.check(pool, lines=_AUDIT_LINES)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        action = "Someone with the rights of the database's owner changed it: compare it with a backup."
        return Check("audit log", "fail", f"{problems[0]}{more}", action)
    finding = (
        f"{min(head.lines, _AUDIT_LINES):,} of {head.lines:,} sealed lines are unchanged, "
        f"{head.unsealed:,} are not sealed yet; head {head.head or 'none'}"
    )
    if (head.unsealed_seconds or 0) > _UNSEALED_SECONDS:
        action = "Start a worker or `penstock serve`, and end transactions that have been open for long."
        return Check("audit log", "warn", finding, action)
    return Check("audit log", "ok", finding)


_UNSEALED_SECONDS = 6 * 3600


async def _alerts(pool: db.Pool) -> Check:
    found = await alerts.list(pool, days=2)
    if not found:
        return Check("alerts", "ok", "none since yesterday")
    finding = "; ".join(
        f"{alert.kind.replace('_', ' ')}: {alert.subject}"
        + (f" ({alert.count} times)" if alert.count > 1 else "")
        for alert in found[:5]
    ) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    # A new key is normal; it is listed so that an operator notices one that nobody expects.
    if all(alert.kind == "key_created" for alert in found):
        return Check("alerts", "ok", finding)
    return Check("alerts", "warn", finding, "See the overview of the dashboard, or penstock.list_alerts().")


async def _providers(pool: db.Pool) -> Check:
    names = [row["providers_without_hosts"] for row in await db.call(pool, "providers_without_hosts")]
    if not names:
        return Check("providers", "ok", "the hosts of all providers are known")
    finding = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return Check(
        "providers",
        "warn",
        f"no hosts are known for {finding}: a 429 in an exception does not slow them",
        "Set the hosts of the provider's API, such as hosts=api.example.com: `penstock limits set`.",
    )


async def _prompts(pool: db.Pool) -> Check:
    found = await prompts.fallbacks(pool)
    if not found:
        return Check("prompts", "ok", "no fallbacks in the last hour")
    worst = max(found, key=lambda each: each.uses)
    return Check(
        "prompts",
        "warn",
        f"{counted(sum(each.uses for each in found), 'call')} of the last hour used the code's constant, "
        f"most of them of {worst.name}",
        "The database did not answer, or a version has variables that the code does not pass: see the log.",
    )


_PENSTOCK: dict[str, CheckFunction] = {
    "exposure": _exposure,
    "maintenance": _maintenance,
    "workers": _workers,
    "backlog": _backlog,
    "chores": _chores,
    "webhooks": _webhooks,
    "operations": _operations,
    "prompts": _prompts,
    "schedules": _schedules,
    "providers": _providers,
    "audit log": _audit,
    "alerts": _alerts,
}
