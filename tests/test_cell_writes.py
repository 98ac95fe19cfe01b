"""What may not change in a cell that a tenant leaves: rows, quota, files in the storage that all cells share."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.cells import moving
from penstock.contract import artifacts
from penstock.postgres import db as database
from penstock.postgres import migrate
from penstock.storage.objects import Folder
from tests.sql.test_access import acting, join
from tests.test_cells import Pair, pair

__all__ = ["pair"]

pytestmark = pytest.mark.every_postgres

DATA = b"%PDF-1.7 x"
DIGEST = hashlib.sha256(DATA).hexdigest()
Write = Callable[[Pair], Any]


def freeze(pair: Pair) -> None:
    pair.old.execute("select penstock._suspend_tenant(%s, 'frozen')", pair.tenant)


def stop_before(step: str, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move until this step, as if the command had crashed there."""

    def crash(_: moving.Move) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setitem(moving._STEPS, step, crash)
        with pytest.raises(KeyboardInterrupt):
            pair.move()


# Files


@pytest.fixture
def storage(tmp_path: Path) -> Folder:
    """The storage that all cells share."""
    return Folder(tmp_path / "files", b"secret")


async def store(pair: Pair, storage: Folder, name: str = "a.pdf") -> uuid.UUID:
    """Store a file of a task that has ended."""
    pair.old.start(1)
    task = pair.old.claim_one()
    async with database.pool(pair.dbs[0].dsn, max_size=2) as pool:
        saved = await artifacts.save(
            pool,
            storage,
            task_id=task["id"],
            worker_id="w1",
            lease=task["lease"],
            name=name,
            data=DATA,
            content_type="application/pdf",
        )
    pair.old.complete(task)
    return uuid.UUID(saved["artifact_id"])


def files(storage: Folder) -> list[bytes]:
    return [path.read_bytes() for path in storage.root.rglob("*") if path.is_file()]


async def test_a_sweep_of_the_old_cell_keeps_the_files_of_a_tenant_that_moved(
    pair: Pair, storage: Folder
) -> None:
    """S96"""
    await store(pair, storage)
    await storage.put(f"{pair.tenant}/uploads/orphan.pdf", DATA, limit=100)
    pair.move()
    async with database.pool(pair.dbs[0].dsn, max_size=2) as pool:
        assert await artifacts.sweep(pool, storage, older_than=0) == (0, 0)
    assert len(files(storage)) == 2
    async with database.pool(pair.dbs[1].dsn, max_size=2) as pool:
        assert await artifacts.sweep(pool, storage, older_than=0) == (0, 1)
        assert [found async for found in artifacts.missing(pool, storage)] == []
    assert files(storage) == [DATA]


async def test_the_old_cell_removes_no_file_between_switch_and_removal(
    pair: Pair, storage: Folder, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is due there may be kept, or written again, in the new cell."""
    kept = await store(pair, storage)
    pair.old.execute("update penstock.artifacts set job_id = null, task_id = null")
    stop_before("remove", pair, monkeypatch)
    pair.new.value("keep_artifact", artifact_id=kept, subject="slides.slide:1")
    clock.advance(days=91)
    assert pair.old.rows("due_artifacts") == []
    pair.old.execute("update penstock.artifacts set status = 'deleted'")
    assert pair.old.rows("due_artifacts") == []


async def test_an_upload_is_not_acknowledged_in_a_cell_that_the_tenant_leaves(
    pair: Pair, storage: Folder
) -> None:
    """The client that is refused finishes its upload in the new cell."""
    options = Jsonb({"tenant_id": str(pair.tenant)})
    [begun] = pair.old.rows(
        "begin_upload", name="a.pdf", content_type="application/pdf", bytes=len(DATA), options=options
    )
    await storage.put(begun["incoming"], DATA, limit=100)
    [taken] = pair.old.rows("take_upload", artifact_id=begun["id"])
    pair.move()
    finish = {"artifact_id": begun["id"], "worker_id": None, "bytes": len(DATA), "sha256": DIGEST}
    with pair.old.refused(404):
        pair.old.rows("finish_artifact", **finish, lease=taken["lease"])
    [again] = pair.new.rows("take_upload", artifact_id=begun["id"])
    pair.new.rows("finish_artifact", **finish, lease=again["lease"])
    assert pair.new.one("select status from penstock.artifacts") == "stored"


async def test_an_upload_is_refused_while_its_tenant_is_frozen(pair: Pair) -> None:
    [begun] = pair.old.rows(
        "begin_upload",
        name="a.pdf",
        content_type="application/pdf",
        bytes=10,
        options=Jsonb({"tenant_id": str(pair.tenant)}),
    )
    [taken] = pair.old.rows("take_upload", artifact_id=begun["id"])
    freeze(pair)
    with pair.old.refused(503, "tenant_suspended"):
        pair.old.rows(
            "finish_artifact",
            artifact_id=begun["id"],
            worker_id=None,
            lease=taken["lease"],
            bytes=10,
            sha256=DIGEST,
        )
    # finish_artifact commits a hold, which checks the tenant too. This function checks it with the file only.
    with pair.old.refused(503, "tenant_suspended"):
        pair.old.rows(
            "describe_artifact", artifact_id=begun["id"], worker_id=None, lease=taken["lease"], type="pdf"
        )


# Rows


def of_tenant(function: str, **arguments: Any) -> Write:
    return lambda pair: pair.old.value(function, tenant_id=pair.tenant, **arguments)


WRITES: dict[str, Write] = {
    "record_usage": of_tenant("record_usage", units=Jsonb({"pages": 1}), action="print"),
    "refund_usage": of_tenant("refund_usage", units=Jsonb({"pages": 1})),
    "record_cost": of_tenant("record_cost", cost_type="render", amount=1),
    "correct_cost": lambda pair: pair.old.value(
        "record_cost",
        cost_type="render",
        amount=-1,
        options=Jsonb({"corrects": pair.old.one("select min(id) from penstock.cost_entries")}),
    ),
    "reserve_quota": of_tenant("reserve_quota", amounts=Jsonb({"pages": 1})),
    "commit_hold": lambda pair: pair.old.value(
        "commit_hold", hold_id=pair.old.one("select id from penstock.holds")
    ),
    "release_hold": lambda pair: pair.old.value(
        "release_hold", hold_id=pair.old.one("select id from penstock.holds")
    ),
    "set_limit": of_tenant("set_limit", meter="pages", amount=7),
    "add_allowance": of_tenant("add_allowance", meter="pages", amount=7),
    "reset_quota": of_tenant("reset_quota", meter="pages"),
    "set_tenant_plan": of_tenant("set_tenant_plan", plan="unlimited"),
    "set_tenant_weight": of_tenant("set_tenant_weight", weight=2.0),
    "bind_customer": of_tenant("bind_customer", customer_id="cus_2"),
    "record_purchase": lambda pair: pair.old.value("_billing_tenant", customer_id="cus_1", tenant_id=None),
    "notify": of_tenant("notify", subject="a", body="b"),
}


@pytest.mark.parametrize("name", WRITES)
def test_the_service_changes_nothing_of_a_frozen_tenant(pair: Pair, name: str) -> None:
    """S96: an update of a row that is copied already would be lost with the old cell."""
    sql, tenant = pair.old, pair.tenant
    sql.value("set_meter", name="pages", values=Jsonb({"period": "month"}))
    sql.value("record_usage", tenant_id=tenant, units=Jsonb({"pages": 3}), action="print")
    sql.value("reserve_quota", tenant_id=tenant, amounts=Jsonb({"pages": 5}))
    sql.value("record_cost", tenant_id=tenant, cost_type="render", amount=3)
    sql.value("bind_customer", tenant_id=tenant, customer_id="cus_1")
    freeze(pair)
    with sql.refused(503, "tenant_suspended"):
        WRITES[name](pair)


def test_billing_of_a_tenant_that_moved_is_left_to_its_cell(pair: Pair) -> None:
    """Its webhook may reach the old cell, which must neither bind the customer again nor refuse for ever."""
    pair.old.value("bind_customer", tenant_id=pair.tenant, customer_id="cus_1")
    pair.move()
    assert pair.old.value("_billing_tenant", customer_id="cus_1", tenant_id=pair.tenant) is None
    assert pair.new.value("_billing_tenant", customer_id="cus_1", tenant_id=pair.tenant) == pair.tenant


def test_a_device_pushes_nothing_into_a_cell_that_its_user_leaves(pair: Pair) -> None:
    """S96: the device keeps the change and sends it again, to the new cell."""
    folder = Path(__file__).parent / "bookshelf/sql"
    migrate.migrate(pair.dbs[0].dsn, folder=folder, schema="bookshelf")
    ann = join(pair.old, "ann")
    pair.old.execute("select penstock._suspend_tenant(%s, 'frozen')", ann.tenant)
    now = pair.old.one("select floor(extract(epoch from penstock._now()) * 1000)::bigint")
    with acting(pair.old, ann.id), pair.old.refused(503, "tenant_suspended"):
        pair.old.execute(
            "insert into bookshelf.topics (user_id, id, updated_at, name) values (%s, %s, %s, 'x')",
            ann.id,
            "t1",
            now,
        )


def test_members_of_a_suspended_tenant_may_read_and_not_write(pair: Pair) -> None:
    """S96: policies of apps ask `is_member` before a write."""
    freeze(pair)
    assert pair.old.value("is_member", tenant_id=pair.tenant) is True
    with pair.old.refused(503, "tenant_suspended"):
        pair.old.value("is_member", tenant_id=pair.tenant, roles=["owner", "admin", "member"])


def test_members_read_nothing_more_in_a_cell_that_their_tenant_has_left(pair: Pair) -> None:
    """S96: who is removed in the new cell must not read on in the old one, where the audit log stays."""
    bob = join(pair.old, "bob")
    pair.old.execute(
        "insert into penstock.members (tenant_id, user_id, role) values (%s, %s, 'member')",
        pair.tenant,
        bob.id,
    )
    pair.old.start(1)
    lines = "select count(*) from penstock.audit_log where tenant_id = %s"
    with acting(pair.old, bob.id):
        assert pair.old.one(lines, pair.tenant) > 0
    pair.move()
    with acting(pair.old, bob.id):
        assert pair.old.one(lines, pair.tenant) == 0
        with pair.old.refused(503, "tenant_suspended"):
            pair.old.start(1)
    with acting(pair.new, bob.id):
        assert pair.new.one(lines, pair.tenant) > 0
