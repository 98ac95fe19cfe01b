"""Two devices of one user: each edits offline, both converge, one finds ideas, the other exports."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any
from uuid import UUID, uuid4

import jwt
from rich.console import Console

from penstock import server, simulator
from penstock.api.development import Development
from penstock.apps.notes.app import app
from penstock.apps.notes.device import (
    Cipher,
    HttpServer,
    Store,
    build_export,
    discovery,
    keys,
    sync,
)
from penstock.contract import keys as api_keys
from penstock.contract import providers
from penstock.errors import PenstockError
from penstock.postgres import db
from penstock.settings import settings

_SUBJECTS = ("law", "rivers", "memory", "courage", "time", "solitude")
_ISSUER = "https://notes.example.org"
_TEXTS = "select text from notes.notes where user_id = %s and text <> ''"
_USED = """
select coalesce(sum(used), 0) from penstock.accounts where meter = 'managed_ai' and job_id is null
and tenant_id = (select tenant_id from penstock.profiles where user_id = %s)"""


async def run(folder: Path, count: int, console: Console) -> bool:
    """Run the demo; returns whether both devices have the same library in the end."""
    began = time.monotonic()
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with app, simulator.serve() as model, _api() as (url, secret):
        os.environ["NOTES_ANTHROPIC_URL"] = model.anthropic_url
        async with app.connections() as pool:
            await providers.open(
                pool, name="anthropic/claude-haiku-4-5"
            )  # an earlier demo may have closed it
            user_id = uuid4()
            add = "insert into auth.users (id, email) values (%s, %s) returning id"
            await db.rows(pool, add, (user_id, f"{user_id}@example.org"))
            # Longer than a managed call may take.
            remote = HttpServer(url, "public", lambda: _token(user_id, secret), timeout=120)
            is_same = await asyncio.to_thread(_devices, folder, remote, str(user_id), count, console)
            await _report(pool, user_id, console)
    console.print(f"{time.monotonic() - began:.1f} s in total.")
    return is_same


def _devices(folder: Path, remote: HttpServer, user_id: str, count: int, console: Console) -> bool:
    """Open both libraries, in the thread that uses them."""
    first, second = Store(folder / f"{user_id}-a.db"), Store(folder / f"{user_id}-b.db")
    try:
        is_same = _show(first, second, remote, user_id, count, console)
        export = folder / "export.json"
        export.write_text(json.dumps(build_export(second), ensure_ascii=False, indent=1))
        console.print(f"Exported the library of B to {export}.")
        return is_same
    finally:
        first.close()
        second.close()


def _show(
    first: Store, second: Store, remote: HttpServer, user_id: str, count: int, console: Console
) -> bool:
    cipher = Cipher.generate()
    first.unlock(cipher)
    keys.enrol(remote, cipher, "a passphrase of the demo")
    book = first.save("books", title="Walden", author="Henry David Thoreau", isbn="9780691096124")
    for n in range(count):
        text = f"Note {n} about {_SUBJECTS[n % len(_SUBJECTS)]}"
        first.save("notes", book_id=book["id"], text=text, page=str(n), source="demo")
    console.print(f"Device A, offline: a book and {count} notes.")
    console.print(f"Device A syncs: {sync(first, remote)}")
    second.unlock(keys.accept(remote, user_id, keys.offer(remote, cipher)))
    console.print(f"Device B got the key by a transfer code and syncs: {sync(second, remote)}")

    notes = first.rows("notes")
    first.save("notes", id=notes[0]["id"], text="Edited on A")
    first.delete("notes", notes[1]["id"])
    time.sleep(0.01)  # the second edit is the newer one
    second.save("notes", id=notes[0]["id"], text="Edited on B, later")
    second.save("notes", book_id=book["id"], text="Written on B")
    for name, store in (("A", first), ("B", second), ("A", first)):
        console.print(f"Both edited offline. Device {name} syncs: {sync(store, remote)}")
    assert first.rows("notes") and _text(first, notes[0]["id"]) == "Edited on B, later"

    job = _discover(first, remote, console)
    sync(first, remote)
    sync(second, remote)
    console.print(f"Ideas of a note on B: {_some_tags(second)} ({job.counts['applied']} notes tagged)")
    is_same = _library(first) == _library(second)
    console.print("Both libraries are equal." if is_same else "The libraries differ!")
    return is_same


def _discover(store: Store, remote: HttpServer, console: Console) -> discovery.Job:
    """Find ideas on the device: a preview, a confirmation, the rest, and the undo of one idea."""

    ask = discovery.managed(remote)
    job = discovery.run(store, discovery.start(store), ask)
    count = len(job.preview or {})
    notes = "1 note" if count == 1 else f"{count} notes"
    console.print(f"Preview of the first batch: {notes}. Nothing is applied yet.")
    discovery.confirm_preview(store, job)
    discovery.run(store, job, ask)
    note_id, detail = next(iter(job.applied_detail.items()))
    removed = discovery.undo_idea(store, job, note_id, detail["added"][0]["name"])
    undone = ", ".join(f"{idea['name']} ({idea['role']})" for idea in removed)
    console.print("Confirmed: tagged {applied}, skipped {skipped}, failed {failed}.".format(**job.counts))
    console.print(f"Removed one idea again: {undone}.")
    return job


async def _report(pool: db.Pool, user_id: UUID, console: Console) -> None:
    texts = [row[0] for row in await db.rows(pool, _TEXTS, (user_id,))]
    [(used,)] = await db.rows(pool, _USED, (user_id,))
    console.print(
        f"The server has {len(texts)} texts, such as {texts[0][:40]}…, and counted {used} managed calls."
    )


def _library(store: Store) -> dict[str, Any]:
    return {
        table: [{key: row[key] for key in row if key != "image_data_url"} for row in store.rows(table)]
        for table in ("books", "notes", "custom_ideas", "note_links", "lenses", "collections")
    }


def _text(store: Store, note_id: str) -> str | None:
    note = store.get("notes", note_id)
    return note["text"] if note else None


def _some_tags(store: Store) -> list[str]:
    tagged: list[list[str]] = [note["tags"] for note in store.rows("notes") if note["tags"]]
    return tagged[0] if tagged else []


def _token(user_id: UUID, secret: str) -> str:
    """A token as the authentication service signs it after a sign-in."""
    now = int(time.time())
    claims = {"iss": _ISSUER, "aud": "authenticated", "role": "authenticated", "sub": str(user_id)}
    return jwt.encode({**claims, "iat": now, "exp": now + 600}, secret, "HS256")


@asynccontextmanager
async def _api() -> AsyncGenerator[tuple[str, str]]:
    """Serve the API on this machine; yields its URL and the secret that signs users' tokens."""
    secret = token_hex(32)
    own = replace(
        settings(), database_url=app.dsn(), environment="demo", jwt_secret=secret, jwt_issuer=_ISSUER
    )
    found = server.with_development_login(own)
    async with app.connections() as pool:
        await app.declare(pool)
        tenant_id = await app.tenant_id(pool)
        until = datetime.now(UTC) + timedelta(days=1)
        key = await api_keys.create(
            pool, name="notes demo", role="owner", tenant_id=tenant_id, expires_at=until
        )
    listening = server.bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    developer = Development(key.id, f"penstock_demo_{port}", str(app.tenant))
    try:
        async with server.serving(found, listening, developer=developer, app=app):
            yield f"http://127.0.0.1:{port}", secret
    finally:
        with suppress(PenstockError):
            async with app.connections() as pool:
                await api_keys.revoke(pool, key_id=key.id)
