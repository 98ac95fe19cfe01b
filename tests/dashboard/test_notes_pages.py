"""The pages of the notes app: what the owner of a library, another user and an operator see."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from fastapi.testclient import TestClient

from penstock import api, dashboard
from penstock.apps.notes.app import app
from tests.dashboard.conftest import SECRET, Site

pytestmark = pytest.mark.own_sql(app)


@pytest.fixture
def site(db: Any, dashboard_settings: Any) -> Iterator[Site]:
    """The dashboard of the notes app."""
    made = api.create(dashboard_settings, app)
    dashboard.mount(made)
    with TestClient(made) as client:
        yield Site(db, made, client)


def user(site: Site, name: str) -> uuid.UUID:
    return site.db.execute(
        "insert into auth.users (email) values (%s) returning id", [f"{name}@example.org"]
    )[0]["id"]


def browser(site: Site, user_id: uuid.UUID) -> Any:
    now = int(time.time())
    claims = {
        "sub": str(user_id),
        "role": "authenticated",
        "aud": "authenticated",
        "iat": now,
        "exp": now + 3600,
    }
    return site.browser(jwt.encode(claims, SECRET, "HS256"))


def fill(site: Site, user_id: uuid.UUID) -> None:
    """A book with two notes, an own idea, and two devices of which one has reported a sync."""
    for statement in (
        "insert into notes.books (user_id, id, title, created_at, updated_at) values (%s, 'b', 'Walden', 1, 1)",
        """insert into notes.notes (user_id, id, book_id, text, tags, created_at, updated_at)
        select %s, 'n' || n, 'b', 'secret text', '["Nature", "Ponds & <i>"]', 1, 1 from generate_series(1, 2) n""",
        "insert into notes.custom_ideas (user_id, id, name, created_at, updated_at) values (%s, 'i', 'Ponds & <i>', 1, 1)",
        """insert into notes.wrapped_key_blobs (user_id, type, blob, device_label, synced_at)
        select %s, 'pin-v1', 'A', label, synced_at from (values ('Old Mac', null),
          ('New phone', (extract(epoch from now() - interval '3 hours') * 1000)::bigint)) as d(label, synced_at)""",
    ):
        site.db.execute(statement, [user_id])


def test_owner_sees_ideas_and_devices_and_another_user_sees_neither(site: Site) -> None:
    """Counts per idea, for the owner alone, and the last sync of each device; without a text of a note."""
    ann = user(site, "ann")
    fill(site, ann)
    owner, other, operator = (
        browser(site, ann),
        browser(site, user(site, "bob")),
        site.browser(site.key("service")),
    )
    wanted = {
        "ideas": ["Nature", "tag", "Ponds &amp; &lt;i&gt;", "custom"],
        "devices": ["New phone", "Old Mac", "3 h ago", "ann"],
    }
    for page, words in wanted.items():
        for viewer in (owner, operator) if page == "devices" else (owner,):
            shown = viewer.get(f"/app/{page}")
            assert shown.status_code == 200
            assert [word for word in words if word not in shown.text] == [], page
            assert "secret text" not in shown.text and str(ann) not in shown.text
        empty = other.get(f"/app/{page}").text
        assert "Nothing here yet" in empty
        assert [word for word in ("Nature", "Ponds", "New phone", "Old Mac") if word in empty] == []
        assert other.get(f"/app/{page}.csv").text.count("\n") == 1, "the header only"
    assert "Nothing here yet" in operator.get("/app/ideas").text, "it would read all libraries"
    assert '"Nature","tag","2","1"' in owner.get("/app/ideas.csv").text
    filtered = owner.get("/app/ideas", params={"filter": "kind:custom"}).text
    assert "Ponds" in filtered and "Nature" not in filtered


def test_row_of_an_idea_opens_for_its_owner_only(site: Site) -> None:
    ann = user(site, "ann")
    fill(site, ann)
    shown = browser(site, ann).get("/app/ideas", params={"filter": "name:Nature"}).text
    found = re.search(r"/app/ideas/row\?key=[0-9a-f-]+", shown)
    assert found
    path = found[0]
    assert "Nature" in browser(site, ann).get(path).text
    assert browser(site, user(site, "bob")).get(path).status_code == 404
    assert site.browser(site.key("service")).get(path).status_code == 404
