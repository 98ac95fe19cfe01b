"""Uploads of workers in other languages: signed, fenced by the lease, bound in size."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.storage.objects import Bucket, Folder
from tests.api.conftest import Person, World, bearer
from tests.api.test_artifacts import PDF
from tests.test_storage import bucket, credentials, s3

__all__ = ["bucket", "credentials", "s3"]

pytestmark = pytest.mark.shared_world

SOUND = b"ID3\x04\x00\x00\x00\x00\x00\x00" + b"\xff\xfb\x90\x00" * 50


class Foreign:
    """A worker in another language: it has a worker key, and neither the database nor the storage."""

    def __init__(self, world: World, person: Person, name: str = "w1") -> None:
        self.world, self.name = world, name
        self.headers = bearer(world.key("worker"))
        world.kind("speak")
        options = json.dumps({"tenant_id": str(person.tenant)})
        query = "select penstock.start_job('report', '{}', '[{\"kind\": \"speak\"}]', %s) as id"
        [job] = world.db.execute(query, [options])
        self.job = job["id"]
        claim = {"p_worker_id": name, "p_max_tasks": 1, "p_task_types": ["speak"]}
        [self.task] = self.rpc("claim_tasks", claim).json()

    def rpc(self, function: str, arguments: dict[str, Any]) -> Any:
        return self.world.client.post(f"/rest/v1/rpc/{function}", json=arguments, headers=self.headers)

    @property
    def holder(self) -> dict[str, Any]:
        return {"worker_id": self.name, "lease": self.task["lease"]}

    def begin(self, data: bytes = SOUND, **changes: Any) -> Any:
        body = {**self.holder, "name": "a.mp3", "content_type": "audio/mpeg", "bytes": len(data), **changes}
        url = f"/api/tasks/{self.task['id']}/artifacts"
        return self.world.client.post(url, json=body, headers=self.headers)

    def put(self, begun: Any, data: bytes = SOUND) -> Any:
        return self.world.client.put(begun.json()["url"], content=data)

    def finish(self, begun: Any, **said: Any) -> Any:
        return self.world.client.post(
            begun.json()["finish"], json={**self.holder, **said}, headers=self.headers
        )


@pytest.fixture
def files(world: World, tmp_path: Path) -> Folder:
    """The folder that the application keeps files in."""
    folder = world.app.state.storage = Folder(tmp_path / "files", b"secret")
    return folder


@pytest.fixture
def ann(world: World, files: Folder) -> Person:
    return world.join("ann")


def artifacts_of(world: World, person: Person, job: Any) -> list[dict[str, Any]]:
    return world.client.get(f"/api/jobs/{job}", headers=person.headers).json()["artifacts"]


def test_worker_uploads_a_file_of_its_task(world: World, files: Folder, ann: Person) -> None:
    """R1.11/signed-upload, R1.11/artifact-fields: with a worker key only; the file is at the task's own path."""
    worker = Foreign(world, ann)
    begun = worker.begin()
    assert begun.status_code == 201, begun.text
    assert worker.finish(begun).json()["code"] == "not_uploaded"
    assert worker.put(begun).status_code == 204
    stored = worker.finish(begun, type="speech", metadata={"duration": 180.5, "voice": "calm"})
    assert stored.status_code == 200, stored.text
    reference = stored.json()
    assert reference["path"] == f"{ann.tenant}/{worker.job}/speak/{worker.task['id']}-a.mp3"
    assert reference["sha256"] == hashlib.sha256(SOUND).hexdigest()
    # Repeated after a lost response.
    assert worker.finish(begun).json() == reference
    done = {"p_task_id": worker.task["id"], "p_worker_id": "w1", "p_lease": worker.task["lease"]}
    assert worker.rpc("complete_task", {**done, "p_output": reference}).json() is True
    [found] = artifacts_of(world, ann, worker.job)
    assert (found["type"], found["duration"], found["pages"]) == ("speech", 180.5, None)
    assert found["metadata"] == {"duration": 180.5, "voice": "calm"}
    assert world.client.get(found["url"]).content == SOUND
    # Nothing is left beside it, and the URL of the upload has ended with the task.
    assert [path.name for path in files.root.rglob("*") if path.is_file()] == [f"{worker.task['id']}-a.mp3"]
    assert worker.put(begun).json()["code"] == "not_pending"


def test_stale_worker_changes_nothing(world: World, files: Folder, ann: Person) -> None:
    """R1.11/signed-upload, S95: after the lease went to another worker, each step of the first one is refused."""
    first = Foreign(world, ann, "w1")
    begun = first.begin()
    world.db.execute("update penstock.leases set expires_at = now() - interval '1 hour'")
    world.db.execute("select penstock.reclaim_stale_tasks()")
    world.db.execute("update penstock.parked set until = now() - interval '1 hour'; select penstock.upkeep()")
    claim = {"p_worker_id": "w2", "p_task_types": ["speak"]}
    [task] = first.rpc("claim_tasks", claim).json()
    assert task["id"] == first.task["id"] and task["lease"] > first.task["lease"]
    for answer in (first.begin(), first.finish(begun)):
        assert (answer.status_code, answer.json()["code"]) == (410, "lease_lost")
    first_url = begun
    second = first
    second.name, second.task = "w2", task
    again = second.begin()
    assert again.status_code == 201
    # The old URL leads to a path that nobody waits for any more.
    assert second.put(first_url, b"ID3 of the first worker").json()["code"] == "not_pending"
    assert second.put(again).status_code == 204
    assert second.finish(again).json()["sha256"] == hashlib.sha256(SOUND).hexdigest()


def test_a_lease_lost_during_the_copy_replaces_no_file(
    world: World, files: Folder, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1.11/signed-upload, S95: the next worker stores its file at the same path before the first copy ends."""
    worker = Foreign(world, ann)
    begun = worker.begin()
    worker.put(begun)
    newer = b"ID3\x04 of the second worker"

    def steal() -> None:
        only = f"where task_id = {worker.task['id']}"
        world.db.execute(f"update penstock.leases set expires_at = now() - interval '1 hour' {only}")
        world.db.execute("select penstock.reclaim_stale_tasks()")
        world.db.execute(f"update penstock.parked set until = now() - interval '1 hour' {only}")
        world.db.execute("select penstock.upkeep()")
        [task] = world.db.execute("select id, lease from penstock.claim_tasks('w2', 1, array['speak'])")
        assert task["id"] == worker.task["id"]
        query = "select * from penstock.begin_artifact(%s, 'w2', %s, 'a.mp3', 'audio/mpeg')"
        [record] = world.db.execute(query, [task["id"], task["lease"]])
        path = files.root / record["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(newer)
        stored = [record["id"], task["lease"], len(newer), hashlib.sha256(newer).hexdigest()]
        world.db.execute("select penstock.finish_artifact(%s, 'w2', %s, %s, %s)", stored)

    real = files.get

    async def slow(path: str, *arguments: Any) -> Any:
        part = await real(path, *arguments)

        async def chunks() -> Any:
            async for chunk in part.chunks:
                yield chunk
            steal()

        return part._replace(chunks=chunks())

    with monkeypatch.context() as patched:
        patched.setattr(files, "get", slow)
        refused = worker.finish(begun)
    assert (refused.status_code, refused.json()["code"]) == (410, "lease_lost")
    [found] = artifacts_of(world, ann, worker.job)
    assert world.client.get(found["url"]).content == newer


def test_size_and_content_are_checked(world: World, files: Folder, ann: Person) -> None:
    """R1.11/signed-upload, S95: a larger or another file than the announced one is not stored."""
    worker = Foreign(world, ann)
    begun = worker.begin()
    larger = worker.put(begun, SOUND + b"x")
    assert (larger.status_code, larger.json()["code"]) == (413, "too_large")
    assert worker.finish(begun).json()["code"] == "not_uploaded"
    begun = worker.begin(PDF)
    worker.put(begun, PDF)
    assert worker.finish(begun).json()["code"] == "wrong_type"
    assert worker.begin(bytes=2 << 30).json()["code"] == "too_large"
    assert worker.begin(name="../../x").status_code == 201
    [row] = world.db.execute(
        "select path from penstock.artifacts where status = 'pending' order by id desc limit 1"
    )
    assert row["path"].startswith(f"{ann.tenant}/{worker.job}/speak/") and ".." not in row["path"]
    assert artifacts_of(world, ann, worker.job) == []


def test_invalid_fields_are_refused(world: World, files: Folder, ann: Person) -> None:
    """R1.11/artifact-fields: each with a code; the file can be finished afterwards. Its type follows from its content type."""
    worker = Foreign(world, ann)
    begun = worker.begin()
    worker.put(begun)
    for said, code in (
        ({"type": "Audio MP3"}, "invalid_type"),
        ({"metadata": {"pages": 1.5}}, "invalid_metadata"),
        ({"metadata": {"pages": "3"}}, "invalid_metadata"),
        ({"metadata": {"duration": -1}}, "invalid_metadata"),
        ({"metadata": {"x": "y" * 9000}}, "too_large"),
        ({"metadata": {"x": "\0"}}, "unstorable_text"),
    ):
        begun = worker.begin()
        worker.put(begun)
        refused = worker.finish(begun, **said)
        assert (refused.status_code in (413, 422), refused.json()["code"]) == (True, code), said
    begun = worker.begin()
    worker.put(begun)
    assert worker.finish(begun, metadata={"pages": 3}).status_code == 200
    [found] = artifacts_of(world, ann, worker.job)
    assert (found["type"], found["pages"], found["duration"]) == ("audio_mp3", 3, None)


def test_users_and_other_keys_are_refused(world: World, files: Folder, ann: Person) -> None:
    """R1.11/signed-upload, S95: a member of the tenant cannot take a worker's upload, and a worker no member's."""
    worker = Foreign(world, ann)
    begun = worker.begin()
    worker.put(begun)
    url = f"/api/tasks/{worker.task['id']}/artifacts"
    body = {**worker.holder, "name": "a.mp3", "content_type": "audio/mpeg", "bytes": 3}
    assert world.client.post(url, json=body, headers=ann.headers).status_code == 403
    assert world.client.post(url, json=body).status_code == 401
    for name in ("member", "owner"):
        key = world.member(name, ann.tenant)
        assert world.client.post(url, json=body, headers=key.headers).status_code == 403
    taken = world.client.post(f"/api/uploads/{begun.json()['id']}/finish", headers=ann.headers)
    assert (taken.status_code, taken.json()["code"]) == (409, "not_pending")
    other = Foreign(world, ann, "w9")
    crossed = begun.json()["finish"].replace(f"/tasks/{worker.task['id']}/", f"/tasks/{other.task['id']}/")
    assert world.client.post(crossed, json=other.holder, headers=other.headers).status_code in (404, 410)
    own = {"name": "scan.pdf", "content_type": "application/pdf", "bytes": len(PDF)}
    upload = world.client.post("/api/uploads", json=own, headers=ann.headers).json()
    stolen = f"/api/tasks/{worker.task['id']}/artifacts/{upload['id']}/finish"
    refused = world.client.post(stolen, json=worker.holder, headers=worker.headers)
    assert refused.status_code in (404, 410)
    assert worker.finish(begun).status_code == 200


def test_bodies_are_bounded(world: World, files: Folder, ann: Person) -> None:
    """R1.11/signed-upload, S95: a body that is too large or not JSON is refused before it is parsed."""
    worker = Foreign(world, ann)
    assert worker.begin(name="x" * (9 << 20)).status_code == 413
    url = f"/api/tasks/{worker.task['id']}/artifacts"
    for content in (b"", b"[1", b'{"bytes": NaN}'):
        assert world.client.post(url, content=content, headers=worker.headers).status_code == 422


@pytest.mark.slow
def test_worker_uploads_to_a_bucket(world: World, ann: Person, bucket: Bucket) -> None:
    """R1.11/signed-upload: the bucket takes the file under a URL that needs no credential."""
    import httpx

    world.app.state.storage = bucket
    worker = Foreign(world, ann)
    begun = worker.begin()
    assert httpx.put(begun.json()["url"], content=SOUND, trust_env=False).status_code == 200
    assert worker.finish(begun).json()["sha256"] == hashlib.sha256(SOUND).hexdigest()
