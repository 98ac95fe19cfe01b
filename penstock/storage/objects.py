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
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

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
    async def url(self, method: Method, path: str, *, base: str, seconds: float, **fields: str) -> str:
        """A signed URL that allows one method on one path for this many seconds.

        `base` is the URL of this service, and `fields` (`tenant`, `type`, `name`, `limit`) are parameters of
        its route. A bucket serves its files itself and ignores both.
        """

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

    async def url(self, method: Method, path: str, *, base: str, seconds: float, **fields: str) -> str:
        expires = str(int(self._now() + _duration(seconds)))
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

    async def url(self, method: Method, path: str, *, base: str, seconds: float, **fields: str) -> str:
        duration = timedelta(seconds=_duration(seconds))
        with _translated(path):
            return await obstore.sign_async(self._store, method, checked(path), duration)


def checked(path: str) -> str:
    """The path, if valid: it has no empty or dotted segment, and nothing that could be read in two ways."""
    if len(path) > _LONGEST or not _PATH.fullmatch(path):
        raise Invalid(f"not a valid file path: {path[:_LONGEST]!r}", code="invalid_path")
    return path


def _duration(seconds: float) -> float:
    if not 1 <= seconds <= _WEEK:
        raise Invalid(
            f"the validity of a URL must be between 1 second and 1 week (got {seconds:g} s)",
            code="invalid_ttl",
        )
    return seconds


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
