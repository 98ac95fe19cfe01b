"""Files in a folder and in a bucket, and what a signed URL allows."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from penstock.errors import Forbidden, Invalid, NotFound, TooLarge, Unavailable
from penstock.settings import Settings
from penstock.storage import objects as storage
from penstock.storage.objects import Bucket, Folder, Storage
from tests.conftest import Eventually

SECRET = b"a secret of the tests"
TENANT = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The address of an S3 server in its own process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        try:
            return httpx.put(f"{address}/penstock-files").status_code in (200, 409)
        except httpx.TransportError:
            return False

    try:
        Eventually()(is_up, "moto's server answers")
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
def bucket(s3: str, credentials: None, tmp_path: Path) -> Bucket:
    """The test's own prefix in the bucket."""
    found = storage.of(
        Settings(storage=f"s3://penstock-files/{tmp_path.name}?endpoint={s3}&region=us-east-1")
    )
    assert isinstance(found, Bucket)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "files", SECRET)


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest) -> Storage:
    return request.getfixturevalue(request.param)


async def pieces(*given: bytes, error: Exception | None = None) -> AsyncGenerator[bytes]:
    for piece in given:
        yield piece
    if error:
        raise error


async def paths(store: Storage, prefix: str = "") -> list[str]:
    return sorted([file.path async for page in store.list(prefix) for file in page])


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


async def text(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


class TestFiles:
    @pytest.mark.slow
    async def test_a_file_is_read_as_it_was_written(self, store: Storage) -> None:
        for data in (b"", b"hello", os.urandom(100_000)):
            stored = await store.put("t/j/k/1.bin", data, limit=1 << 20)
            assert stored == (len(data), hashlib.sha256(data).hexdigest())
            assert await store.read("t/j/k/1.bin", limit=1 << 20) == data
            assert (await store.head("t/j/k/1.bin")).bytes == len(data)

    async def test_a_stream_of_many_chunks_is_written(self, store: Storage) -> None:
        """It is larger than one part of an upload, and never in memory as a whole."""
        piece = os.urandom(1 << 20)
        stored = await store.put("t/big.bin", pieces(*[piece] * 12), limit=20 << 20)
        assert stored == (12 << 20, hashlib.sha256(piece * 12).hexdigest())
        found = hashlib.sha256()
        async for chunk in (await store.get("t/big.bin")).chunks:
            found.update(chunk)
        assert found.hexdigest() == stored.sha256

    async def test_a_range_of_a_file_is_read(self, store: Storage) -> None:
        await store.put("t/a", b"0123456789", limit=10)
        part = await store.get("t/a", 2, 5)
        assert (part.start, part.end, part.file.bytes, await text(part.chunks)) == (2, 5, 10, b"234")
        assert await text((await store.get("t/a", 7)).chunks) == b"789"

    async def test_a_file_that_is_too_large_leaves_nothing_behind(
        self, store: Storage, tmp_path: Path
    ) -> None:
        """S30: the write is stopped as soon as the limit is exceeded."""
        sent = 0

        async def endless() -> AsyncGenerator[bytes]:
            nonlocal sent
            while True:
                sent += 1
                yield bytes(1 << 16)

        with pytest.raises(TooLarge) as caught:
            await store.put("t/a", endless(), limit=1 << 20)
        assert caught.value.details["limit"] == 1 << 20
        assert sent < 200
        with pytest.raises(TooLarge):
            await store.put("t/a", b"12345", limit=4)
        assert await paths(store) == []
        assert files_in(tmp_path) == []

    async def test_an_interrupted_write_keeps_the_old_file(self, store: Storage) -> None:
        await store.put("t/a", b"before", limit=10)
        with pytest.raises(ZeroDivisionError):
            await store.put("t/a", pieces(b"after", error=ZeroDivisionError()), limit=10)
        assert await store.read("t/a", limit=10) == b"before"
        await store.put("t/a", b"after", limit=10)
        assert await store.read("t/a", limit=10) == b"after"

    async def test_unknown_objects_are_not_found(self, store: Storage) -> None:
        for act in (store.get, store.head):
            with pytest.raises(NotFound):
                await act("t/none")
        await store.delete(["t/none"])

    async def test_files_are_listed_and_deleted(self, store: Storage) -> None:
        for path in ("t/a/1", "t/a/2", "t/b/1"):
            await store.put(path, b"x", limit=1)
        assert await paths(store) == ["t/a/1", "t/a/2", "t/b/1"]
        assert await paths(store, "t/a") == ["t/a/1", "t/a/2"]
        await store.delete(["t/a/1", "t/none", "t/b/1"])
        assert await paths(store) == ["t/a/2"]

    async def test_no_path_leaves_the_folder(self, folder: Folder, tmp_path: Path) -> None:
        """S28: dots, slashes and spaces in every encoding and position."""
        (tmp_path / "secret").write_text("secret")
        dots = (
            "..",
            "%2e%2e",
            "%252e%252e",
            ".%2e",
            "..%00",
            "\uff0e\uff0e",
            "%c0%ae%c0%ae",
            "..;",
            ". .",
            "...",
            "~",
            "..\t",
        )
        slashes = ("/", "//", "\\", "%2f", "%252f", "%5c", "\u2215", "%c0%af", "/./", "/\0/")
        tried = 0
        for dot, slash, before in itertools.product(dots, slashes, ("", "t/", "t/a/")):
            # A segment of spaces between two slashes is invalid too.
            for path in (f"{before}{dot}{slash}secret", f"{before}x{slash}{dot}{slash}{dot}{slash}secret"):
                with pytest.raises(Invalid) as caught:
                    await folder.get(path)
                assert caught.value.code == "invalid_path", path
                tried += 1
        assert tried > 300

    async def test_a_symlink_is_replaced_and_not_followed(self, folder: Folder, tmp_path: Path) -> None:
        """S28: only the operator can create links here; even then a file outside is not changed."""
        outside = tmp_path / "outside"
        outside.write_text("mine")
        (folder.root / "t").mkdir()
        (folder.root / "t/link").symlink_to(outside)
        await folder.put("t/link", b"theirs", limit=10)
        await folder.delete(["t/link"])
        assert outside.read_text() == "mine"

    @pytest.mark.parametrize(
        "path",
        ["", "/", "/etc/passwd", "..", "../x", "t/../x", "t/./x", "t//x", "t/x/", "t/.hidden", "t/%2e%2e/x",
         "t\\x", "t/x\0", "t/x y", "t/ä", "t/x?y", "t/x#1", "t/-x", "x" * 1000, "t/x\n", "\ud800"],
    )  # fmt: skip
    async def test_invalid_paths_are_rejected(self, folder: Folder, path: str) -> None:
        """S28: paths with other characters than plain segments."""
        for act in (
            lambda: folder.put(path, b"x", limit=1),
            lambda: folder.get(path),
            lambda: folder.delete([path]),
            lambda: folder.url("GET", path, base="", seconds=60, tenant="t"),
        ):
            with pytest.raises(Invalid) as caught:
                await act()
            assert caught.value.code == "invalid_path"


def sigv4(method: str, url: str, secret: str, headers: dict[str, str] | None = None) -> str:
    """The signature that Amazon's own library computes for this URL."""
    parts = urlsplit(url)
    fields = [pair for pair in parts.query.split("&") if not pair.startswith("X-Amz-Signature=")]
    values = dict(parse_qsl(parts.query))
    key, _, region, service, _ = values["X-Amz-Credential"].split("/")
    signer = S3SigV4QueryAuth(Credentials(key, secret), service, region, int(values["X-Amz-Expires"]))
    request = AWSRequest(method, parts._replace(query="&".join(fields)).geturl(), headers=headers or {})
    request.context["timestamp"] = values["X-Amz-Date"]
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return str(signer.signature(text, request))


class TestBucket:
    async def test_urls_are_signed_as_s3_verifies_them(self, bucket: Bucket) -> None:
        """S27: the test server ignores signatures, so the test computes them a second time."""
        for method, path in (
            ("GET", "t/a.pdf"),
            ("PUT", "t/incoming/0190a1b2-c3d4"),
            ("GET", "t/j/k:1/1-x_y.z"),
        ):
            url = await bucket.url(method, path, base="", seconds=60)  # pyright: ignore[reportArgumentType]
            signature = dict(parse_qsl(urlsplit(url).query))["X-Amz-Signature"]
            assert signature == sigv4(method, url, "test")
            for other in (
                sigv4("PUT" if method == "GET" else "GET", url, "test"),
                sigv4("DELETE", url, "test"),
                sigv4(method, url.replace("/t/", "/u/"), "test"),
                sigv4(method, url.replace("X-Amz-Expires=60", "X-Amz-Expires=6000"), "test"),
                sigv4(method, url.replace("us-east-1", "eu-west-1"), "test"),
                sigv4(method, url + "&response-content-type=text%2Fhtml", "test"),
                sigv4(method, url.replace("127.0.0.1", "localhost"), "test"),
                sigv4(method, url, "other"),
            ):
                assert other != signature

    async def test_upload_url_is_bound_to_the_announced_size(self, bucket: Bucket) -> None:
        """S27 S30: the size is a signed header, so S3 rejects an upload of another size."""
        url = await bucket.url("PUT", "t/incoming/0190:a_b.c", base="", seconds=60, tenant="t", limit="3")
        fields = dict(parse_qsl(urlsplit(url).query))
        assert fields["X-Amz-SignedHeaders"] == "content-length;host"
        assert fields["X-Amz-Signature"] == sigv4("PUT", url, "test", {"content-length": "3"})
        for size in ("2", "4", "30"):
            assert sigv4("PUT", url, "test", {"content-length": size}) != fields["X-Amz-Signature"]
        assert sigv4("PUT", url, "test") != fields["X-Amz-Signature"]
        async with httpx.AsyncClient() as client:
            assert (await client.put(url, content=b"new")).status_code == 200
        assert await bucket.read("t/incoming/0190:a_b.c", limit=3) == b"new"

    async def test_lifetime_of_urls_has_a_maximum(self, s3: str, credentials: None, tmp_path: Path) -> None:
        """S29: the operator's, for a folder and for a bucket."""
        for address in (None, f"s3://penstock-files?endpoint={s3}&region=us-east-1"):
            store = storage.of(Settings(home=tmp_path, storage=address, max_url_seconds=600))
            for seconds in (601, 0, -1, float("inf"), float("nan")):
                with pytest.raises(Invalid) as caught:
                    await store.url("GET", "t/a", base="", seconds=seconds, tenant="t")
                assert caught.value.code == "invalid_ttl"
            assert (store.lifetime(600), store.lifetime()) == (600, 600)
            await store.url("GET", "t/a", base="", tenant="t")

    async def test_an_interrupted_upload_leaves_no_parts_behind(self, bucket: Bucket, s3: str) -> None:
        """A failed multipart upload is aborted, so that invisible parts cost nothing."""
        piece = os.urandom(1 << 20)

        async def unfinished() -> list[str]:
            async with httpx.AsyncClient() as client:
                answer = await client.get(f"{s3}/penstock-files?uploads")
            return re.findall(r"<Key>([^<]*)</Key>", answer.text)

        before = await unfinished()
        with pytest.raises(ZeroDivisionError):
            await bucket.put("t/a", pieces(*[piece] * 12, error=ZeroDivisionError()), limit=20 << 20)
        with pytest.raises(TooLarge):
            await bucket.put("t/b", pieces(*[piece] * 12), limit=11 << 20)
        assert await unfinished() == before
        assert await paths(bucket) == []

    async def test_response_headers_are_stored_with_the_file(self, bucket: Bucket) -> None:
        headers = {"Content-Type": "application/octet-stream", "Content-Disposition": "attachment"}
        await bucket.put("t/page.html", b"<script>", limit=10, headers=headers)
        url = await bucket.url("GET", "t/page.html", base="", seconds=60)
        async with httpx.AsyncClient() as client:
            answer = await client.get(url, headers={"Range": "bytes=1-3"})
        assert (answer.status_code, answer.content) == (206, b"scr")
        assert {name: answer.headers[name] for name in headers} == headers

    async def test_a_signed_url_uploads(self, bucket: Bucket) -> None:
        url = await bucket.url("PUT", "t/new", base="", seconds=60)
        assert "X-Amz-Expires=60" in url and "X-Amz-Signature=" in url
        async with httpx.AsyncClient() as client:
            assert (await client.put(url, content=b"new")).status_code == 200
        assert await bucket.read("t/new", limit=3) == b"new"

    async def test_a_bucket_that_does_not_answer_is_unavailable(self, credentials: None) -> None:
        gone = Bucket("penstock-files", endpoint="http://127.0.0.1:1", region="us-east-1")
        with pytest.raises(Unavailable) as caught:
            await gone.head("t/a")
        assert "127.0.0.1" not in caught.value.message


class TestSettings:
    def test_the_default_folder_is_private(self, tmp_path: Path) -> None:
        found = storage.of(Settings(home=tmp_path / "home"))
        assert isinstance(found, Folder)
        assert found.root == tmp_path / "home/artifacts"
        assert found.root.stat().st_mode & 0o777 == 0o700

    def test_the_secret_is_created_once_and_is_private(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda _: storage._own_secret(tmp_path / "home"), range(32)))
        assert len(set(made)) == 1
        assert len(made[0]) == 64
        assert [file.name for file in (tmp_path / "home").iterdir()] == ["storage.key"]
        assert (tmp_path / "home/storage.key").stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("address", ["ftp://x", "s3://", "file:", "x", "s3://b?endpiont=http://x"])
    def test_invalid_storage_addresses_are_rejected(self, tmp_path: Path, address: str) -> None:
        with pytest.raises(Invalid):
            storage.of(Settings(home=tmp_path, storage=address))


class TestSignedUrls:
    """S27 to S29: a URL allows one method on one path until it expires, and nothing else."""

    @pytest.fixture
    def now(self) -> list[float]:
        return [1_800_000_000.0]

    @pytest.fixture
    def signer(self, tmp_path: Path, now: list[float]) -> Folder:
        return Folder(tmp_path / "files", SECRET, lambda: now[0])

    async def signed(self, signer: Folder, path: str = f"{TENANT}/j/pdf/1.pdf", **fields: str) -> str:
        given = {"tenant": TENANT, "type": "application/pdf", "name": "Bericht 世界.pdf", **fields}
        url = await signer.url("GET", path, base="https://x.org/base/", seconds=3600, **given)
        assert url.startswith("https://x.org/base/storage/")
        return url.split("/storage/")[1]

    async def test_a_signed_url_is_accepted(self, signer: Folder) -> None:
        target = await self.signed(signer)
        for method in ("GET", "HEAD"):
            grant = signer.verify(method, target)
            assert grant.path == f"{TENANT}/j/pdf/1.pdf"
            assert grant.fields["name"] == "Bericht 世界.pdf"
        assert urlsplit(target).query.isascii()

    @pytest.mark.parametrize("method", ["GET", "PUT"])
    async def test_changing_any_byte_invalidates_a_url(
        self, signer: Folder, method: Literal["GET", "PUT"]
    ) -> None:
        """S27: each byte flipped, repeated and removed, including those of the size limit: all rejected."""
        fields = {"type": "text/plain", "name": "Bericht 世界.txt"} if method == "GET" else {"limit": "1000"}
        path = f"{TENANT}/j/pdf/1.pdf"
        url = await signer.url(method, path, base="https://x.org", seconds=60, tenant=TENANT, **fields)
        target = url.split("/storage/")[1]
        assert signer.verify(method, target).path == path
        refused = 0
        for place, byte in enumerate(target):
            for other in {chr(ord(byte) ^ 1), chr(ord(byte) ^ 32), "%", "", byte * 2, f"%{ord(byte):02x}"}:
                if other == byte:
                    continue
                with pytest.raises(Forbidden):
                    signer.verify(method, target[:place] + other + target[place + 1 :])
                refused += 1
        assert refused > 1000

    @pytest.mark.parametrize(
        "change",
        [
            lambda target: target.replace("/1.pdf", "/2.pdf"),
            lambda target: target.replace("/1.pdf", "/../1.pdf"),
            lambda target: target.replace("/1.pdf", "/%2e%2e/1.pdf"),
            lambda target: target.replace("/1.pdf", "%2F1.pdf"),
            lambda target: target.replace("/1.pdf", "/%31.pdf"),
            lambda target: target.replace("/1.pdf", "//1.pdf"),
            lambda target: target.replace("%20", "+"),
            lambda target: target.replace("expires=1", "expires=9"),
            lambda target: target.replace("application", "text"),
            lambda target: target.replace("type=", "name=x&type="),
            lambda target: target + "&expires=9999999999",
            lambda target: "x&" + target,
            lambda target: target.upper(),
            lambda target: target.partition("&signature=")[0],
            lambda target: target.partition("&signature=")[0] + "&signature=",
            lambda target: "&".join(reversed(target.split("&"))),
            lambda target: target.replace("?", "??"),
            lambda target: target.replace("?", "?expires=9999999999&", 1),
            lambda target: target.replace("?", ";x?"),
            lambda target: target.replace("&signature=", "&signature=0&signature="),
            lambda target: target.replace("&", ";"),
            lambda target: "\ud800" + target,
            lambda target: "",
            lambda target: "?",
        ],
    )
    async def test_another_encoding_of_a_url_is_rejected(
        self, signer: Folder, change: Callable[[str], str]
    ) -> None:
        target = await self.signed(signer)
        assert change(target) != target
        with pytest.raises(Forbidden) as caught:
            signer.verify("GET", change(target))
        assert caught.value.code == "bad_signature"

    async def test_a_url_allows_one_method(self, signer: Folder) -> None:
        target = await self.signed(signer)
        for method in ("PUT", "POST", "DELETE", "get", "PATCH"):
            with pytest.raises(Forbidden):
                signer.verify(method, target)
        put = (
            await signer.url("PUT", f"{TENANT}/incoming/x", base="", seconds=60, tenant=TENANT, limit="10")
        ).split("/storage/")[1]
        assert signer.verify("PUT", put).fields["limit"] == "10"
        for method in ("GET", "HEAD"):
            with pytest.raises(Forbidden):
                signer.verify(method, put)

    async def test_an_expired_url_is_rejected(self, signer: Folder, now: list[float]) -> None:
        target = await self.signed(signer)
        now[0] += 3599
        signer.verify("GET", target)
        now[0] += 1
        with pytest.raises(Forbidden) as caught:
            signer.verify("GET", target)
        assert caught.value.code == "url_expired"

    async def test_a_url_of_another_tenant_or_secret_is_rejected(
        self, signer: Folder, tmp_path: Path
    ) -> None:
        with pytest.raises(Forbidden):
            signer.verify("GET", await self.signed(signer, tenant=TENANT.replace("5b", "5c")))
        target = await self.signed(signer)
        with pytest.raises(Forbidden):
            Folder(tmp_path / "files", b"another").verify("GET", target)

    @pytest.mark.parametrize("seconds", [0, -1, 8 * 86400, float("nan"), float("inf")])
    async def test_a_url_is_valid_for_one_second_to_one_week(self, signer: Folder, seconds: float) -> None:
        with pytest.raises(Invalid):
            await signer.url("GET", "t/a", base="", seconds=seconds, tenant="t")


async def test_partial_files_of_a_dead_process_are_removed(folder: Folder) -> None:
    await folder.put("t/a", b"x", limit=1)
    (folder.root / "t/b.pdf#1").write_bytes(b"half")
    assert await folder.clear_partial(3600) == 0
    assert await folder.clear_partial(-1) == 1
    assert files_in(folder.root) == ["a"]
