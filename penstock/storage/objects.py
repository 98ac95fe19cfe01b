"""Storage for files: a local folder, or a bucket of S3 or a compatible service.

`PENSTOCK_STORAGE` names it: `file:///srv/files`, or `s3://bucket/prefix?endpoint=https://…&region=…` with the
credentials in `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. Without it files are in `.penstock/artifacts`.

The segments of a path have only characters that need no encoding in a URL, a folder or a bucket.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Mapping,
)
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from penstock.errors import Forbidden, Invalid, NotFound, TooLarge, Unavailable
from penstock.settings import Settings

Method = Literal["GET", "PUT"]
HOUR = 3600.0
_WEEK = 7 * 86400
_PART = r"[A-Za-z0-9][A-Za-z0-9_.:-]*"
_PATH = re.compile(rf"{_PART}(?:/{_PART})*")
_LONGEST = 900


class Stored(NamedTuple):
    """The size and hash of a written file."""

    bytes: int
    sha256: str


class File(NamedTuple):
    """A stored file."""

    path: str
    bytes: int
    modified_at: float
    etag: str


class Part(NamedTuple):
    """A part of a file: its bytes from `start` up to, not including, `end`."""

    file: File
    start: int
    end: int
    chunks: AsyncIterator[bytes]


class Grant(NamedTuple):
    """The path and the fields of a signed URL."""

    path: str
    fields: dict[str, str]


def of(settings: Settings) -> Storage:
    """The storage that the settings name."""
    found = _named(settings)
    found.max_seconds = settings.max_url_seconds
    return found


def _named(settings: Settings) -> Storage:
    address = urlsplit(settings.storage or (settings.home / "artifacts").absolute().as_uri())
    if address.scheme == "file" and address.path:
        secret = settings.storage_secret
        return Folder(Path(unquote(address.path)), secret.encode() if secret else _own_secret(settings.home))
    if address.scheme == "s3" and address.netloc:
        options = {name: values[0] for name, values in parse_qs(address.query).items()}
        if unknown := options.keys() - {"endpoint", "region"}:
            raise Invalid(
                f"PENSTOCK_STORAGE has an unknown option {min(unknown)!r}: use only endpoint and region"
            )
        return Bucket(address.netloc, prefix=address.path.strip("/"), **options)
    raise Invalid("PENSTOCK_STORAGE must be file:///folder or s3://bucket")


class Storage(ABC):
    """Files by their path. Writing is atomic: readers never see half a file."""

    max_seconds: float = _WEEK
    """The longest lifetime of a signed URL."""

    def __init__(self, store: LocalStore | S3Store) -> None:
        self._store: Any = store

    async def put(
        self,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        limit: int,
        headers: Mapping[str, str] | None = None,
    ) -> Stored:
        """Write a file, replacing an existing one. Raises TooLarge beyond `limit` bytes."""
        checked(path)
        digest, size = hashlib.sha256(), 0

        def count(chunk: bytes) -> bytes:
            nonlocal size
            size += len(chunk)
            if size > limit:
                raise TooLarge(f"the file is larger than {limit} bytes", details={"limit": limit})
            digest.update(chunk)
            return chunk

        async def counted(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
            async for chunk in chunks:
                yield count(chunk)

        source = count(data) if isinstance(data, bytes) else counted(data)
        with _translated(path):
            await self._write(path, source, headers or {})
        return Stored(size, digest.hexdigest())

    async def get(self, path: str, start: int = 0, end: int | None = None) -> Part:
        """Read a file, or a non-empty part of it. Raises NotFound."""
        options: Any = {} if end is None and start == 0 else {"range": {"offset": start}}
        if end is not None:
            options = {"range": (start, end)}
        with _translated(path):
            found = await obstore.get_async(self._store, checked(path), options=options)
        return Part(_file(found.meta), *found.range, _chunks(found.stream(min_chunk_size=1 << 18), path))

    async def read(self, path: str, *, limit: int) -> bytes:
        """The content of a file of at most `limit` bytes. Raises NotFound or TooLarge."""
        part = await self.get(path)
        if part.file.bytes > limit:
            raise TooLarge(f"the file is larger than {limit} bytes", details={"limit": limit})
        return b"".join([chunk async for chunk in part.chunks])

    async def head(self, path: str) -> File:
        """A file's size, time and ETag. Raises NotFound."""
        with _translated(path):
            return _file(await obstore.head_async(self._store, checked(path)))

    async def delete(self, paths: Iterable[str]) -> None:
        """Remove files. Ignores those that do not exist."""
        for path in paths:
            with suppress(NotFound), _translated(path):
                await obstore.delete_async(self._store, checked(path))

    async def list(self, prefix: str = "") -> AsyncGenerator[list[File]]:
        """The files below a folder, in pages."""
        # The cast is needed because obstore's overloads leave a type unknown.
        found: Any = cast("Any", obstore).list(self._store, prefix or None, chunk_size=500)
        with _translated(prefix):
            async for page in found:
                yield [_file(meta) for meta in page]

    @abstractmethod
    async def _write(self, path: str, source: Any, headers: Mapping[str, str]) -> None: ...

    @abstractmethod
    async def url(
        self, method: Method, path: str, *, base: str, seconds: float | None = None, **fields: str
    ) -> str:
        """A signed URL that allows one method on one path for this many seconds (default: an hour).

        `base` is the URL of this service, and `fields` (`tenant`, `type`, `name`, `limit`) are parameters of
        its route. A bucket serves its files itself and ignores both, except for the `limit` of an upload,
        which is then the exact size of the file.
        """

    def lifetime(self, seconds: float | None = None) -> float:
        """The lifetime of a URL: as requested, or an hour where the maximum allows it."""
        if seconds is None:
            return min(HOUR, self.max_seconds)
        if not 1 <= seconds <= self.max_seconds:
            raise Invalid(
                f"a URL can be valid for 1 to {self.max_seconds:.0f} seconds (got {seconds:g})",
                code="invalid_ttl",
                details={"field": "expires_in", "limit": self.max_seconds},
            )
        return seconds

    async def clear_partial(self, older_than: float) -> int:
        """Remove remains of interrupted writes; returns their number. A bucket's lifecycle rule does that."""
        return 0


class Folder(Storage):
    """Files in a local folder, served by the API under URLs that it signs."""

    def __init__(self, root: Path, secret: bytes, now: Callable[[], float] = time.time) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root, self._secret, self._now = root.resolve(), secret, now
        super().__init__(LocalStore(self.root))

    async def _write(self, path: str, source: Any, headers: Mapping[str, str]) -> None:
        await obstore.put_async(self._store, path, source)
        await asyncio.to_thread(self._sync, self.root / path)

    def _sync(self, file: Path) -> None:
        # A stored file must survive a power cut: its bytes, and its entries in the folders.
        for path in (file, *file.parents):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if path == self.root:
                return

    async def url(
        self, method: Method, path: str, *, base: str, seconds: float | None = None, **fields: str
    ) -> str:
        expires = str(int(self._now() + self.lifetime(seconds)))
        target = f"{checked(path)}?{urlencode({'expires': expires, **fields}, quote_via=quote, safe='')}"
        return f"{base.rstrip('/')}/storage/{target}&signature={self._signature(method, target)}"

    def verify(self, method: str, target: str) -> Grant:
        """The grant of a signed URL, from its text after `/storage/`, byte for byte as it was sent.

        The signature covers the text itself. So a URL that is encoded differently, or whose fields are
        repeated, added, removed or reordered, is rejected before it is parsed.
        """
        signed, _, signature = target.rpartition("&signature=")
        expected = self._signature("GET" if method == "HEAD" else method, signed)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            raise Forbidden("the signature of the URL is invalid", code="bad_signature")
        path, _, query = signed.partition("?")
        fields = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        if float(fields["expires"]) <= self._now():
            raise Forbidden("the URL has expired", code="url_expired", hint="Request a new one.")
        if not path.startswith(fields["tenant"] + "/"):
            raise Forbidden("the signature of the URL is invalid", code="bad_signature")
        return Grant(checked(path), fields)

    def _signature(self, method: str, target: str) -> str:
        message = f"penstock\n{method}\n{target}".encode("utf-8", "replace")
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()

    async def clear_partial(self, older_than: float) -> int:
        return await asyncio.to_thread(self._clear_partial, self._now() - older_than)

    def _clear_partial(self, before: float) -> int:
        # The store writes to name#1, name#2 and so on, and renames when complete.
        count = 0
        for file in self.root.rglob("*#*"):
            with suppress(FileNotFoundError):
                if re.search(r"#\d+$", file.name) and file.stat().st_mtime < before:
                    file.unlink()
                    count += 1
        return count


class Bucket(Storage):
    """Files in a bucket, which serves them under URLs signed with its credentials."""

    def __init__(
        self, name: str, *, prefix: str = "", endpoint: str | None = None, region: str | None = None
    ) -> None:
        # obstore reads it too, but signs no header besides the host.
        self._secret = os.environ.get("AWS_SECRET_ACCESS_KEY")
        # Callers learn within seconds that the store does not answer, and can try again.
        options: dict[str, Any] = {"retry_config": {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}}
        if prefix:
            options["prefix"] = prefix
        if endpoint:
            # Supabase and most other services have the bucket in the path, not in the host name.
            options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
            options["client_options"] = {"allow_http": endpoint.startswith("http://")}
        if region:
            options["region"] = region
        super().__init__(S3Store(name, **options))

    async def _write(self, path: str, source: Any, headers: Mapping[str, str]) -> None:
        await obstore.put_async(self._store, path, source, attributes=dict(headers))

    async def url(
        self, method: Method, path: str, *, base: str, seconds: float | None = None, **fields: str
    ) -> str:
        duration = timedelta(seconds=self.lifetime(seconds))
        with _translated(path):
            url = await obstore.sign_async(self._store, method, checked(path), duration)
        if method == "PUT" and "limit" in fields and self._secret:
            return _bound_to_size(url, int(fields["limit"]), self._secret)
        return url


def checked(path: str) -> str:
    """The path, if valid: it has no empty or dotted segment, and nothing that could be read in two ways."""
    if len(path) > _LONGEST or not _PATH.fullmatch(path):
        raise Invalid(f"not a valid file path: {path[:_LONGEST]!r}", code="invalid_path")
    return path


def _bound_to_size(url: str, size: int, secret: str) -> str:
    """The signed upload URL, signed again together with the size (Signature Version 4).

    The bucket then rejects an upload with another Content-Length, before its bytes arrive.
    """
    parts = urlsplit(url)
    fields = dict(parse_qsl(parts.query, keep_blank_values=True))
    fields.pop("X-Amz-Signature")
    fields["X-Amz-SignedHeaders"] = "content-length;host"
    query = urlencode(sorted(fields.items()), quote_via=quote, safe="-_.~")
    headers = f"content-length:{size}\nhost:{parts.netloc}\n"
    request = "\n".join(["PUT", parts.path, query, headers, "content-length;host", "UNSIGNED-PAYLOAD"])
    scope = fields["X-Amz-Credential"].split("/")[1:]
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            fields["X-Amz-Date"],
            "/".join(scope),
            hashlib.sha256(request.encode()).hexdigest(),
        ]
    )
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return parts._replace(query=f"{query}&X-Amz-Signature={signature}").geturl()


def _file(meta: Any) -> File:
    return File(meta["path"], meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


async def _chunks(stream: AsyncIterable[Any], path: str) -> AsyncGenerator[bytes]:
    with _translated(path):
        async for chunk in stream:
            yield bytes(chunk)


@contextmanager
def _translated(path: str) -> Generator[None]:
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"no file at {path!r}", details={"path": path}) from None
    except (BaseError, OSError) as error:
        # The store's message names folders, hosts and requests: only the log shows it, as the cause.
        raise Unavailable("the storage is not available", details={"path": path}) from error


def _own_secret(home: Path) -> bytes:
    """The key that signs URLs, created on first use. Several machines need PENSTOCK_STORAGE_SECRET."""
    path = home / "storage.key"
    with suppress(FileNotFoundError):
        return path.read_bytes()
    home.mkdir(parents=True, exist_ok=True)
    # The link makes the file appear complete, and fails if another process was first: both use one key.
    descriptor, name = tempfile.mkstemp(dir=home, prefix="storage.key.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(32).hex().encode())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)
    return path.read_bytes()
