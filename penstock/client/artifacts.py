"""Artifacts: download and upload files. Transfers use signed URLs, without the key."""

from __future__ import annotations

import hashlib
import io
import mimetypes
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast
from uuid import UUID

from penstock.client.core import Core, identifier, path
from penstock.client.responses import error_of, read
from penstock.client.transport import IO, Resource, call, listing
from penstock.errors import Invalid, PenstockError, TooLarge, Unavailable
from penstock.types import Artifact, LinkedArtifact, LinkKind

FileSource: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO"
"""A file to upload: a path, bytes, or an open binary file."""

_CHUNK = 1 << 16
_FINISH_SECONDS = 120.0
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Artifacts(Resource[IO]):
    """Files in storage."""

    @listing
    def list(
        self, job_id: UUID | str, *, expires_in: float | None = None, limit: int | None = None
    ) -> AsyncGenerator[LinkedArtifact]:
        """Iterate over a job's files, oldest first. `expires_in`: lifetime of URLs in seconds (an hour)."""
        return of_job(self._core, identifier(job_id, "job_id"), expires_in, limit)

    @call
    async def get(self, artifact_id: UUID | str, *, expires_in: float | None = None) -> LinkedArtifact:
        """A file's metadata with a URL that is valid for `expires_in` seconds (default: an hour)."""
        return await get_linked(self._core, identifier(artifact_id, "artifact_id"), expires_in)

    @call
    async def url(self, artifact_id: UUID | str, *, expires_in: float | None = None) -> str:
        """A new URL that lets anyone read the file for `expires_in` seconds (default: an hour)."""
        return (await get_linked(self._core, identifier(artifact_id, "artifact_id"), expires_in)).url

    @call
    async def link(self, artifact_id: UUID | str, link: LinkKind) -> str:
        """Choose who may open the link of a file, and get the link."""
        url_path = path("/api/artifacts/{}/link", identifier(artifact_id, "artifact_id"))
        answer = await self._core.request("PUT", url_path, body={"link": link})
        return str(answer.json()["url"])

    @call
    async def delete(self, artifact_id: UUID | str) -> None:
        """Delete a file. It disappears from lists immediately and from storage soon after."""
        url_path = path("/api/artifacts/{}", identifier(artifact_id, "artifact_id"))
        await self._core.request("DELETE", url_path)

    @call
    async def read(self, artifact: Artifact | UUID | str) -> bytes:
        """A file's content, verified by its digest; at most the client's `max_bytes`."""
        return await content(self._core, await self._known(artifact))

    @call
    async def download(self, artifact: Artifact | UUID | str, to: str | os.PathLike[str]) -> Path:
        """Download a file to a path or into a folder, and verify its digest. Returns the path.

        Resumes an interrupted download, also from an earlier call. The file appears when it is complete.
        """
        found = await self._known(artifact)
        target = await self._core.io.work(_target, Path(to), found)
        part = target.with_name(f"{target.name}.{found.sha256[:16]}.part")
        await _to_file(self._core, found, part)
        await self._core.io.work(os.replace, part, target)
        return target

    @call
    async def upload(
        self,
        source: FileSource,
        *,
        name: str | None = None,
        content_type: str | None = None,
        tenant_id: UUID | str | None = None,
        idempotency_key: str | None = None,
    ) -> LinkedArtifact:
        """Upload a file, and verify the digest of the stored file.

        `content_type` defaults to the file name's. The same `idempotency_key` repeats the same upload.
        """
        core = self._core
        known = name or (Path(source).name if isinstance(source, str | os.PathLike) else None)
        kind = content_type or (mimetypes.guess_type(known)[0] if known else None)
        if known is None or kind is None:
            missing = "name" if known is None else "content_type"
            raise Invalid(f"{missing} is missing and cannot be guessed", details={"field": missing})
        file, size = await core.io.work(opened, source)
        try:
            body = {
                "name": known,
                "content_type": kind,
                "bytes": size,
                "tenant_id": core.tenant_or_none(tenant_id),
            }
            key = idempotency_key or uuid.uuid4().hex
            upload_id, digest = await _send(core, body, key, file, size)
        finally:
            if file is not source:
                await core.io.work(file.close)
        # Not to the URL in the response, because the key must go to the API only.
        finish = path("/api/uploads/{}/finish", upload_id)
        answer = await core.request("POST", finish, seconds=max(core.timeout, _FINISH_SECONDS))
        kept = read(LinkedArtifact, answer.json())
        if kept.sha256 != digest:
            raise _digest_mismatch(kept)
        return kept

    async def _known(self, artifact: Artifact | UUID | str) -> Artifact:
        if isinstance(artifact, Artifact):
            return artifact
        return await get_linked(self._core, identifier(artifact, "artifact_id"))


def of_job(
    core: Core[IO], job_id: UUID, expires_in: float | None, limit: int | None
) -> AsyncGenerator[LinkedArtifact]:
    """Iterate over a job's files."""
    url_path, query = path("/api/jobs/{}/artifacts", job_id), {"expires_in": expires_in}
    return core.pages(partial(read, LinkedArtifact), url_path, query, limit)


async def get_linked(core: Core[IO], artifact_id: UUID, expires_in: float | None = None) -> LinkedArtifact:
    """A file's metadata with a new URL."""
    query = {"expires_in": expires_in}
    answer = await core.request("GET", path("/api/artifacts/{}", artifact_id), query=query, also_accept=307)
    return read(LinkedArtifact, answer.json())


# Downloads


async def content(core: Core[IO], artifact: Artifact) -> bytes:
    """A file's content, verified by its digest."""
    if artifact.bytes > core.max_bytes:
        raise TooLarge(
            f"the file is larger than {core.max_bytes} bytes",
            code="answer_too_large",
            hint="Use download(), or create the client with a larger max_bytes.",
        )
    file = io.BytesIO()
    await _fetch(core, artifact, file)
    return file.getvalue()


async def _to_file(core: Core[IO], artifact: Artifact, part: Path) -> None:
    file = await core.io.work(_open_part, part)
    try:
        is_fresh = await core.io.work(_size, file) == 0
        try:
            await _fetch(core, artifact, file)
        except PenstockError as error:
            if is_fresh or not _is_digest_mismatch(error):
                raise
            # The partial file of an earlier call does not belong to this file: start again.
            await core.io.work(_truncate, file)
            await _fetch(core, artifact, file)
    except PenstockError as error:
        if _is_digest_mismatch(error):
            await core.io.work(part.unlink, missing_ok=True)
        raise
    finally:
        await core.io.work(file.close)


def _open_part(part: Path) -> BinaryIO:
    # Do not follow a symbolic link that another user may have placed there.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(part, flags, 0o666), "r+b")


def _digest_mismatch(artifact: Artifact) -> PenstockError:
    return PenstockError(
        f"the content of {artifact.name or artifact.id} does not match its digest",
        code="wrong_digest",
        hint="Try again. If the error persists, run `penstock artifacts check`.",
        details={"artifact_id": str(artifact.id)},
    )


def _is_digest_mismatch(error: PenstockError) -> bool:
    return error.code == "wrong_digest"


async def _fetch(core: Core[IO], artifact: Artifact, file: BinaryIO) -> None:
    """Download the missing rest of the file."""
    retries = core.retries()
    digest = await core.io.work(_digest_of, file, artifact.bytes)
    is_whole = 0 < artifact.bytes == file.tell()
    while not is_whole:
        # A new URL each time, because the last one may have expired.
        url = (await get_linked(core, artifact.id)).url
        before = file.tell()
        try:
            digest = await _receive(core, artifact, url, file, digest)
            is_whole = True
        except PenstockError as error:
            if file.tell() > before:
                retries.reset()
            await core.io.sleep(retries.pause(error))
            digest = await core.io.work(_digest_of, file, artifact.bytes)
    if digest.hexdigest() != artifact.sha256:
        raise _digest_mismatch(artifact)


async def _receive(core: Core[IO], artifact: Artifact, url: str, file: BinaryIO, digest: Any) -> Any:
    """Append the missing part. Returns the digest of the whole file."""
    start = file.tell()
    headers = {"Range": f"bytes={start}-"} if start else {}
    response = await core.open(core.signed_request("GET", url, headers))
    try:
        if response.status_code == 206:
            match = _RANGE.fullmatch(response.headers.get("content-range", ""))
            if match is None or (int(match[1]), int(match[3])) != (start, artifact.bytes):
                raise _digest_mismatch(artifact)
        elif response.status_code == 200:
            # The server ignored the range and sends the whole file.
            digest = hashlib.sha256()
            await core.io.work(_truncate, file)
        else:
            raise error_of(await core.whole(response, _CHUNK))
        async with aclosing(core.chunks(response)) as chunks:
            async for chunk in chunks:
                if file.tell() + len(chunk) > artifact.bytes:
                    raise _digest_mismatch(artifact)
                await core.io.work(_write, file, chunk, digest)
    finally:
        await core.io.close(response)
    if file.tell() < artifact.bytes:
        raise Unavailable("the download ended early")
    return digest


def _digest_of(file: BinaryIO, most: int) -> Any:
    """The digest of the partial file, and seek to its end. Truncates a file that is too long."""
    digest = hashlib.sha256()
    if _size(file) > most:
        _truncate(file)
    file.seek(0)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest


def _size(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def _truncate(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


def _write(file: BinaryIO, chunk: bytes, digest: Any) -> None:
    file.write(chunk)
    digest.update(chunk)


def _target(to: Path, artifact: Artifact) -> Path:
    return to / _file_name(artifact) if to.is_dir() else to


def _file_name(artifact: Artifact) -> str:
    """A safe file name within the folder."""
    last = re.split(r"[/\\]", artifact.name or artifact.path)[-1]
    plain = re.sub(r"[^\w. ()-]", "_", last).lstrip(".")
    return plain[-200:] or str(artifact.id)


# Uploads


@dataclass(frozen=True, slots=True)
class _Begun:
    id: UUID
    url: str


def opened(source: FileSource) -> tuple[BinaryIO, int]:
    """Open a source as a seekable file. Returns it with its size."""
    if isinstance(source, bytes | bytearray | memoryview):
        return io.BytesIO(source), len(source)
    if isinstance(source, str | os.PathLike):
        file = cast("BinaryIO", open(source, "rb"))  # noqa: SIM115 the caller closes it
    elif source.seekable() and source.tell() == 0:
        file = source
    else:
        # Copy a stream, because its size is unknown and it cannot be read twice.
        file = cast("BinaryIO", tempfile.SpooledTemporaryFile(max_size=1 << 20))  # noqa: SIM115
        shutil.copyfileobj(source, file)
    return file, _size(file)


async def _send(core: Core[IO], body: Any, key: str, file: BinaryIO, size: int) -> tuple[UUID, str]:
    retries = core.retries()
    while True:
        # The same key returns the same upload with a new URL.
        begun = read(_Begun, (await core.request("POST", "/api/uploads", body=body, key=key)).json())
        digest = hashlib.sha256()
        chunks = core.io.body(chunks_of(core, file, size, digest))
        headers = {"Content-Length": str(size)}
        try:
            request = core.signed_request("PUT", begun.url, headers, chunks)
            answer = await core.receive(request, core.max_bytes)
            if answer.status < 300:
                return begun.id, digest.hexdigest()
            error = error_of(answer)
        except Unavailable as lost:
            error = lost
        await core.io.sleep(retries.pause(error))


async def chunks_of(core: Core[IO], file: BinaryIO, size: int, digest: Any = None) -> AsyncGenerator[bytes]:
    """Stream a file from its beginning."""
    await core.io.work(file.seek, 0)
    left = size
    while left:
        chunk = await core.io.work(file.read, min(_CHUNK, left))
        if not chunk:
            raise Invalid("the file was truncated during the upload")
        left -= len(chunk)
        if digest is not None:
            digest.update(chunk)
        yield chunk
