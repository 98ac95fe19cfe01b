"""Where files are: a local folder, or a bucket of S3 or whatever speaks like it.

`PENSTOCK_STORAGE` names it: `file:///srv/files`, or `s3://bucket/prefix?endpoint=https://…&region=…` with the
credentials in `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. Without it files are in `.penstock/artifacts`.

A path is made of plain segments, so that it is the same text in a URL, in a folder and in a bucket.
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
    """What was written."""

    bytes: int
    sha256: str


class File(NamedTuple):
    """What is there."""

    path: str
    bytes: int
    modified_at: float
    etag: str


class Part(NamedTuple):
    """A file being read: from `start` up to, not including, `end`."""

    file: File
    start: int
    end: int
    chunks: AsyncIterator[bytes]


class Grant(NamedTuple):
    """What a signed URL allows."""

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
            raise Invalid(f"PENSTOCK_STORAGE has an unknown option {min(unknown)!r}")
        return Bucket(address.netloc, prefix=address.path.strip("/"), **options)
    raise Invalid("PENSTOCK_STORAGE is not file:///folder or s3://bucket")


class Storage(ABC):
    """Files by their path. Writing is atomic: a file is there whole, or not."""

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
        """Write a file, in place of one that may be there. Refuses with TooLarge beyond `limit` bytes."""
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
        """Read a file, or a part of it that is not empty. Raises NotFound."""
        options: Any = {} if end is None and start == 0 else {"range": {"offset": start}}
        if end is not None:
            options = {"range": (start, end)}
        with _translated(path):
            found = await obstore.get_async(self._store, checked(path), options=options)
        return Part(_file(found.meta), *found.range, _chunks(found.stream(min_chunk_size=1 << 18), path))

    async def read(self, path: str, *, limit: int) -> bytes:
        """A whole file that fits into memory."""
        part = await self.get(path)
        if part.file.bytes > limit:
            raise TooLarge(f"the file is larger than {limit} bytes", details={"limit": limit})
        return b"".join([chunk async for chunk in part.chunks])

    async def head(self, path: str) -> File:
        """What is said of a file. Raises NotFound."""
        with _translated(path):
            return _file(await obstore.head_async(self._store, checked(path)))

    async def delete(self, paths: Iterable[str]) -> None:
        """Remove files. One that is not there is removed already."""
        for path in paths:
            with suppress(NotFound), _translated(path):
                await obstore.delete_async(self._store, checked(path))

    async def list(self, prefix: str = "") -> AsyncGenerator[list[File]]:
        """The files below a folder, in pages."""
        # Its own types leave one of its forms open.
        found: Any = cast("Any", obstore).list(self._store, prefix or None, chunk_size=500)
        with _translated(prefix):
            async for page in found:
                yield [_file(meta) for meta in page]

    @abstractmethod
    async def _write(self, path: str, source: Any, headers: Mapping[str, str]) -> None: ...

    @abstractmethod
    async def url(self, method: Method, path: str, *, base: str, seconds: float, **fields: str) -> str:
        """An address that allows one method on one path, for so long, to whoever has it.

        `base` is where this service is, and `fields` (`tenant`, `type`, `name`, `limit`) what its route
        must know: a bucket serves by itself, and needs neither.
        """

    async def clear_partial(self, older_than: float) -> int:
        """Remove what writes that died left behind; says how many. A bucket does that by a lifecycle rule."""
        return 0


class Folder(Storage):
    """Files in a local folder, served by our own routes under URLs signed by us."""

    def __init__(self, root: Path, secret: bytes, now: Callable[[], float] = time.time) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.root, self._secret, self._now = root.resolve(), secret, now
        super().__init__(LocalStore(self.root))

    async def _write(self, path: str, source: Any, headers: Mapping[str, str]) -> None:
        await obstore.put_async(self._store, path, source)
        await asyncio.to_thread(self._sync, self.root / path)

    def _sync(self, file: Path) -> None:
        # What is recorded as stored must outlive a power cut: the bytes, and the names that lead to them.
        for place in (file, *file.parents):
            descriptor = os.open(place, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if place == self.root:
                return

    async def url(self, method: Method, path: str, *, base: str, seconds: float, **fields: str) -> str:
        expires = str(int(self._now() + _duration(seconds)))
        target = f"{checked(path)}?{urlencode({'expires': expires, **fields}, quote_via=quote, safe='')}"
        return f"{base.rstrip('/')}/storage/{target}&signature={self._signature(method, target)}"

    def verify(self, method: str, target: str) -> Grant:
        """What a URL allows: its text after `/storage/`, byte for byte as it was sent.

        The signature covers the text itself. So there is no other way to write the same thing: whatever is
        encoded differently, doubled, added, left out or put in another order is refused before it is read.
        """
        signed, _, signature = target.rpartition("&signature=")
        expected = self._signature("GET" if method == "HEAD" else method, signed)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            raise Forbidden("the signature does not fit", code="bad_signature")
        path, _, query = signed.partition("?")
        fields = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        if float(fields["expires"]) <= self._now():
            raise Forbidden("the URL has expired", code="url_expired", hint="Ask for a new one.")
        if not path.startswith(fields["tenant"] + "/"):
            raise Forbidden("the signature does not fit", code="bad_signature")
        return Grant(checked(path), fields)

    def _signature(self, method: str, target: str) -> str:
        message = f"penstock\n{method}\n{target}".encode("utf-8", "replace")
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()

    async def clear_partial(self, older_than: float) -> int:
        return await asyncio.to_thread(self._clear_partial, self._now() - older_than)

    def _clear_partial(self, before: float) -> int:
        # The store writes to name#1, name#2 and so on, and renames.
        count = 0
        for file in self.root.rglob("*#*"):
            with suppress(FileNotFoundError):
                if re.search(r"#\d+$", file.name) and file.stat().st_mtime < before:
                    file.unlink()
                    count += 1
        return count


class Bucket(Storage):
    """Files in a bucket, which serves them itself under URLs signed with its credentials."""

    def __init__(
        self, name: str, *, prefix: str = "", endpoint: str | None = None, region: str | None = None
    ) -> None:
        # A store that does not answer is said to be so within seconds; whoever asked can ask again.
        options: dict[str, Any] = {"retry_config": {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}}
        if prefix:
            options["prefix"] = prefix
        if endpoint:
            # Supabase and most others have the bucket in the path, not in the host's name.
            options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
            options["client_options"] = {"allow_http": endpoint.startswith("http://")}
        if region:
            options["region"] = region
        super().__init__(S3Store(name, **options))

    async def _write(self, path: str, source: Any, headers: Mapping[str, str]) -> None:
        await obstore.put_async(self._store, path, source, attributes=dict(headers))

    async def url(self, method: Method, path: str, *, base: str, seconds: float, **fields: str) -> str:
        lasting = timedelta(seconds=_duration(seconds))
        with _translated(path):
            return await obstore.sign_async(self._store, method, checked(path), lasting)


def checked(path: str) -> str:
    """A path that is one: no empty or dotted segment, nothing that another reader would read differently."""
    if len(path) > _LONGEST or not _PATH.fullmatch(path):
        raise Invalid("this is not the path of a file", code="invalid_path")
    return path


def _duration(seconds: float) -> float:
    if not 1 <= seconds <= _WEEK:
        raise Invalid("a URL is valid for a second to a week", code="invalid_ttl")
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
        raise NotFound("there is no such file", details={"path": path}) from None
    except (BaseError, OSError) as error:
        # The store's own words name folders, hosts and requests: they are for the log, as the cause.
        raise Unavailable("the storage cannot answer now", details={"path": path}) from error


def _own_secret(home: Path) -> bytes:
    """What this installation signs with, made when first needed. Several machines share one by a setting."""
    place = home / "storage.key"
    with suppress(FileNotFoundError):
        return place.read_bytes()
    home.mkdir(parents=True, exist_ok=True)
    # Whole or not at all, and the first one wins: a second process must not sign with another.
    descriptor, name = tempfile.mkstemp(dir=home, prefix="storage.key.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(32).hex().encode())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(name, place)
    finally:
        os.unlink(name)
    return place.read_bytes()
