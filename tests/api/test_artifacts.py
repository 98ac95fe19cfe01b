"""Artifacts over HTTP: lists with fresh URLs, uploads, signed URLs of the local folder, and access."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

from penstock import api, testing
from penstock.settings import Settings
from penstock.storage.objects import Bucket, Folder
from tests.api.conftest import Person, World
from tests.test_storage import bucket, credentials, s3

__all__ = ["bucket", "credentials", "s3"]

pytestmark = pytest.mark.shared_world

PDF = b"%PDF-1.7\n0123456789"


@pytest.fixture
def files(world: World, tmp_path: Path) -> Folder:
    """The folder that the application keeps files in."""
    folder = world.app.state.storage = Folder(tmp_path / "files", b"secret")
    return folder


@pytest.fixture
def ann(world: World, files: Folder) -> Person:
    return world.join("ann")


def upload(world: World, person: Person, data: bytes = PDF, *, finish: bool = True, **asked: Any) -> Any:
    """Announce, send and finish an upload; returns the last response, or the first error."""
    body = {"name": "scan.pdf", "content_type": "application/pdf", "bytes": len(data), **asked}
    begun = world.client.post("/api/uploads", json=body, headers=person.headers)
    if begun.status_code != 201:
        return begun
    sent = world.client.put(begun.json()["url"], content=data)
    if sent.status_code != 204 or not finish:
        return begun if sent.status_code == 204 else sent
    return world.client.post(begun.json()["finish"], headers=person.headers)


def saved(
    world: World, folder: Folder, person: Person, name: str = "a.pdf", kind: str = "application/pdf"
) -> uuid.UUID:
    """A job of this person with one file; the job's id."""
    world.kind("draw")
    options = json.dumps({"tenant_id": str(person.tenant)})
    query = "select penstock.start_job('report', '{}', '[{\"kind\": \"draw\"}]', %s) as id"
    [job] = world.db.execute(query, [options])
    [task] = world.db.execute("select * from penstock.claim_tasks('w1', 1)")
    [begun] = world.db.execute(
        "select * from penstock.begin_artifact(%s, 'w1', %s, %s, %s)", [task["id"], task["lease"], name, kind]
    )
    file = folder.root / begun["path"]
    file.parent.mkdir(parents=True)
    file.write_bytes(PDF)
    finish = "select penstock.finish_artifact(%s, 'w1', %s, %s, %s)"
    world.db.execute(finish, [begun["id"], task["lease"], len(PDF), "0" * 64])
    world.db.execute("select penstock.complete_task(%s, 'w1', null, %s)", [task["id"], task["lease"]])
    return job["id"]


def listed(world: World, person: Person, job_id: uuid.UUID) -> list[dict[str, Any]]:
    answer = world.client.get(f"/api/jobs/{job_id}/artifacts", headers=person.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


class TestReading:
    def test_a_job_lists_its_files_with_fresh_urls(self, world: World, files: Folder, ann: Person) -> None:
        """R1.1/artifacts, R1.4/signed-urls: the URL is the only credential, is valid for an hour, and is not stored."""
        [found] = listed(world, ann, saved(world, files, ann))
        assert (found["name"], found["bytes"], found["content_type"]) == (
            "a.pdf",
            len(PDF),
            "application/pdf",
        )
        answer = world.client.get(found["url"])
        assert (answer.status_code, answer.content) == (200, PDF)
        assert answer.headers["content-type"] == "application/pdf"
        assert answer.headers["x-content-type-options"] == "nosniff"
        [expires] = parse_qs(urlsplit(found["url"]).query)["expires"]
        assert 3500 < int(expires) - time.time() <= 3600
        signature = found["url"].rpartition("=")[2]
        for table in ("artifacts", "requests", "audit_log"):
            assert signature not in str(world.db.execute(f"select * from penstock.{table}"))

    def test_pages(self, world: World, files: Folder, ann: Person) -> None:
        job = saved(world, files, ann)
        world.db.execute("""
            insert into penstock.artifacts (tenant_id, job_id, task_id, path, content_type, bytes, sha256, status,
              created_by, created_at, begun_at, stored_at)
            select tenant_id, job_id, task_id, path || n, content_type, bytes, sha256, status, created_by, created_at,
              begun_at, stored_at from penstock.artifacts, generate_series(1, 4) as n""")
        seen: list[str] = []
        cursor = None
        while True:
            query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            answer = world.client.get(f"/api/jobs/{job}/artifacts", params=query, headers=ann.headers).json()
            seen += [item["id"] for item in answer["items"]]
            if (cursor := answer["next"]) is None:
                break
        assert len(seen) == len(set(seen)) == 5

    def test_artifact_redirects_to_its_file(self, world: World, files: Folder, ann: Person) -> None:
        [found] = listed(world, ann, saved(world, files, ann))
        answer = world.client.get(
            f"/api/artifacts/{found['id']}", headers=ann.headers, follow_redirects=False
        )
        assert (answer.status_code, answer.headers["cache-control"]) == (307, "no-store")
        assert world.client.get(answer.headers["location"]).content == PDF
        assert {**answer.json(), "url": found["url"]} == found, "and what it is"

    def test_url_lifetime_is_limited_to_a_week(self, world: World, files: Folder, ann: Person) -> None:
        job = saved(world, files, ann)
        for seconds, status in ((60, 200), (0, 422), (7 * 86400 + 1, 422)):
            query = {"expires_in": seconds}
            answer = world.client.get(f"/api/jobs/{job}/artifacts", params=query, headers=ann.headers)
            assert answer.status_code == status

    @pytest.mark.parametrize(
        ("asked", "status", "part", "told"),
        [
            ("bytes=0-3", 206, PDF[:4], "bytes 0-3/19"),
            ("bytes=4-", 206, PDF[4:], "bytes 4-18/19"),
            ("bytes=-5", 206, PDF[-5:], "bytes 14-18/19"),
            ("bytes=-99", 206, PDF, "bytes 0-18/19"),
            ("bytes=10-99", 206, PDF[10:], "bytes 10-18/19"),
            ("bytes=18-18", 206, PDF[18:], "bytes 18-18/19"),
            ("bytes=19-", 416, b"", "bytes */19"),
            ("bytes=-0", 416, b"", "bytes */19"),
            ("bytes=5-2", 200, PDF, None),
            ("bytes=-", 200, PDF, None),
            ("bytes=0-1,3-4", 200, PDF, None),
            ("lines=0-1", 200, PDF, None),
            ("bytes=" + "9" * 400 + "-", 200, PDF, None),
            ("bytes=٣-", 200, PDF, None),
        ],
    )
    def test_file_ranges_are_served(
        self, world: World, files: Folder, ann: Person, asked: str, status: int, part: bytes, told: str | None
    ) -> None:
        [found] = listed(world, ann, saved(world, files, ann))
        header = {"Range": asked.encode()}
        answer = world.client.get(found["url"], headers=header)  # pyright: ignore[reportArgumentType]
        assert (answer.status_code, answer.content) == (status, part)
        assert answer.headers.get("content-range") == told
        head = world.client.head(found["url"], headers=header)  # pyright: ignore[reportArgumentType]
        assert (head.status_code, head.content) == (status, b"")
        assert head.headers["content-length"] == answer.headers["content-length"]

    def test_if_range_serves_the_whole_changed_file(self, world: World, files: Folder, ann: Person) -> None:
        [found] = listed(world, ann, saved(world, files, ann))
        first = world.client.get(found["url"])
        tag, date = first.headers["etag"], first.headers["last-modified"]
        part = {"Range": "bytes=0-3"}
        for known, status in (
            (tag, 206),
            (date, 206),
            ('"other"', 200),
            ("Mon, 01 Jan 2001 00:00:00 GMT", 200),
        ):
            assert world.client.get(found["url"], headers={**part, "If-Range": known}).status_code == status
        for known, status in ((tag, 304), (f'"x", W/{tag}', 304), ('"x"', 200)):
            assert world.client.get(found["url"], headers={"If-None-Match": known}).status_code == status

    @pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "application/xhtml+xml", "text/xml"])
    def test_active_content_is_served_as_attachment(
        self, world: World, files: Folder, ann: Person, kind: str
    ) -> None:
        """S30: HTML and SVG are never served inline."""
        [found] = listed(world, ann, saved(world, files, ann, "page", kind))
        headers = world.client.get(found["url"]).headers
        assert headers["content-disposition"].startswith("attachment;")
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "sandbox" in headers["content-security-policy"]
        assert "html" not in headers["content-type"] or kind == "application/xhtml+xml"

    def test_deleted_file_is_not_found(self, world: World, files: Folder, ann: Person) -> None:
        job = saved(world, files, ann)
        [found] = listed(world, ann, job)
        path = f"/api/artifacts/{found['id']}"
        assert world.client.delete(path, headers=ann.headers).status_code == 204
        assert listed(world, ann, job) == []
        assert world.client.get(path, headers=ann.headers).status_code == 404
        (files.root / found["path"]).unlink()
        assert world.client.get(found["url"]).status_code == 410


def sent(world: World, url: str) -> tuple[int, bytes]:
    """The response to a GET of exactly this URL. (A client would normalize it first.)"""
    target = url.removeprefix("http://testserver").encode()
    path, _, query = target.partition(b"?")
    status, body = 0, b""
    requests = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        if (request := next(requests, None)) is None:
            # Nobody hangs up.
            await asyncio.Event().wait()
        return request

    async def send(message: Any) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": unquote(path.decode()), "raw_path": path, "query_string": query, "root_path": "",
        "headers": [(b"host", b"testserver")], "client": ("127.0.0.1", 1), "server": ("testserver", 80),
        "state": {},
    }  # fmt: skip
    assert world.client.portal is not None
    world.client.portal.call(world.app, scope, receive, send)
    return status, body


class TestSignedUrls:
    """S27 to S29, over HTTP: the URL is checked as it was sent."""

    def test_signed_url_is_bound_to_method_path_and_time(
        self, world: World, files: Folder, ann: Person
    ) -> None:
        [found] = listed(world, ann, saved(world, files, ann))
        url: str = found["url"]
        other = f"{uuid.uuid4()}"
        changed = [
            url.replace("a.pdf?", "b.pdf?"),
            url.replace(str(ann.tenant), other),
            url.replace(str(ann.tenant), other, 1),
            url.replace("expires=1", "expires=9"),
            url.replace("/draw/", "/draw/../draw/"),
            url.replace("/draw/", "/draw/%2e%2e/draw/"),
            url.replace("/draw/", "/draw/..%2fdraw/"),
            url.replace("/draw/", "/%64raw/"),
            url.replace("/draw/", "/%2564raw/"),
            url.replace("/draw/", "//draw/"),
            url.replace("/draw/", "/draw\\..\\draw/"),
            url.replace("/draw/", "/draw%00/"),
            url.replace("/draw/", "/dr\u0430w/"),
            url.replace("/storage/", "/storage//"),
            url.replace("/storage/", "/storage/storage/"),
            url.replace("type=application%2Fpdf", "type=text%2Fhtml"),
            url.replace("type=application%2Fpdf", "type=application/pdf"),
            url + "0",
            url[:-1],
            url + "&x=1",
            url.replace("?", "?x=1&"),
            url.partition("&signature")[0],
            urlsplit(url)._replace(query="").geturl(),
            "/storage/",
            "/storage/../storage.key",
            "/storage/%2e%2e/storage.key",
        ]
        for each in changed:
            assert each != url
            status, body = sent(world, each)
            assert status in (403, 404), each
            assert PDF not in body
        for method in ("PUT", "POST", "DELETE", "PATCH"):
            assert world.client.request(method, url, content=b"x").status_code in (403, 405)
        assert sent(world, url) == (200, PDF)

    def test_url_of_a_deleted_file_answers_410(self, world: World, files: Folder, ann: Person) -> None:
        """S29: at once, although the file is removed later, and also once its record is gone."""
        [found] = listed(world, ann, saved(world, files, ann))
        assert world.client.get(found["url"]).status_code == 200
        world.client.delete(f"/api/artifacts/{found['id']}", headers=ann.headers)
        assert files.root.joinpath(found["path"]).exists()
        for _ in ("deleted", "forgotten"):
            answer = world.client.get(found["url"])
            assert (answer.status_code, answer.json()["code"]) == (410, "gone"), answer.text
            assert world.client.head(found["url"]).status_code == 410
            world.db.execute("delete from penstock.artifacts where id = %s", [found["id"]])
        # Another file's signature still counts first.
        assert sent(world, found["url"] + "0")[0] == 403

    def test_upload_url_cannot_read(self, world: World, ann: Person) -> None:
        begun = upload(world, ann, finish=False).json()
        assert world.client.get(begun["url"]).status_code == 403
        assert world.client.head(begun["url"]).status_code == 403


class TestUploading:
    @pytest.mark.parametrize("verb", ["delete", "finish"])
    def test_finished_upload_rejects_more_data(self, world: World, ann: Person, verb: str) -> None:
        begun = upload(world, ann, finish=False).json()
        if verb == "delete":
            answer = world.client.delete(f"/api/artifacts/{begun['id']}", headers=ann.headers)
        else:
            answer = world.client.post(f"/api/uploads/{begun['id']}/finish", headers=ann.headers)
        assert answer.is_success, answer.text
        late = world.client.put(begun["url"], content=PDF)
        assert (late.status_code, late.json()["code"]) == (409, "not_pending")

    def test_announced_sent_and_finished(self, world: World, ann: Person) -> None:
        """R3.6/storage"""
        answer = upload(world, ann, name="../Grüße 世界.pdf")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["name"], found["bytes"], found["job_id"]) == ("Grüße 世界.pdf", len(PDF), None)
        fetched = world.client.get(found["url"])
        assert fetched.content == PDF
        assert (
            "filename*=UTF-8''Gr%C3%BC%C3%9Fe%20%E4%B8%96%E7%95%8C.pdf"
            in fetched.headers["content-disposition"]
        )
        again = world.client.post(f"/api/uploads/{found['id']}/finish", headers=ann.headers)
        assert (again.status_code, again.json()["sha256"]) == (200, found["sha256"])

    def test_the_same_key_gives_the_same_upload(self, world: World, ann: Person) -> None:
        """R3.6/idempotent"""
        body = {"name": "a.pdf", "content_type": "application/pdf", "bytes": 5}
        headers = {**ann.headers, "Idempotency-Key": "k"}
        first, second = (world.client.post("/api/uploads", json=body, headers=headers) for _ in range(2))
        assert first.json()["id"] == second.json()["id"]
        assert world.client.put(second.json()["url"], content=b"%PDF-").status_code == 204
        other = world.client.post("/api/uploads", json={**body, "bytes": 6}, headers=headers)
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")

    @pytest.mark.parametrize(
        ("data", "asked", "status", "code"),
        [
            (b"", {}, 422, "wrong_type"),
            (b"<script>alert(1)</script>", {}, 422, "wrong_type"),
            (b"GIF89a" + PDF, {}, 422, "wrong_type"),
            (b"MZ" + PDF, {}, 422, "wrong_type"),
            (PDF + b"!", {"bytes": len(PDF)}, 413, "too_large"),
            (PDF, {"bytes": 1 << 40}, 413, "too_large"),
            (PDF, {"bytes": -1}, 422, "invalid"),
            (PDF, {"content_type": "text/html"}, 422, "wrong_type"),
            (PDF, {"content_type": "image/svg+xml"}, 422, "wrong_type"),
            (PDF, {"content_type": "application/x-msdownload"}, 422, "wrong_type"),
            (PDF, {"content_type": "application/pdf\r\nX: y"}, 422, "invalid_content_type"),
            (PDF, {"content_type": "nonsense"}, 422, "invalid_content_type"),
            (PDF, {"name": "x" * 2000}, 422, "invalid"),
            (PDF, {"status": "stored"}, 422, "invalid"),
            (PDF, {"path": "/etc/passwd"}, 422, "invalid"),
        ],
    )  # fmt: skip
    def test_invalid_uploads_are_rejected(
        self, world: World, files: Folder, ann: Person, data: bytes, asked: Any, status: int, code: str
    ) -> None:
        """S3, S30"""
        answer = upload(world, ann, data, **asked)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        stored = "select from penstock.artifacts where status = 'stored' and tenant_id = %s"
        assert world.db.execute(stored, [ann.tenant]) == []

    def test_upload_without_length_stops_at_the_limit(self, world: World, files: Folder, ann: Person) -> None:
        begun = upload(world, ann, finish=False).json()
        sent = world.client.put(begun["url"], content=iter([PDF] * 1000))
        assert (sent.status_code, sent.json()["code"]) == (413, "too_large")
        # What was there whole before still is.
        assert world.client.post(begun["finish"], headers=ann.headers).status_code == 200

    def test_finish_without_upload_fails(self, world: World, ann: Person) -> None:
        body = {"name": "a.pdf", "content_type": "application/pdf", "bytes": 5}
        begun = world.client.post("/api/uploads", json=body, headers=ann.headers).json()
        early = world.client.post(begun["finish"], headers=ann.headers)
        assert (early.status_code, early.json()["code"]) == (409, "not_uploaded")
        world.client.put(begun["url"], content=b"%PDF-")
        assert world.client.post(begun["finish"], headers=ann.headers).status_code == 200

    def test_no_room(self, world: World, ann: Person) -> None:
        """R2.3/reserve: announced uploads count."""
        world.db.execute("select penstock.set_limit(%s, 'bytes', 30)", [ann.tenant])
        assert upload(world, ann, finish=False).status_code == 201
        refused = upload(world, ann)
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")


class TestOthers:
    """S1, S2: nothing is revealed about files of other tenants."""

    def test_files_of_other_tenants_are_not_found(self, world: World, files: Folder, ann: Person) -> None:
        bob = world.join("bob")
        job = saved(world, files, ann)
        [found] = listed(world, ann, job)
        begun = upload(world, ann, finish=False).json()
        for method, path, missing in (
            ("GET", f"/api/jobs/{job}/artifacts", f"/api/jobs/{uuid.uuid4()}/artifacts"),
            ("GET", f"/api/artifacts/{found['id']}", f"/api/artifacts/{uuid.uuid4()}"),
            ("DELETE", f"/api/artifacts/{found['id']}", f"/api/artifacts/{uuid.uuid4()}"),
            ("POST", f"/api/uploads/{begun['id']}/finish", f"/api/uploads/{uuid.uuid4()}/finish"),
        ):
            answers = [world.client.request(method, each, headers=bob.headers) for each in (path, missing)]
            assert [answer.status_code for answer in answers] == [404, 404], answers[0].text
            one, other = (
                {
                    **answer.json(),
                    "request_id": "",
                    "detail": re.sub(r"[0-9a-f-]{36}", "ID", answer.json()["detail"]),
                }
                for answer in answers
            )
            assert one == other
            for headers in ({}, {"Authorization": "Bearer nonsense"}):
                assert world.client.request(method, path, headers=headers).status_code == 401
        answer = upload(world, bob, tenant_id=str(ann.tenant))
        assert answer.status_code == 403
        assert len(listed(world, ann, job)) == 1

    def test_viewer_can_read_and_worker_key_cannot(self, world: World, files: Folder, ann: Person) -> None:
        job = saved(world, files, ann)
        [found] = listed(world, ann, job)
        viewer = world.member("viewer", ann.tenant)
        assert len(listed(world, viewer, job)) == 1
        path = f"/api/artifacts/{found['id']}"
        assert world.client.delete(path, headers=viewer.headers).status_code == 403
        assert upload(world, viewer, tenant_id=str(ann.tenant)).status_code == 403
        begun = upload(world, ann, finish=False).json()
        assert world.client.post(begun["finish"], headers=viewer.headers).status_code == 403
        worker = {"Authorization": f"Bearer {world.key('worker')}"}
        assert world.client.get(path, headers=worker).status_code == 403


@pytest.mark.slow
def test_uploads_and_downloads_work_with_s3(world: World, bucket: Bucket) -> None:
    """The same steps with URLs of the bucket; the content type of the client is not stored."""
    world.app.state.storage = bucket
    ann = world.join("ann")
    body = {"name": "a.txt", "content_type": "text/plain", "bytes": 8}
    begun = world.client.post("/api/uploads", json=body, headers=ann.headers).json()
    assert "X-Amz-Signature" in begun["url"]
    assert (
        httpx.put(begun["url"], content=b"<script>", headers={"Content-Type": "text/html"}).status_code == 200
    )
    found = world.client.post(begun["finish"], headers=ann.headers).json()
    answer = httpx.get(found["url"])
    assert (answer.content, answer.headers["content-type"]) == (b"<script>", "text/plain; charset=utf-8")
    assert answer.headers["content-disposition"].startswith('inline; filename="a.txt"')
    # A larger one than announced, which a bucket cannot refuse, is found when it is to be kept.
    begun = world.client.post("/api/uploads", json=body, headers=ann.headers).json()
    httpx.put(begun["url"], content=b"x" * 9)
    refused = world.client.post(begun["finish"], headers=ann.headers)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    # Nothing is served here that the bucket serves.
    assert world.client.get("/storage/x?signature=x").status_code == 404


def test_storage_folder_comes_from_settings(
    db: testing.Database, api_settings: Settings, tmp_path: Path
) -> None:
    made = api.create(replace(api_settings, home=tmp_path / "home"))
    with TestClient(made) as client:
        world = World(db, made, client)
        assert upload(world, world.join("ann")).status_code == 200
    assert len([file for file in (tmp_path / "home/artifacts").rglob("*") if file.is_file()]) == 1
