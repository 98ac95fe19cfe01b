"""Makes an event with slides, switches its thumbnails on and waits for them. CloudConvert is simulated.

A third of the webhooks get lost, come twice or too early: the results do not depend on them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from rich.console import Console
from rich.progress import Progress

from penstock import server, simulator
from penstock.api.development import Development
from penstock.apps.slides import samples
from penstock.apps.slides.app import CLOUDCONVERT, UPLOADS, add_stored, app
from penstock.contract import artifacts, database_settings, keys, providers
from penstock.errors import PenstockError, TimedOut
from penstock.postgres import db
from penstock.settings import settings
from penstock.simulator.cloudconvert import SECRET
from penstock.types import Artifact
from penstock.worker import Worker

_FAULTS = {"lost": 0.15, "doubled": 0.1, "early": 0.1}
_EVENT = "insert into slides.events (tenant_id, name) values (%s, %s) returning id"
_SESSION = """
insert into slides.sessions (tenant_id, event_id, title) values (%s, %s, 'Morning') returning id"""
_SPEECH = """
insert into slides.speeches (tenant_id, session_id, title) values (%s, %s, 'Rivers') returning id"""
_STATES = """
select s.thumbnail_status, s.name, a.path, s.thumbnail_error from slides.slides s
left join penstock.artifacts a on a.id = s.thumbnail_artifact_id
where s.tenant_id = %s and s.event_id = %s order by s.created_at, s.name"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to show."""

    count: int = 20
    folder: Path = Path("thumbnails")
    local: bool = False
    """Whether to convert with LibreOffice instead of the simulated CloudConvert."""
    seconds: float = 240


async def run(options: Options, console: Console) -> int:
    """Run the demo; returns the number of thumbnails."""
    began = time.monotonic()
    serving = simulator.serve(
        cloudconvert={"latency": (0.3, 1.5), "webhook_faults": _FAULTS, "late_seconds": 5}
    )
    # The server says at its start if a source of webhooks has no secret.
    os.environ["CLOUDCONVERT_WEBHOOK_SECRET"] = SECRET
    async with app, serving as provider, _api() as url:
        os.environ |= {
            "CLOUDCONVERT_URL": provider.cloudconvert_url,
            "CLOUDCONVERT_API_KEY": "simulated",
            "SLIDES_PUBLIC_URL": url or "",
            # Without a webhook a real conversion is checked after 30 seconds.
            "SLIDES_CHECK_SECONDS": "3 6 12",
        }
        worker = asyncio.create_task(Worker(app, concurrency=8, grace_seconds=5).run())
        try:
            made = await _show(options, console)
        finally:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker
        stats = provider.cloudconvert.stats()
    console.print(f"{made} thumbnails in {time.monotonic() - began:.1f} s: {options.folder.resolve()}")
    if not options.local:
        told = ", ".join(f"{count} {name}" for name, count in sorted(stats["webhooks"].items()))
        console.print(f"CloudConvert (simulated): {stats['conversions']} conversions; webhooks: {told}")
    return made


async def _show(options: Options, console: Console) -> int:
    async with app.connections() as pool:
        await app.declare(pool)
        tenant_id = await app.tenant_id(pool)
        await providers.set(pool, name=CLOUDCONVERT, hosts=["api.cloudconvert.com", "127.0.0.1"])
        await providers.open(pool, name=CLOUDCONVERT)  # an earlier demo may have closed it
        chosen = "libreoffice/local" if options.local else CLOUDCONVERT
        await database_settings.set(pool, name="slides.provider", value=chosen)
        event_id, speech_id = await make_event(pool, tenant_id)
        for number in range(options.count):
            await add_sample(pool, tenant_id, speech_id, number)
        pack = "select slides.purchase_thumbnail_quota(%s, %s, %s)"
        await db.rows(pool, pack, (tenant_id, options.count, f"demo {event_id}"))
        console.print(
            f"Event {event_id}: {options.count} slides. Bought a pack of {options.count} thumbnails."
        )
        await db.rows(pool, "select slides.set_thumbnail_generation(%s)", (event_id,))
        rows = await _watch(pool, tenant_id, event_id, options, console)
        options.folder.mkdir(parents=True, exist_ok=True)
        for number, (status, name, path, error) in enumerate(rows, 1):
            if status == "completed":
                picture = await app.storage.read(path, limit=20 << 20)
                (options.folder / f"{number:02d}-{Path(name).stem}.png").write_bytes(picture)
            else:
                console.print(f"{name}: {status}: {error}")
        return sum(row[0] == "completed" for row in rows)


async def _watch(
    pool: db.Pool, tenant_id: UUID, event_id: UUID, options: Options, console: Console
) -> list[Any]:
    """Show the progress until every slide has ended; returns the slides."""
    until = time.monotonic() + options.seconds
    with Progress(console=console) as shown:
        bar = shown.add_task("Thumbnails", total=options.count)
        while True:
            rows = await db.rows(pool, _STATES, (tenant_id, event_id))
            states = Counter(row[0] for row in rows)
            shown.update(bar, completed=states["completed"] + states["failed"])
            if states["completed"] + states["failed"] == options.count:
                return list(rows)
            if time.monotonic() > until:
                raise TimedOut(
                    f"not all thumbnails were made within {options.seconds:.0f} seconds: {dict(states)}"
                )
            await asyncio.sleep(0.2)


async def make_event(database: db.Database, tenant_id: UUID, name: str = "Water Days") -> tuple[UUID, UUID]:
    """An event with one session and one speech; returns the ids of the event and the speech."""
    [(event_id,)] = await db.rows(database, _EVENT, (tenant_id, name))
    [(session_id,)] = await db.rows(database, _SESSION, (tenant_id, event_id))
    [(speech_id,)] = await db.rows(database, _SPEECH, (tenant_id, session_id))
    return event_id, speech_id


async def add_sample(pool: db.Pool, tenant_id: UUID, speech_id: UUID, number: int) -> None:
    """Upload a sample slide as a client does: the file, the slide and its job are one commit."""
    name, kind, data = samples.make(number)
    upload = await artifacts.begin_upload(
        pool, name=name, content_type=kind, bytes=len(data), tenant_id=tenant_id,
        idempotency_key=f"{UPLOADS}{speech_id}/{uuid4()}",
    )  # fmt: skip
    await app.storage.put(upload.incoming, data, limit=len(data), headers={})
    taken = await artifacts.take_upload(pool, artifact_id=upload.id)

    async def finish(conn: db.Connection, file: Artifact) -> None:
        await add_stored(conn, speech_id, file)

    await artifacts.finish_upload(
        partial(db.connection, pool), app.storage, artifact_id=upload.id, taken=taken, finish=finish
    )


@asynccontextmanager
async def _api() -> AsyncGenerator[str | None]:
    """Serve the API on this machine, for webhooks. None if the database has no login for users."""
    try:
        own = replace(settings(), database_url=app.dsn(), environment="demo")
        found = server.with_development_login(own)
    except PenstockError:
        yield None
        return
    async with app.connections() as pool:
        tenant_id = await app.tenant_id(pool)
        until = datetime.now(UTC) + timedelta(days=1)
        key = await keys.create(pool, name="slides demo", role="owner", tenant_id=tenant_id, expires_at=until)
    listening = server.bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    developer = Development(key.id, f"penstock_demo_{port}", str(app.tenant))
    try:
        async with server.serving(found, listening, developer=developer, app=app):
            yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(PenstockError):
            async with app.connections() as pool:
                await keys.revoke(pool, key_id=key.id)
