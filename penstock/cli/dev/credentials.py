"""Credentials of the developer: the same across starts, in a file that only its owner can read."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog

from penstock.contract import alerts, keys, tenants
from penstock.errors import PenstockError
from penstock.postgres import db

log = structlog.get_logger("penstock.upkeep")
KEY = "penstock dev"
"""The name of the developer's API keys."""
FILE = "dev.json"
REMOTE_KEY_LIFE = timedelta(days=1)
_MAX_KEYS = 20


@dataclass(frozen=True, slots=True)
class Credentials:
    """An owner's API key, the token of the login link, and the secret that signs the browser's session."""

    key_id: UUID
    key: str
    tenant: str
    token: str
    session_secret: bytes


@asynccontextmanager
async def credentials(pool: db.Pool, tenant: str | UUID, home: Path | None) -> AsyncGenerator[Credentials]:
    """The credentials for a tenant: those in `home`, or temporary ones that end with the block."""
    tenant_id = await tenants.ensure(pool, name=tenant) if isinstance(tenant, str) else tenant
    if home is not None:
        yield await _stored(pool, str(tenant), tenant_id, home / FILE)
        return
    until = datetime.now(UTC) + REMOTE_KEY_LIFE
    made = await keys.create(pool, name=KEY, role="owner", tenant_id=tenant_id, expires_at=until)
    try:
        yield Credentials(
            made.id, made.secret or "", str(tenant), secrets.token_urlsafe(32), secrets.token_bytes(32)
        )
    finally:
        with suppress(PenstockError):
            await keys.revoke(pool, key_id=made.id)


async def _stored(pool: db.Pool, tenant: str, tenant_id: UUID, file: Path) -> Credentials:
    document = _read(file)
    known: list[dict[str, str]] = document.get("keys", [])
    # The same folder may serve several databases: this one knows only its own keys.
    usable = {
        str(key.id)
        for key in await keys.list(pool, tenant_id=tenant_id)
        if not key.revoked_at and not key.expires_at
    }
    found = next((key for key in known if key["id"] in usable), None)
    if found is None:
        made = await keys.create(pool, name=KEY, role="owner", tenant_id=tenant_id)
        await _log_alerts_of_others(pool)
        found = {"id": str(made.id), "key": made.secret or ""}
        document["keys"] = [found, *known][:_MAX_KEYS]
        _write(file, document)
    return Credentials(
        UUID(found["id"]), found["key"], tenant, document["token"], bytes.fromhex(document["session_secret"])
    )


async def _log_alerts_of_others(pool: db.Pool) -> None:
    """Take the alerts that are due. The new key is the developer's own, so its alert is not logged."""
    for alert in await alerts.take(pool):
        if alert["details"].get("name") != KEY:
            log.warning("alert", **alert)


def _read(file: Path) -> dict[str, Any]:
    """The stored credentials; new ones if there are none, or if others can read them."""
    try:
        if file.stat().st_mode & 0o077 == 0:
            document = json.loads(file.read_text(encoding="utf-8"))
            if {"token", "session_secret"} <= document.keys():
                return document
    except (OSError, ValueError, AttributeError):
        pass
    return {"token": secrets.token_urlsafe(32), "session_secret": secrets.token_hex(32), "keys": []}


def _write(file: Path, document: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp makes a file that only its owner can read; the rename replaces the old file at once.
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f"{FILE}.")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        json.dump(document, out, indent=2)
    Path(name).replace(file)
