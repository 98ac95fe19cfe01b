"""Key blobs and devices of notes: who may store them, when they expire, when a device synced."""

from __future__ import annotations

import time
import uuid
from typing import Any

import psycopg
import pytest

from penstock import testing
from penstock.apps.notes.app import app
from tests.apps.notes_library import DENIED, KEY, Library, join

pytestmark = [pytest.mark.every_postgres, pytest.mark.own_sql(app)]


def test_key_blob_is_stored_only_after_a_fresh_sign_in(library: Library) -> None:
    """R2.9/key-blobs, S69: the time of the sign-in comes from the verified token; without one, or an old one, nothing
    is stored. A transfer is redeemed by its owner while it is fresh by the server's clock."""
    now = int(time.time())
    old = now - 4000
    for claims in (
        {"iat": old},
        {"iat": None},
        {"iat": now, "amr": [{"method": "password", "timestamp": old}]},
        {"iat": now, "auth_time": old},
        {"iat": "soon"},
    ):
        assert library.refused(KEY, "pin-v1", "x", **claims) == ("PT403", "sign_in_required"), claims
    for claims in ({}, {"iat": old, "amr": [{"method": "otp", "timestamp": now - 10}]}, {"amr": ["pwd"]}):
        library.call(KEY, "transfer-v1", "Linux · Firefox", **claims)
    redeem = "select * from notes.select_fresh_transfer_blob(%s, %s)"
    assert len(library.call(redeem, library.user, 60_000)) == 1
    other = join(library.db, "eve")
    assert other.refused(redeem, library.user, 60_000) == ("PT403", "forbidden")
    assert library.call(redeem, library.user, 0) == []
    library.db.execute("update notes.wrapped_key_blobs set is_active = false")
    assert library.call(redeem, library.user, 60_000) == []


def test_transfer_expires_by_the_server_whatever_age_the_client_asks_for(
    own_library: Library, clock: testing.Clock
) -> None:
    library = own_library
    library.call(KEY, "transfer-v1", "x")
    clock.advance(minutes=11)
    assert library.call("select * from notes.select_fresh_transfer_blob(auth.uid(), 99999999)") == []


def test_key_blobs_have_three_types_a_fixed_label_and_an_active_flag(library: Library) -> None:
    """R2.13/device-keys: one row per device; type, label and time cannot be changed; the active prf-v1 blobs are
    the devices that count."""
    for type in ("prf-v1", "transfer-v1", "pin-v1"):
        library.call(KEY, type, "Mac · Safari")
    assert library.refused(KEY, "other", "x")[0] == "23514"
    assert library.used("devices") == 1
    for column, value in (("device_label", "'y'"), ("created_at", "1"), ("type", "'pin-v1'")):
        assert library.refused(f"update notes.wrapped_key_blobs set {column} = {value}")[0] == DENIED
    with pytest.raises(psycopg.Error):
        library.db.execute("update notes.wrapped_key_blobs set device_label = 'y'")
    insert = (
        "insert into notes.wrapped_key_blobs (type, blob, created_at) values ('pin-v1', 'A', 9999999999999)"
    )
    assert library.refused(insert)[0] == DENIED
    library.call("update notes.wrapped_key_blobs set is_active = false where type = 'prf-v1'")
    assert library.used("devices") == 0
    library.call("update notes.wrapped_key_blobs set is_active = true where type = 'prf-v1'")
    library.call("delete from notes.wrapped_key_blobs")
    assert library.used("devices") == 0


def test_sync_of_a_device_is_recorded_once_a_minute(own_library: Library, clock: testing.Clock) -> None:
    """A device that polls writes its row at most once a minute; another user's device is never touched."""
    library = own_library
    clock.freeze()
    other = join(library.db, "eve")
    for each in (library, other):
        each.call(KEY, "prf-v1", "Mac · Safari")
    library.push("books", id="b1", title="Walden")
    device = library.one("select id from notes.wrapped_key_blobs where user_id = %s", library.user)

    def start(who: Library, id: uuid.UUID | None) -> Any:
        [row] = who.call("select notes.start_sync(%s) as state, penstock.sync_state('notes') as expected", id)
        assert row["state"] == row["expected"]
        return library.one(
            "select (xmin::text, synced_at)::text from notes.wrapped_key_blobs where id = %s", device
        )

    never = start(other, device)
    assert never == start(library, uuid.uuid4()) == start(library, None) and never.endswith(",)")
    first = start(library, device)
    assert first.endswith(f",{library.ms()})")
    clock.advance(seconds=59)
    assert start(library, device) == first
    clock.advance(seconds=1)
    assert start(library, device).endswith(f",{library.ms()})") and start(library, device) != first
    [shown] = library.call("select * from notes.device_list")
    assert shown["last_sync_at"] is not None and shown["owner"].startswith("ada")
    assert [row["last_sync_at"] for row in other.call("select * from notes.device_list")] == [None]
    library.call("update notes.wrapped_key_blobs set is_active = false")
    clock.advance(minutes=5)
    assert start(library, device).endswith(f",{library.ms()})"), "an inactive key still shows its syncs"
    for column in ("synced_at = 1", "user_id = auth.uid()"):
        assert library.refused(f"update notes.wrapped_key_blobs set {column}")[0] == DENIED
