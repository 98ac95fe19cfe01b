"""Images of notes: the upload in one request, and a signed URL to read one."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import LiteralString
from uuid import UUID

from penstock import App, FunctionRequest, FunctionResponse, Invalid
from penstock.contract import artifacts
from penstock.errors import NotFound
from penstock.postgres import db
from penstock.storage import content
from penstock.types import Artifact

MAX_BYTES = 10 << 20
TYPES = {"image/jpeg": "jpg", "image/png": "png", "image/webp": "webp"}
_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})')
_MOST_PARTS = 8
_REQUIRE: LiteralString = "select notes.require_note(%s)"
_LOCK: LiteralString = "select penstock.lock_owner(%s)"
_ADD: LiteralString = "select notes.add_image(%s, %s, %s)"
_FIND: LiteralString = "select artifact_id, path from notes.find_image(%s)"


def add(app: App) -> None:
    """Declare the functions."""

    @app.function("image-upload", max_bytes=MAX_BYTES)
    async def image_upload(request: FunctionRequest) -> FunctionResponse:
        """Store the body as the image of a note. The file, its bytes and the note's path are one commit."""
        note_id, user_id = _note_id(request), request.user_id
        if user_id is None:
            raise Invalid("only a signed-in user has notes", code="profile_missing")
        data = _image(request)
        kind = content.detected(data[: content.HEAD_BYTES])
        if kind not in TYPES:
            raise Invalid("the body must be a JPEG, PNG or WebP image", code="invalid_image")
        async with request.acting() as conn:
            await db.rows(conn, _REQUIRE, (note_id,))
            begun = await artifacts.begin_upload(
                conn, name=f"{note_id}.{TYPES[kind]}"[-200:], content_type=kind, bytes=len(data)
            )
            taken = await artifacts.take_upload(conn, artifact_id=begun.id)
        storage = request.storage()
        await storage.put(taken["incoming"], data, limit=len(data))

        @asynccontextmanager
        async def service() -> AsyncGenerator[db.Connection]:
            async with request.service() as conn:
                # Before the accounts: erase_user takes both in this order.
                await db.rows(conn, _LOCK, (user_id,))
                yield conn

        async def finish(conn: db.Connection, file: Artifact) -> None:
            await db.rows(conn, _ADD, (user_id, note_id, file.id))

        await artifacts.finish_upload(service, storage, artifact_id=begun.id, taken=taken, finish=finish)
        async with request.acting() as conn:
            [(artifact_id, path)] = await db.rows(conn, _FIND, (note_id,))
        return FunctionResponse(201, json={"artifact_id": str(artifact_id), "path": path})

    @app.function("note-image", methods=["GET"])
    async def note_image(request: FunctionRequest) -> FunctionResponse:
        """Redirect to a fresh signed URL of a note's image."""
        async with request.acting() as conn:
            rows = await db.rows(conn, _FIND, (_note_id(request),))
        if not rows:
            raise NotFound("the note has no image", code="unknown_note")
        artifact_id: UUID = rows[0][0]
        async with request.acting() as conn:
            file = await artifacts.get(conn, artifact_id=artifact_id)
        url = await request.storage().url(
            "GET",
            file.path,
            base=request.base_url,
            tenant=str(file.tenant_id),
            type=file.content_type,
            name=file.name or "image",
        )
        return FunctionResponse(307, headers={"Location": url})


def _image(request: FunctionRequest) -> bytes:
    """The body, or the first file of a form."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        return request.body
    # Split here because the standard library's parser takes a minute for a body of nothing but boundaries.
    found = _BOUNDARY.search(kind)
    mark = b"\r\n--" + (found[1] if found else "").encode("latin-1")
    for part in (b"\r\n" + request.body).split(mark, _MOST_PARTS + 1)[1:-1] if found else ():
        head, gap, data = part.partition(b"\r\n\r\n")
        if gap and len(head) < 4096 and b"filename=" in head.lower():
            return data
    raise Invalid("the form has no file", code="invalid_image")


def _note_id(request: FunctionRequest) -> str:
    note_id = request.query.get("note_id", "")
    if not 1 <= len(note_id) <= 100:
        raise Invalid("note_id is missing", details={"field": "note_id"})
    return note_id
