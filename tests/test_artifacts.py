"""Artifacts: their records, their paths, their quota, and recovery from crashes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import App, Context, cli, testing
from penstock.contract import artifacts
from penstock.errors import Forbidden, Invalid, LeaseLost, Limited, NotFound, TooLarge
from penstock.postgres import db as database
from penstock.storage import containers
from penstock.storage.objects import Bucket, Folder, Stored
from penstock.upkeep import Tidy
from tests.test_containers import archive
from tests.test_storage import bucket, credentials, s3

__all__ = ["bucket", "credentials", "s3"]

PDF = b"%PDF-1.7\n"


@dataclass
class Place:
    """A database and a folder, and a worker that saves files there."""

    db: testing.Database
    tenant: uuid.UUID
    storage: Folder

    def start(self, kind: str = "pdf") -> uuid.UUID:
        self.db.execute("select penstock.define_kind(%s, '{\"backoff_seconds\": 0}')", [kind])
        query = "select penstock.start_job('report', '{}', %s, %s) as id"
        options = json.dumps({"tenant_id": str(self.tenant)})
        [row] = self.db.execute(query, [json.dumps([{"kind": kind}]), options])
        return row["id"]

    def claim(self, worker: str = "w1", kind: str = "pdf") -> dict[str, Any]:
        [row] = self.db.execute("select * from penstock.claim_tasks(%s, 1, array[%s])", [worker, kind])
        return {"task_id": row["id"], "worker_id": worker, "lease": row["lease"], "job_id": row["job_id"]}

    def task(self, kind: str = "pdf") -> dict[str, Any]:
        self.start(kind)
        return self.claim(kind=kind)

    async def save(
        self, pool: database.Pool, task: dict[str, Any], name: str = "", **how: Any
    ) -> dict[str, Any]:
        holder = {key: task[key] for key in ("task_id", "worker_id", "lease")}
        given: dict[str, Any] = {"data": PDF, "content_type": "application/pdf", **how}
        return await artifacts.save(pool, self.storage, **holder, name=name, **given)

    def records(self) -> list[dict[str, Any]]:
        return self.db.execute("select * from penstock.artifacts order by id")

    def files(self) -> dict[str, bytes]:
        root = self.storage.root
        return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}

    def bytes(self) -> tuple[int, int]:
        """The bytes that the tenant has used and reserved. The accounts must add up, too."""
        assert self.db.execute("select * from penstock.check_accounts()") == []
        query = "select used, held from penstock.accounts where tenant_id = %s and meter = 'bytes'"
        rows = self.db.execute(query, [self.tenant])
        return (int(rows[0]["used"]), int(rows[0]["held"])) if rows else (0, 0)

    def limit(self, amount: int) -> None:
        self.db.execute("select penstock.set_limit(%s, 'bytes', %s)", [self.tenant, amount])

    def is_whole(self) -> bool:
        """Each stored record has its file with its digest, and each file its record."""
        records = {row["path"]: row["sha256"] for row in self.records()}
        return records == {path: hashlib.sha256(data).hexdigest() for path, data in self.files().items()}


@pytest.fixture
def place(db: testing.Database, tenant: uuid.UUID, tmp_path: Path) -> Place:
    return Place(db, tenant, Folder(tmp_path / "files", b"secret"))


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[database.Pool]:
    async with database.pool(place.db.dsn, max_size=4) as pool:
        yield pool


async def test_kept_files_are_listed(place: Place, clock: testing.Clock) -> None:
    """B8/kept-files: `artifacts ls --kept` names the subject; the sweep leaves the file."""
    task = place.task()
    async with opened(place) as pool:
        kept = uuid.UUID((await place.save(pool, task, "a.pdf"))["artifact_id"])
        await place.save(pool, task, "b.pdf")
        await artifacts.keep(pool, artifact_id=kept, subject="slides.slide:7")
        [found] = await artifacts.list_kept(pool)
        assert (found.id, found.subject, found.kept_until) == (kept, "slides.slide:7", None)
        assert await artifacts.list_kept(pool, subject="slides.slide:8") == []
        await database.call(
            pool, "complete_task", p_task_id=task["task_id"], p_worker_id="w1", p_lease=task["lease"]
        )
        clock.advance(days=91)
        assert await artifacts.is_any_due(pool) is False
        while await database.value(pool, "prune"):
            pass
        assert await artifacts.is_any_due(pool) is True
        assert await artifacts.sweep(pool, place.storage) == (1, 0)
        assert place.is_whole() and len(place.files()) == 1 and place.bytes() == (len(PDF), 0)
        assert await artifacts.is_any_due(pool) is False
        assert await artifacts.unkeep(pool, artifact_id=kept) is True
        assert await artifacts.is_any_due(pool) is True


def test_the_command_line_lists_kept_files(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def keep() -> None:
        async with opened(place) as pool:
            saved = await place.save(pool, place.task(), "a.pdf")
            await artifacts.keep(pool, artifact_id=uuid.UUID(saved["artifact_id"]), subject="slides.slide:7")

    asyncio.run(keep())
    assert cli.execute(["--database", place.db.dsn, "-o", "json", "artifacts", "ls", "--kept"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["name"], row["subject"], row["kept_until"]) == ("a.pdf", "slides.slide:7", None)
    assert cli.execute(["--database", place.db.dsn, "artifacts", "ls"]) == 2


class TestSaving:
    async def test_saving_stores_a_file_and_its_record(self, place: Place) -> None:
        """R1.4/path: {tenant}/{job}/{kind}/{task}.{ext}, with the digest of the written bytes."""
        task = place.task()
        async with opened(place) as pool:
            saved = await place.save(pool, task)
            path = f"{place.tenant}/{task['job_id']}/pdf/{task['task_id']}.pdf"
            assert saved["path"] == path
            assert place.files() == {path: PDF}
            [found] = await artifacts.list(pool, job_id=task["job_id"])
            assert (str(found.id), found.bytes, found.sha256) == (
                saved["artifact_id"],
                len(PDF),
                hashlib.sha256(PDF).hexdigest(),
            )
            assert await artifacts.get(pool, artifact_id=found.id) == found
        assert place.bytes() == (len(PDF), 0)
        [line] = place.db.execute("select * from penstock.audit_log where action = 'artifact.stored'")
        assert (line["job_id"], line["subject"]) == (task["job_id"], f"artifact:{found.id}")

    async def test_streams_and_local_files_are_saved(self, place: Place, tmp_path: Path) -> None:
        async def stream() -> AsyncGenerator[bytes]:
            for piece in (PDF[:3], b"", PDF[3:], bytes(10_000)):
                yield piece

        local = tmp_path / "local.pdf"
        local.write_bytes(PDF * 1000)
        task = place.task()
        async with opened(place) as pool:
            first = await place.save(
                pool, task, "a.pdf", data=stream(), content_type="application/octet-stream"
            )
            assert (first["content_type"], first["bytes"]) == ("application/pdf", 10_000 + len(PDF))
            second = await place.save(pool, task, "b.pdf", data=local)
            assert place.files()[second["path"]] == PDF * 1000
        assert place.is_whole()
        assert place.bytes() == (first["bytes"] + second["bytes"], 0)

    async def test_a_retry_replaces_the_file(self, place: Place) -> None:
        """R1.4/overwrite: a retry writes to the same path."""
        task = place.task()
        async with opened(place) as pool:
            first = await place.save(pool, task, "x.pdf", data=PDF + b"one, and longer")
            place.db.execute(
                "select penstock.fail_task(%s, 'w1', 'again', %s)", [task["task_id"], task["lease"]]
            )
            again = place.claim("w2")
            assert again["task_id"] == task["task_id"]
            second = await place.save(pool, again, "x.pdf", data=PDF + b"two")
            assert (second["path"], second["artifact_id"]) == (first["path"], first["artifact_id"])
            third = await place.save(pool, again, "x.pdf", data=PDF + b"3")
        assert place.files() == {third["path"]: PDF + b"3"}
        assert place.is_whole()
        assert place.bytes() == (len(PDF) + 1, 0)

    async def test_no_two_tasks_and_no_two_names_share_a_path(self, place: Place) -> None:
        """R1.4/overwrite: not even names that a file system may treat as equal."""
        names = ["", "a.pdf", "A.pdf", "a.PDF", "ä.pdf", "a\u0308x.pdf", "世界.pdf", "世 界.pdf", "a-.pdf", "a.b.pdf",
                 "a-b.pdf", "../a.pdf", "1.pdf", "-", "x" * 200, "x" * 199 + "y", "🎉", "con", "a\u202epdf.exe"]  # fmt: skip
        tasks = [place.task() for _ in range(3)]
        saved: dict[str, tuple[int, str]] = {}
        async with opened(place) as pool:
            for task in tasks:
                for name in names:
                    kept = await place.save(pool, task, name, data=PDF + name.encode())
                    saved.setdefault(kept["path"].lower(), (task["task_id"], kept["name"]))
                    assert saved[kept["path"].lower()] == (task["task_id"], kept["name"])
                    assert kept["path"].isascii()
        # `../a.pdf` is `a.pdf`, and the same file.
        assert len(saved) == len(tasks) * (len(names) - 1)
        assert place.is_whole()

    async def test_data_that_does_not_match_its_type_is_rejected(self, place: Place) -> None:
        task = place.task()
        async with opened(place) as pool:
            with pytest.raises(Invalid) as caught:
                await place.save(pool, task, "x.png", content_type="image/png")
            assert caught.value.code == "wrong_type"
        assert place.records() == []

    async def test_a_file_that_is_too_large_leaves_nothing_behind(self, place: Place) -> None:
        async def stream() -> AsyncGenerator[bytes]:
            while True:
                yield PDF

        place.db.execute("select penstock.set_setting('max_artifact_bytes', '1000')")
        task = place.task()
        async with opened(place) as pool:
            for data in (PDF * 200, stream()):
                with pytest.raises(TooLarge):
                    await place.save(pool, task, "x.pdf", data=data)
            assert await artifacts.list(pool, job_id=task["job_id"]) == []
            await artifacts.sweep(pool, place.storage)
        assert (place.records(), place.files(), place.bytes()) == ([], {}, (0, 0))

    async def test_a_worker_with_a_lost_lease_cannot_change_files(
        self, place: Place, clock: testing.Clock
    ) -> None:
        """R1.2/fence: a new file is rejected before it is written, and a file being written is not stored."""
        task = place.task()
        late: list[Stored] = []

        class Slow(Folder):
            async def put(self, path: str, data: Any, **how: Any) -> Stored:
                if not late:
                    clock.advance(minutes=5)
                    place.db.execute("select penstock.reclaim_stale_tasks()")
                    late.append(await Folder.put(self, path, PDF + b"late", **how))
                    other = Place(place.db, place.tenant, Folder(self.root, b"secret"))
                    await other.save(pool, other.claim("w2"), "x.pdf", data=PDF + b"new")
                    return late[0]
                return await super().put(path, data, **how)

        async with opened(place) as pool:
            slow = Place(place.db, place.tenant, Slow(place.storage.root, b"secret"))
            with pytest.raises(LeaseLost):
                await slow.save(pool, task, "x.pdf", data=PDF + b"late")
            with pytest.raises(LeaseLost):
                await place.save(pool, task, "y.pdf")
        assert list(place.files().values()) == [PDF + b"new"]
        assert place.is_whole()
        assert place.bytes() == (len(PDF) + 3, 0)

    async def test_a_lease_saves_files_of_its_own_task_only(self, place: Place) -> None:
        mine, other = place.task(), place.task()
        async with opened(place) as pool:
            saved = await place.save(pool, other, "x.pdf")
            for change in ({"lease": other["lease"]}, {"task_id": other["task_id"]}, {"worker_id": "w9"}):
                with pytest.raises(LeaseLost):
                    await place.save(pool, {**mine, **change}, "x.pdf", data=PDF + b"!")
            finish = {
                "p_artifact_id": uuid.UUID(saved["artifact_id"]), "p_worker_id": mine["worker_id"],
                "p_lease": mine["lease"], "p_bytes": 1, "p_sha256": "0" * 64,
            }  # fmt: skip
            with pytest.raises(LeaseLost):
                await database.call(pool, "finish_artifact", **finish)
        assert place.is_whole()


class TestQuota:
    """R2.4/storage: storage bytes counted transactionally, with compensation when an upload fails."""

    async def test_a_full_quota_rejects_a_file_before_it_is_written(self, place: Place) -> None:
        place.limit(100)
        task = place.task()
        async with opened(place) as pool:
            await place.save(pool, task, "a.pdf", data=PDF + bytes(60))
            with pytest.raises(Limited) as caught:
                await place.save(pool, task, "b.pdf", data=PDF + bytes(60))
            assert caught.value.code == "quota_exceeded"
            assert len(place.files()) == 1
            # Replacing a file needs no extra quota: the replaced one does not count.
            await place.save(pool, task, "a.pdf", data=PDF + bytes(80))
        assert place.is_whole()
        assert place.bytes() == (len(PDF) + 80, 0)

    async def test_a_stream_counts_once_its_size_is_known(self, place: Place) -> None:
        async def stream() -> AsyncGenerator[bytes]:
            yield PDF + bytes(200)

        place.limit(100)
        task = place.task()
        async with opened(place) as pool:
            with pytest.raises(Limited):
                await place.save(pool, task, "a.pdf", data=stream())
            assert await artifacts.list(pool, job_id=task["job_id"]) == []
            assert await artifacts.sweep(pool, place.storage) == (1, 0)
        assert (place.records(), place.files(), place.bytes()) == ([], {}, (0, 0))

    async def test_deleting_frees_the_quota(self, place: Place) -> None:
        task = place.task()
        async with opened(place) as pool:
            saved = await place.save(pool, task)
            artifact_id = uuid.UUID(saved["artifact_id"])
            assert await artifacts.delete(pool, artifact_id=artifact_id) is True
            assert await artifacts.delete(pool, artifact_id=artifact_id) is False
            assert place.bytes() == (0, 0)
            with pytest.raises(NotFound):
                await artifacts.get(pool, artifact_id=artifact_id)
            assert await artifacts.sweep(pool, place.storage) == (1, 0)
            with pytest.raises(NotFound):
                await artifacts.delete(pool, artifact_id=artifact_id)
        assert (place.records(), place.files(), place.bytes()) == ([], {}, (0, 0))


class Crash(BaseException):
    """Simulates the death of the process: no code after it runs."""


def crashing(monkeypatch: pytest.MonkeyPatch, step: str, when: str) -> None:
    """Crash before or after a step: a database call, or writing the file."""
    owner: Any = Folder if step == "put" else database
    name = "put" if step == "put" else "call"
    real: Callable[..., Any] = getattr(owner, name)

    async def call(*args: Any, **kwargs: Any) -> Any:
        if step not in ("put", args[1]):
            return await real(*args, **kwargs)
        if when == "before":
            raise Crash
        await real(*args, **kwargs)
        raise Crash

    monkeypatch.setattr(owner, name, call)


CRASHES = [
    (step, when) for step in ("begin_artifact", "put", "finish_artifact") for when in ("before", "after")
]


class TestCrashes:
    """R1.4/crash-safe: after any crash there is no record without its file, and no file without a record."""

    @pytest.mark.parametrize(("step", "when"), CRASHES)
    async def test_a_crash_leaves_nothing_after_a_sweep(
        self, place: Place, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch, step: str, when: str
    ) -> None:
        task = place.task()
        async with opened(place) as pool:
            with monkeypatch.context() as patched:
                crashing(patched, step, when)
                with pytest.raises(Crash):
                    await place.save(pool, task)
            is_stored = (step, when) == ("finish_artifact", "after")
            assert len(await artifacts.list(pool, job_id=task["job_id"])) == is_stored
            # Its worker may still come back, so nothing is removed within the hour.
            before = place.records(), place.files()
            await artifacts.sweep(pool, place.storage)
            assert (place.records(), place.files()) == before
            clock.advance(minutes=61)
            await artifacts.sweep(pool, place.storage)
            assert [each async for each in artifacts.missing(pool, place.storage)] == []
        assert len(place.files()) == len(place.records()) == is_stored
        assert place.is_whole()
        assert place.bytes() == (len(PDF) * is_stored, 0)

    @pytest.mark.parametrize(("step", "when"), CRASHES)
    async def test_a_retry_after_a_crash_succeeds(
        self, place: Place, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch, step: str, when: str
    ) -> None:
        task = place.task()
        async with opened(place) as pool:
            with monkeypatch.context() as patched:
                crashing(patched, step, when)
                with pytest.raises(Crash):
                    await place.save(pool, task, data=PDF + b"first")
            clock.advance(minutes=5)
            place.db.execute("select penstock.reclaim_stale_tasks()")
            await place.save(pool, place.claim("w2"), data=PDF + b"second")
            clock.advance(minutes=61)
            assert await artifacts.sweep(pool, place.storage, older_than=-1) == (0, 0)
        assert list(place.files().values()) == [PDF + b"second"]
        assert place.is_whole()
        assert place.bytes() == (len(PDF) + 6, 0)

    @pytest.mark.parametrize("step", ["due_artifacts", "forget_artifacts"])
    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_a_crash_of_the_sweep_is_repaired_by_the_next(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, step: str, when: str
    ) -> None:
        task = place.task()
        async with opened(place) as pool:
            saved = await place.save(pool, task)
            await artifacts.delete(pool, artifact_id=uuid.UUID(saved["artifact_id"]))
            with monkeypatch.context() as patched:
                crashing(patched, step, when)
                with pytest.raises(Crash):
                    await artifacts.sweep(pool, place.storage)
            await artifacts.sweep(pool, place.storage)
        assert (place.records(), place.files(), place.bytes()) == ([], {}, (0, 0))


class TestSweep:
    async def test_a_long_upload_is_not_swept(self, place: Place, clock: testing.Clock) -> None:
        """It is safe as long as its lease is valid."""
        task = place.task()
        async with opened(place) as pool:
            holder = {f"p_{key}": task[key] for key in ("task_id", "worker_id", "lease")}
            await database.call(pool, "begin_artifact", **holder, p_name="x.pdf")
            clock.advance(minutes=90)
            place.db.execute("update penstock.leases set expires_at = penstock._now() + interval '30 s'")
            assert await artifacts.sweep(pool, place.storage) == (0, 0)
            clock.advance(minutes=1)
            assert await artifacts.sweep(pool, place.storage) == (1, 0)

    async def test_orphaned_files_are_removed_and_foreign_files_stay(self, place: Place) -> None:
        task = place.task()
        async with opened(place) as pool:
            kept = await place.save(pool, task)
            ours = f"{place.tenant}/{uuid.uuid4()}/pdf/7.pdf"
            foreign = ["notes.txt", f"{uuid.uuid4()}/{uuid.uuid4()}/pdf/7.pdf", f"{place.tenant}/else/x"]
            for path in (ours, f"{place.tenant}/incoming/{uuid.uuid4()}", *foreign):
                await place.storage.put(path, b"x", limit=1)
            assert await artifacts.sweep(pool, place.storage) == (0, 0), "the file is too young"
            assert await artifacts.sweep(pool, place.storage, older_than=-1) == (0, 2)
        assert set(place.files()) == {kept["path"], *foreign}

    async def test_no_file_is_begun_while_its_path_is_swept(self, place: Place) -> None:
        """A retry that begins during the sweep waits, and its file stays."""
        task = place.task()
        path = f"{place.tenant}/{task['job_id']}/pdf/{task['task_id']}.pdf"
        await place.storage.put(path, b"orphan", limit=10)
        waiting: list[Any] = []

        class Watched(Folder):
            async def delete(self, paths: Any) -> None:
                waiting.append(asyncio.create_task(place.save(pool, task)))
                query = "select count(*) as n from pg_stat_activity where wait_event = 'advisory' and datname = current_database()"
                while not (await asyncio.to_thread(place.db.execute, query))[0]["n"]:
                    pass
                assert not waiting[0].done()
                await super().delete(paths)

        async with opened(place) as pool:
            watched = Watched(place.storage.root, b"secret")
            assert await artifacts.sweep(pool, watched, older_than=-1) == (0, 1)
            await waiting[0]
        assert place.is_whole()

    async def test_pruning_a_job_removes_its_files(self, place: Place, clock: testing.Clock) -> None:
        """Retention removes files too."""
        task = place.task()
        async with opened(place) as pool:
            await place.save(pool, task)
            place.db.execute(
                "select penstock.complete_task(%s, 'w1', null, %s)", [task["task_id"], task["lease"]]
            )
            clock.advance(days=91)
            assert await artifacts.sweep(pool, place.storage) == (0, 0)
            place.db.execute("select penstock.prune()")
            assert place.bytes() == (0, 0)
            assert await artifacts.sweep(pool, place.storage) == (1, 0)
        assert (place.records(), place.files()) == ([], {})

    async def test_missing_reports_a_lost_file(self, place: Place) -> None:
        async with opened(place) as pool:
            saved = await place.save(pool, place.task())
            assert [each async for each in artifacts.missing(pool, place.storage)] == []
            (place.storage.root / saved["path"]).unlink()
            assert [each.path async for each in artifacts.missing(pool, place.storage)] == [saved["path"]]


class TestUploads:
    async def upload(self, pool: database.Pool, place: Place, data: bytes = PDF, **how: Any) -> uuid.UUID:
        given: dict[str, Any] = {
            "name": "scan.pdf",
            "content_type": "application/pdf",
            "bytes": len(data),
            **how,
        }
        begun = await artifacts.begin_upload(pool, tenant_id=place.tenant, **given)
        await place.storage.put(begun.incoming, data, limit=len(data))
        return begun.id

    async def finish(self, pool: database.Pool, place: Place, artifact_id: uuid.UUID) -> None:
        taken = await artifacts.take_upload(pool, artifact_id=artifact_id)

        def service() -> Any:
            return database.connection(pool)

        await artifacts.finish_upload(service, place.storage, artifact_id=artifact_id, taken=taken)

    async def test_an_upload_is_checked_and_stored(self, place: Place) -> None:
        """R3.6/storage: a client uploads a file to storage, and it becomes an artifact."""
        async with opened(place) as pool:
            artifact_id = await self.upload(pool, place)
            assert place.bytes() == (0, len(PDF))
            await self.finish(pool, place, artifact_id)
            found = await artifacts.get(pool, artifact_id=artifact_id)
            assert (found.job_id, found.name, found.bytes) == (None, "scan.pdf", len(PDF))
        assert place.is_whole()
        assert place.bytes() == (len(PDF), 0)

    @pytest.mark.parametrize("data", [b"", b"<script>alert(1)</script>", b"GIF89a" + PDF, PDF + b"more"])
    async def test_an_upload_of_another_type_is_removed(
        self, place: Place, data: bytes, clock: testing.Clock
    ) -> None:
        """S30: wrong type, empty, a polyglot, larger than announced."""
        async with opened(place) as pool:
            artifact_id = await self.upload(pool, place, data, bytes=len(PDF))
            with pytest.raises(Invalid):
                await self.finish(pool, place, artifact_id)
            clock.advance(minutes=61)
            await artifacts.sweep(pool, place.storage)
        assert (place.records(), place.files(), place.bytes()) == ([], {}, (0, 0))

    async def test_document_announced_as_presentation_is_removed(
        self, place: Place, clock: testing.Clock
    ) -> None:
        """S30 R4.6/mismatch: by the directory of the archive, which is at its end."""
        docx, pptx = (
            archive("[Content_Types].xml", part) for part in ("word/document.xml", "ppt/presentation.xml")
        )
        async with opened(place) as pool:
            wrong = await self.upload(pool, place, docx, bytes=len(docx), content_type=containers.PPTX)
            with pytest.raises(Invalid) as caught:
                await self.finish(pool, place, wrong)
            assert caught.value.details["detected"] == containers.DOCX
            clock.advance(minutes=61)
            await artifacts.sweep(pool, place.storage)
            assert (place.records(), place.files(), place.bytes()) == ([], {}, (0, 0))
            right = await self.upload(pool, place, pptx, bytes=len(pptx), content_type=containers.PPTX)
            await self.finish(pool, place, right)
        assert place.is_whole()

    async def test_changes_after_the_check_do_not_reach_the_stored_file(self, place: Place) -> None:
        """The client can still write to the upload URL after the check."""
        async with opened(place) as pool:
            artifact_id = await self.upload(pool, place)
            incoming = f"{place.tenant}/incoming/{artifact_id}"
            await self.finish(pool, place, artifact_id)
            await place.storage.put(incoming, b"<script>", limit=100)
            assert await place.storage.read(place.records()[0]["path"], limit=100) == PDF
            await artifacts.sweep(pool, place.storage, older_than=-1)
        assert place.is_whole()

    async def test_two_concurrent_finishes_do_not_mix(self, place: Place) -> None:
        async with opened(place) as pool:
            artifact_id = await self.upload(pool, place, PDF + b"1")
            first = await artifacts.take_upload(pool, artifact_id=artifact_id)
            await place.storage.put(first["incoming"], PDF + b"2", limit=100)
            await self.finish(pool, place, artifact_id)
            await place.storage.put(first["incoming"], PDF + b"3", limit=100)
            with pytest.raises(LeaseLost):
                await artifacts.finish_upload(
                    lambda: database.connection(pool), place.storage, artifact_id=artifact_id, taken=first
                )
            await artifacts.sweep(pool, place.storage, older_than=-1)
        assert list(place.files().values()) == [PDF + b"2"]
        assert place.is_whole()

    async def test_a_worker_cannot_finish_an_upload(self, place: Place) -> None:
        async with opened(place) as pool:
            artifact_id = await self.upload(pool, place)
            taken = await artifacts.take_upload(pool, artifact_id=artifact_id)
            for worker, lease in (("w1", taken["lease"]), (None, None), (None, taken["lease"] - 1)):
                holder = {"p_artifact_id": artifact_id, "p_worker_id": worker, "p_lease": lease}
                with pytest.raises(LeaseLost):
                    await database.call(pool, "finish_artifact", **holder, p_bytes=1, p_sha256="0" * 64)

    async def test_a_dropped_upload_keeps_its_record_while_its_url_is_valid(
        self, place: Place, clock: testing.Clock
    ) -> None:
        """S30: a file that still arrives there has a record, so it will be swept."""
        async with opened(place) as pool:
            artifact_id = await self.upload(pool, place)
            await database.call(pool, "delete_artifact", p_artifact_id=artifact_id)
            assert place.bytes() == (0, 0)
            assert await artifacts.sweep(pool, place.storage) == (0, 0)
            await place.storage.put(f"{place.tenant}/incoming/{artifact_id}", PDF, limit=100)
            clock.advance(minutes=61)
            assert await artifacts.is_any_due(pool)
            assert await artifacts.sweep(pool, place.storage) == (1, 0)
        assert (place.records(), place.files()) == ([], {})

    async def test_an_upload_that_never_arrives_is_swept(self, place: Place, clock: testing.Clock) -> None:
        async with opened(place) as pool:
            artifact_id = await self.upload(pool, place)
            clock.advance(minutes=61)
            await artifacts.sweep(pool, place.storage)
            with pytest.raises(NotFound):
                await self.finish(pool, place, artifact_id)
        assert (place.records(), place.files(), place.bytes()) == ([], {}, (0, 0))

    async def test_the_same_key_returns_the_same_upload(self, place: Place) -> None:
        async with opened(place) as pool:
            how: dict[str, Any] = {
                "name": "a.pdf",
                "content_type": "application/pdf",
                "tenant_id": place.tenant,
            }
            first = await artifacts.begin_upload(pool, **how, bytes=5, idempotency_key="k")
            assert await artifacts.begin_upload(pool, **how, bytes=5, idempotency_key="k") == first
            with pytest.raises(Exception, match="a different file") as caught:
                await artifacts.begin_upload(pool, **how, bytes=6, idempotency_key="k")
            assert caught.value.code == "idempotency_key_reused"  # pyright: ignore[reportAttributeAccessIssue]
        assert place.bytes() == (0, 5)

    async def test_expired_uploads_are_swept(self, place: Place, clock: testing.Clock) -> None:
        async with opened(place) as pool:
            await self.finish(pool, place, await self.upload(pool, place))
            clock.advance(days=89)
            assert await artifacts.sweep(pool, place.storage) == (0, 0)
            clock.advance(days=2)
            assert await artifacts.sweep(pool, place.storage) == (1, 0)
        assert (place.records(), place.files(), place.bytes()) == ([], {}, (0, 0))


class TestApp:
    """Saving from a handler."""

    @pytest.fixture
    def app(self, tmp_path: Path) -> App:
        made = App()
        made.storage = Folder(tmp_path / "files", b"secret")
        return made

    def test_handlers_save_to_the_apps_storage(
        self, app: App, drain: testing.Drain, db: testing.Database
    ) -> None:
        @app.task
        def draw(ctx: Context) -> Any:
            return ctx.save("a.pdf", PDF, "application/pdf")

        @app.task
        async def adraw(ctx: Context) -> Any:
            return await ctx.asave("a.pdf", PDF, "application/pdf")

        @app.task(transactional=True)
        async def in_transaction(ctx: Context) -> Any:
            await ctx.aadd_tasks([{"kind": "draw"}])
            return await ctx.asave("a.pdf", PDF, "application/pdf")

        drain.use(app)
        started = [draw.start(), adraw.start(), in_transaction.start()]
        drain(app)
        for job in started:
            assert isinstance(app.storage, Folder)
            assert (app.storage.root / job.result(timeout="20s")["path"]).read_bytes() == PDF

    def test_a_large_output_is_stored_as_a_file_and_read_back(
        self, app: App, drain: testing.Drain, db: testing.Database
    ) -> None:
        """R1.4/large-outputs: outputs over a small limit are stored as files automatically."""

        @app.task
        def make(count: int) -> list[str]:
            return ["wörter"] * count

        @app.task(transactional=True)
        def make_in_transaction(ctx: Context, count: int) -> list[str]:
            return ["wörter"] * count

        @app.task
        def count(words: list[str]) -> int:
            return len(words)

        @app.job
        def both() -> Any:
            large = make.step(100_000)
            return [count.step(large), count.step(make_in_transaction.step(90_000)), large]

        drain.use(app)
        job = both.start()
        drain(app)
        first, second, words = job.result(timeout="20s")
        assert (first, second, words) == (100_000, 90_000, ["wörter"] * 100_000)
        rows = db.execute("select max(octet_length(output::text)) as most from penstock.results")
        assert rows[0]["most"] < 1000
        assert (
            db.execute("select count(*) as n from penstock.artifacts where name = 'output.json'")[0]["n"] == 2
        )

    def test_a_reference_reads_only_files_of_its_own_job(
        self, app: App, drain: testing.Drain, db: testing.Database
    ) -> None:
        """S5: even if a malicious input makes a handler return a reference to another job's file."""

        @app.task
        def secret() -> str:
            return "secret " * 100_000

        @app.task
        def forged(text: str) -> Any:
            return {"$artifact": {"artifact_id": text}}

        @app.task
        def read(found: dict[str, Any]) -> Any:
            return found

        @app.job
        def attack(text: str) -> Any:
            return read.step(forged.step(text))

        drain.use(app)
        owner = secret.start()
        drain(app)
        assert owner.result(timeout="20s").startswith("secret")
        [row] = db.execute("select id from penstock.artifacts")
        for text in (str(row["id"]), str(uuid.uuid4()), "nonsense"):
            job = attack.start(text)
            drain(app)
            assert job.result(timeout="20s") == {"$artifact": {"artifact_id": text}}


@pytest.mark.slow
async def test_artifacts_work_in_a_bucket(place: Place, bucket: Bucket, clock: testing.Clock) -> None:
    """Files are saved, streamed, deleted, dropped and swept."""
    task = place.task()
    holder = {key: task[key] for key in ("task_id", "worker_id", "lease")}

    async def stream() -> AsyncGenerator[bytes]:
        for _ in range(7):
            yield PDF + bytes(1 << 20)

    async def paths() -> set[str]:
        return {file.path async for page in bucket.list() for file in page}

    async with opened(place) as pool:
        kept = await artifacts.save(pool, bucket, **holder, name="a.pdf", data=PDF)
        large = await artifacts.save(pool, bucket, **holder, name="b.pdf", data=stream())
        assert large["bytes"] == 7 * (len(PDF) + (1 << 20))
        assert await paths() == {kept["path"], large["path"]}
        orphan = f"{place.tenant}/{uuid.uuid4()}/pdf/1.pdf"
        await bucket.put(orphan, b"x", limit=1)
        await artifacts.delete(pool, artifact_id=uuid.UUID(large["artifact_id"]))
        assert await artifacts.sweep(pool, bucket, older_than=-60) == (1, 1)
        assert await paths() == {kept["path"]}
        assert [each async for each in artifacts.missing(pool, bucket)] == []
    assert place.bytes() == (len(PDF), 0)


def test_a_worker_sweeps_files(place: Place, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(tenant=place.tenant)
    app.storage = place.storage

    @app.task
    def save(ctx: Context) -> Any:
        return ctx.save("a.pdf", PDF, "application/pdf")

    @app.task(timeout="20s", max_attempts=1)
    def wait() -> None:
        while place.files():
            time.sleep(0.01)

    drain.use(app)
    save.start()
    drain(app)
    assert len(place.files()) == 1
    place.db.execute("select penstock.delete_artifact(id) from penstock.artifacts")
    monkeypatch.setattr(Tidy, "PAUSE", 0.01)
    # This handler returns once the worker that runs it has swept.
    wait.start()
    drain(app)
    assert place.db.execute("select outcome from penstock.results where outcome <> 'succeeded'") == []
    assert place.files() == {}


async def test_a_worker_sweeps_in_batches(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "BATCH", 2)
    async with opened(place) as pool:
        tidy = Tidy(pool, lambda: place.storage)
        task = place.task()
        for name in "abc":
            await place.save(pool, task, name)
        place.db.execute("select penstock.delete_artifact(id) from penstock.artifacts")
        assert await tidy.once() is True
        assert len(place.files()) == 1
        assert await tidy.once() is False
        assert place.files() == {}


async def test_an_expired_upload_is_due(place: Place, clock: testing.Clock) -> None:
    async with opened(place) as pool:
        begun = await artifacts.begin_upload(
            pool, tenant_id=place.tenant, name="a", content_type="application/pdf", bytes=len(PDF)
        )
        [row] = place.db.execute("select lease from penstock.take_upload(%s)", [begun.id])
        place.db.execute(
            "select penstock.finish_artifact(%s, null, %s, %s, %s)",
            [begun.id, row["lease"], len(PDF), "0" * 64],
        )
        clock.advance(days=89)
        assert not await artifacts.is_any_due(pool)
        clock.advance(days=2)
        assert await artifacts.is_any_due(pool)


@pytest.mark.slow
def test_the_command_line_lists_checks_and_sweeps_artifacts(place: Place) -> None:
    environment = {
        **os.environ,
        "DATABASE_URL": place.db.dsn,
        "PENSTOCK_STORAGE": place.storage.root.as_uri(),
        "PENSTOCK_STORAGE_SECRET": "x" * 32,
    }

    def penstock(*words: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "penstock", "artifacts", *words, "-o", "json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    async def save() -> dict[str, Any]:
        async with opened(place) as pool:
            return await place.save(pool, task, "a.pdf")

    task = place.task()
    saved = asyncio.run(save())
    code, [shown] = penstock("ls", str(task["job_id"]))
    assert (code, shown["path"], shown["bytes"]) == (0, saved["path"], len(PDF))
    assert penstock("check") == (0, [])
    (place.storage.root / saved["path"]).unlink()
    code, [lost] = penstock("check")
    assert (code, lost["id"]) == (1, saved["artifact_id"])
    place.db.execute("select penstock.delete_artifact(id) from penstock.artifacts")
    assert penstock("sweep") == (0, {"records": 1, "files": 0})


class TestInput:
    def start(self, place: Place, value: Any) -> None:
        place.db.execute("select penstock.define_kind('pdf')")
        tasks = json.dumps([{"kind": "pdf", "input": {"some": [{"where": value}]}}])
        options = json.dumps({"tenant_id": str(place.tenant)})
        place.db.execute("select penstock.start_job('report', '{}', %s, %s)", [tasks, options])

    @pytest.mark.parametrize("prefix", ["", "data:application/pdf;base64,"])
    @pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
    def test_a_base64_file_in_an_input_is_rejected_with_a_hint(
        self, place: Place, prefix: str, encode: Callable[[bytes], bytes]
    ) -> None:
        with pytest.raises(psycopg.Error) as caught:
            self.start(place, prefix + encode(os.urandom(10_000)).decode())
        diag = caught.value.diag
        assert json.loads(diag.message_detail or "") == {"code": "file_in_input", "field": "tasks[0].input"}
        assert "begin_upload" in (diag.message_hint or "")

    @pytest.mark.parametrize(
        "value",
        [
            "ACGT" * 10_000,
            os.urandom(10_000).hex(),
            "Sentences have spaces, and 1 or 2 other signs. " * 500,
            [base64.b64encode(os.urandom(32)).decode()] * 1000,
            list(range(5000)),
        ],
        ids=["bases", "hexadecimal", "text", "keys", "numbers"],
    )
    def test_a_long_text_that_is_no_file_is_accepted(self, place: Place, value: Any) -> None:
        self.start(place, value)


def test_files_of_a_worker_killed_while_writing_are_swept(place: Place, clock: testing.Clock) -> None:
    """R1.4/crash-safe: with a real process, a real signal, and half a file on the disk."""
    task = place.task()
    script = """
import asyncio, sys
from pathlib import Path
from penstock.contract import artifacts
from penstock.postgres import db
from penstock.storage.objects import Folder

async def endless():
    while True:
        yield b"%PDF-1.7" + bytes(1 << 20)
        print("more", flush=True)

async def main(dsn, root, task_id, lease):
    async with db.pool(dsn) as pool:
        await artifacts.save(pool, Folder(Path(root), b"x"), task_id=int(task_id), worker_id="w1", lease=int(lease),
            name="x.pdf", data=endless(), content_type="application/pdf")

asyncio.run(main(*sys.argv[1:]))
"""
    command = [sys.executable, "-c", script, place.db.dsn, str(place.storage.root), str(task["task_id"])]
    with subprocess.Popen([*command, str(task["lease"])], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(20):
            assert process.stdout.readline() == b"more\n"
        process.kill()
    assert len(place.records()) == 1 and place.files(), "it was killed while writing"

    async def sweep() -> tuple[int, int]:
        async with opened(place) as pool:
            return await artifacts.sweep(pool, place.storage, older_than=-1)

    clock.advance(minutes=61)
    assert asyncio.run(sweep()) == (1, 1)
    assert (place.records(), place.files(), place.bytes()) == ([], {}, (0, 0))


async def test_members_change_viewers_read_and_strangers_see_no_artifacts(place: Place) -> None:
    """R0.9/roles, R0.9/no-existence: members read and change, viewers only read, others get `unknown_artifact`."""
    task = place.task()
    people = {role: uuid.uuid4() for role in ("member", "viewer", "stranger")}
    for role in ("member", "viewer"):
        place.db.execute("select penstock.set_member(%s, %s, 'owner')", [place.tenant, uuid.uuid4()])
        place.db.execute("select penstock.set_member(%s, %s, %s)", [place.tenant, people[role], role])

    @asynccontextmanager
    async def acting(role: str) -> AsyncIterator[database.Connection]:
        async with database.transaction(pool) as conn:
            claims = json.dumps({"sub": str(people[role])})
            await conn.execute("select set_config('request.jwt.claims', %s, true)", [claims])
            await conn.execute("set local role authenticated")
            yield conn

    upload: dict[str, Any] = {
        "name": "a.txt",
        "content_type": "text/plain",
        "bytes": 1,
        "tenant_id": place.tenant,
    }
    async with opened(place) as pool:
        saved = uuid.UUID((await place.save(pool, task))["artifact_id"])
        for role in ("member", "viewer"):
            async with acting(role) as conn:
                assert (await artifacts.get(conn, artifact_id=saved)).id == saved
        async with acting("member") as conn:
            begun = await artifacts.begin_upload(conn, **upload)
        acts: list[Callable[[Any], Any]] = [
            lambda conn: artifacts.delete(conn, artifact_id=saved),
            lambda conn: artifacts.take_upload(conn, artifact_id=begun.id),
            lambda conn: artifacts.begin_upload(conn, **upload),
        ]
        for act in acts:
            with pytest.raises(Forbidden):
                async with acting("viewer") as conn:
                    await act(conn)
        look: Callable[[Any], Any] = lambda conn: artifacts.get(conn, artifact_id=saved)  # noqa: E731
        for act in (*acts[:2], look):
            with pytest.raises(NotFound) as caught:
                async with acting("stranger") as conn:
                    await act(conn)
            assert caught.value.code == "unknown_artifact"
        with pytest.raises(Forbidden):
            async with acting("stranger") as conn:
                await acts[2](conn)
        for role in people:
            holder = {"p_artifact_id": begun.id, "p_worker_id": None, "p_lease": None}
            with pytest.raises(Forbidden):
                async with acting(role) as conn:
                    await database.call(conn, "finish_artifact", **holder, p_bytes=0, p_sha256="0" * 64)
        async with acting("member") as conn:
            assert await artifacts.delete(conn, artifact_id=saved)
