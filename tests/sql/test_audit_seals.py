"""The hash chain over the audit log (S82): tampering is found, writers never wait, retention works."""

from __future__ import annotations

import time
import uuid

import pytest

from penstock import doctor
from penstock.testing import Clock, Database

WRITE = "select penstock._audit(%s, 'test.done', null, 'test:' || n, jsonb_build_object('n', n))"
SEAL = "select * from penstock.seal_audit_log()"
CHECK = "select * from penstock.check_audit_log()"


def write(db: Database, count: int = 10) -> None:
    db.execute(f"{WRITE} from generate_series(1, {count}) as n", [uuid.UUID(int=7)])


def seal(db: Database, clock: Clock) -> list[str]:
    """Seal everything there is. Returns the new heads."""
    clock.advance(hours=2)
    heads: list[str] = []
    deadline = time.monotonic() + 120
    # Transactions in other databases of the server count as well: the tests share it.
    while db.execute("select unsealed from penstock.audit_head()")[0]["unsealed"]:
        heads += [row["head"] for row in db.execute(SEAL)]
        assert time.monotonic() < deadline, "not sealed in time"
        time.sleep(0.02)
    return heads


def problems(db: Database, head: str | None = None) -> list[str]:
    return [row["problem"] for row in db.execute("select * from penstock.check_audit_log(null, %s)", [head])]


def lines(db: Database) -> list[int]:
    return [row["id"] for row in db.execute("select id from penstock.audit_log order by id")]


@pytest.fixture
def sealed(db: Database, clock: Clock) -> Database:
    for _ in range(3):
        write(db)
        assert len(seal(db, clock)) == 1
    assert problems(db) == []
    return db


TAMPERING = {
    "changed": "update penstock.audit_log set actor = 'user:other' where id = %s",
    "changed time": "update penstock.audit_log set at = at + interval '1 microsecond' where id = %s",
    "changed details": "update penstock.audit_log set details = details || '{\"n\": 99}' where id = %s",
    "tenant removed": "update penstock.audit_log set tenant_id = null where id = %s",
    "deleted": "delete from penstock.audit_log where id = %s",
    "inserted": "insert into penstock.audit_log (id, at, actor, action) overriding system value"
    " select 0, at, actor, action from penstock.audit_log where id = %s",
    "reordered": "update penstock.audit_log a set (at, subject, details) = (select b.at, b.subject, b.details"
    " from penstock.audit_log b where b.id = case when a.id = x.one then x.one + 1 else x.one end)"
    " from (select %s::bigint as one) as x where a.id in (x.one, x.one + 1)",
}


@pytest.mark.parametrize("how", TAMPERING)
@pytest.mark.parametrize("place", [1, 15, -2])
def test_tampered_line_is_found(sealed: Database, how: str, place: int) -> None:
    """S82 R3.5/append-only: in the first, a middle and the last sealed batch."""
    sealed.execute(TAMPERING[how], [lines(sealed)[place]])
    found = problems(sealed)
    assert len(found) == 1
    word = {"deleted": " were deleted", "inserted": "1 were inserted"}.get(how, "were changed")
    assert word in found[0]


async def test_doctor_reports_tampering(sealed: Database) -> None:
    """S82: `penstock doctor` compares the lines with their seals and fails."""
    found = {check.name: check for check in await doctor.examine(sealed.dsn)}
    assert found["audit log"].state == "ok"
    sealed.execute(TAMPERING["changed"], [lines(sealed)[1]])
    check = {each.name: each for each in await doctor.examine(sealed.dsn)}["audit log"]
    assert check.state == "fail" and "were changed" in check.finding and check.action


def test_tampered_seal_is_found(sealed: Database) -> None:
    """S82: a seal that is changed, deleted or made to fit breaks the chain."""
    [head] = sealed.execute("select head from penstock.audit_head()")
    for change, found in (
        ("update penstock.audit_seals set digest = sha256('x') where number = 2", "does not follow"),
        ("update penstock.audit_seals set lines = 11 where number = 2", "does not follow"),
        ("delete from penstock.audit_seals where number = 2", "the seals after 1 are missing"),
        ("delete from penstock.audit_seals where number = 1", "the seals before it are missing"),
    ):
        with sealed.connect() as conn, conn.transaction(force_rollback=True):
            conn.execute(change.encode())
            rows = conn.execute(CHECK).fetchall()
            assert any(found in row["problem"] for row in rows), change
    assert problems(sealed, head["head"]) == []
    # The owner of the database can remove the end of the chain or write another: compare it with a head kept elsewhere.
    sealed.execute("delete from penstock.audit_seals where number = 3")
    assert problems(sealed) == []
    assert "the chain has no seal 3:" in problems(sealed, head["head"])[0]


def test_line_of_an_open_transaction_is_not_skipped(db: Database, clock: Clock) -> None:
    """S82: a line that commits late is sealed with its neighbours, and never appears in a sealed range."""
    write(db)
    with db.connect() as late:
        with late.transaction():
            late.execute("select penstock._audit(null, 'test.late', null, null)")
            write(db)
            clock.advance(hours=2)
            assert [db.execute(SEAL) for _ in range(3)] == [[], [], []]
            assert db.execute("select unsealed from penstock.audit_head()") == [{"unsealed": 20}]
        heads = seal(db, clock)
    assert len(heads) == 1
    [row] = db.execute("select last_id, lines from penstock.audit_seals")
    assert (row["last_id"], row["lines"]) == (max(lines(db)), len(lines(db)))
    assert problems(db) == []


def test_writers_do_not_wait_for_the_seal_nor_for_each_other(db: Database, clock: Clock) -> None:
    write(db, 5)
    seal(db, clock)
    write(db, 5)
    clock.advance(hours=2)
    with db.connect() as one, db.connect() as two, one.transaction(), two.transaction():
        one.execute("set local lock_timeout = '5s'")
        two.execute("set local lock_timeout = '5s'")
        one.execute(SEAL)
        two.execute("select penstock._audit(null, 'test.two', null, null)")
        assert two.execute(SEAL).fetchall() == [], "one process seals at a time, the others do not wait"
        one.execute("select penstock._audit(null, 'test.one', null, null)")
    assert problems(db) == []


def test_rolled_back_lines_leave_gaps_that_are_no_problem(db: Database, clock: Clock) -> None:
    write(db)
    with db.connect() as conn, conn.transaction(force_rollback=True):
        conn.execute("select penstock._audit(null, 'test.gone', null, null)")
    write(db)
    assert len(seal(db, clock)) == 1 and problems(db) == []


def test_few_recent_lines_wait_and_many_are_sealed_in_batches(db: Database) -> None:
    write(db, 5)
    assert [db.execute(SEAL) for _ in range(3)] == [[], [], []]
    write(db, 2500)
    made: list[int] = []
    deadline = time.monotonic() + 120
    while len(made) < 2 and time.monotonic() < deadline:
        made += [row["lines"] for row in db.execute("select * from penstock.seal_audit_log(1000)")]
    assert made == [1000, 1000] and problems(db) == []


def test_retention_keeps_the_chain_checkable(db: Database, clock: Clock) -> None:
    """S82: the last pruned seal is the checkpoint at which the chain begins."""
    for _ in range(4):
        write(db)
        assert len(seal(db, clock)) == 1
        clock.advance(days=1)
    db.execute("select penstock.set_setting('audit_retention_days', '3')")
    clock.advance(days=1, hours=12)
    seal(db, clock)
    for _ in range(4):
        db.execute(SEAL)
    [state] = db.execute("select min(number) as first, count(*) as n from penstock.audit_seals")
    assert state["first"] == 3 and 10 <= len(lines(db)) < 20
    assert problems(db) == []
    first = lines(db)[0]
    db.execute("delete from penstock.audit_log where id = %s", [first])
    assert "1 of 10 were deleted" in problems(db)[0]
    # Lines that do not match their seal are evidence, which retention keeps.
    clock.advance(days=30)
    for _ in range(4):
        db.execute(SEAL)
    assert "1 of 10 were deleted" in problems(db)[0]


def test_mark_of_another_server_is_replaced(db: Database, clock: Clock) -> None:
    """After a restore the transaction ids begin anew."""
    write(db)
    db.execute("insert into penstock.audit_marks values (true, 999999, '4000000000000')")
    assert len(seal(db, clock)) == 1 and problems(db) == []
