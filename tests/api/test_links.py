"""Links of files: who may open them, for how long, and the page after the file is deleted."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from penstock import dashboard
from penstock.storage.objects import Folder
from tests.api.conftest import Person, World
from tests.api.test_artifacts import PDF, saved

pytestmark = pytest.mark.shared_world


@pytest.fixture
def files(world: World, tmp_path: Path) -> Folder:
    """The folder that the application keeps files in."""
    folder = world.app.state.storage = Folder(tmp_path / "files", b"secret")
    return folder


@pytest.fixture
def ann(world: World, files: Folder) -> Person:
    return world.join("ann")


def file_of(world: World, files: Folder, person: Person) -> uuid.UUID:
    job = saved(world, files, person)
    [row] = world.db.execute("select id from penstock.artifacts where job_id = %s", [job])
    return row["id"]


def link(world: World, person: Person, artifact: uuid.UUID, kind: str) -> Any:
    """Choose who may open the link of a file."""
    body = {"link": kind}
    return world.client.put(f"/api/artifacts/{artifact}/link", json=body, headers=person.headers)


def path(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return "/links/" + answer.json()["url"].partition("/links/")[2]


def opened(world: World, address: str) -> Any:
    """The response to a browser without credentials."""
    return world.client.get(address, follow_redirects=True)


def test_public_link_opens_without_an_account(world: World, files: Folder, ann: Person) -> None:
    """R0.12/opens: the link leads to the file, with a signed URL that no other site and no cache gets."""
    address = path(link(world, ann, file_of(world, files, ann), "public"))
    found = opened(world, address)
    assert (found.status_code, found.content) == (200, PDF)
    first = world.client.get(address, follow_redirects=False)
    assert first.status_code == 302 and "signature=" in first.headers["location"]
    assert (first.headers["referrer-policy"], first.headers["cache-control"]) == ("no-referrer", "no-store")
    assert world.client.head(address, follow_redirects=True).status_code == 200


def test_signed_link_ends_and_a_new_choice_begins_anew(world: World, files: Folder, ann: Person) -> None:
    """R0.12/kinds, S94: a signed link ends after link_days; a login link asks for a sign-in, with a token too."""
    artifact = file_of(world, files, ann)
    address = path(link(world, ann, artifact, "signed"))
    assert opened(world, address).content == PDF
    update = "update penstock.artifacts set link_until = now() {} interval '1 minute' where id = %s"
    world.db.execute(update.format("-"), [artifact])
    over = opened(world, address)
    assert over.status_code == 410 and "ended on" in over.text and "<html" in over.text
    assert path(link(world, ann, artifact, "signed")) == address
    assert opened(world, address).content == PDF
    assert path(link(world, ann, artifact, "login")) == f"/links/{artifact}"
    # This application has no dashboard to sign in at.
    for private in (address, f"/links/{artifact}"):
        refused = opened(world, private)
        assert refused.status_code == 401 and PDF not in refused.content


def test_login_link_leads_to_the_dashboard(world: World, files: Folder, ann: Person) -> None:
    """R0.12/kinds: a person without a session is asked to sign in, and gets the file afterwards only."""
    artifact = file_of(world, files, ann)
    link(world, ann, artifact, "login")
    made: FastAPI = world.app
    count = len(made.router.routes)
    lifespan = made.router.lifespan_context
    dashboard.mount(made)
    try:
        moved = world.client.get(f"/links/{artifact}", follow_redirects=False)
        assert (moved.status_code, moved.headers["location"]) == (302, f"/dashboard/artifacts/{artifact}")
        page = TestClient(made).get(f"/links/{artifact}", follow_redirects=True)
        assert "Sign in" in page.text and PDF not in page.content
    finally:
        del made.router.routes[count:]
        made.router.lifespan_context = lifespan


def test_link_lives_as_long_as_the_record(world: World, files: Folder, ann: Person) -> None:
    """R0.12/lifetime: a link opens until its file is deleted, also later in a pruned job; then a page says so (410)."""
    artifact = file_of(world, files, ann)
    address = path(link(world, ann, artifact, "public"))
    world.db.execute(
        "update penstock.artifacts set stored_at = now() - interval '29 days' where id = %s", [artifact]
    )
    assert opened(world, address).content == PDF
    assert world.client.delete(f"/api/artifacts/{artifact}", headers=ann.headers).status_code == 204
    for _ in range(2):
        gone = opened(world, address)
        assert gone.status_code == 410 and "deleted" in gone.text and PDF not in gone.content
        # Also once the record itself is gone.
        world.db.execute("delete from penstock.artifacts where id = %s", [artifact])
    late = link(world, ann, artifact, "public")
    assert late.status_code == 404


def test_tokens_open_one_file_and_cannot_be_guessed(world: World, files: Folder, ann: Person) -> None:
    """R0.12/kinds, S94: a token belongs to one file, comes from a secret that no role reads, and is 256 bits long."""
    bob = world.join("bob")
    mine, theirs = file_of(world, files, ann), file_of(world, files, bob)
    mine_path, their_path = path(link(world, ann, mine, "public")), path(link(world, bob, theirs, "public"))
    token, their_token = mine_path.rpartition("/")[2], their_path.rpartition("/")[2]
    assert len(token) == 64 and token != their_token
    for wrong in (
        their_token,
        token[:-1] + ("0" if token[-1] != "0" else "1"),
        "",
        "x" * 64,
        token + "0",
        "%00",
    ):
        found = opened(world, f"/links/{mine}/{wrong}")
        assert found.status_code in (401, 404) and PDF not in found.content, wrong
    assert opened(world, f"/links/{uuid.uuid4()}/{token}").status_code == 404
    assert opened(world, f"/links/not-an-id/{token}").status_code == 404
    refused = link(world, bob, mine, "public")
    assert (refused.status_code, refused.json()["code"]) == (404, "unknown_artifact")
    bad = link(world, ann, mine, "everybody")
    assert bad.status_code == 422
    with pytest.raises(Exception, match="permission denied"):
        world.db.execute("set role service_role; select secret from penstock.link_secrets")
    world.db.execute("reset role")


def test_guesses_are_rate_limited(
    world: World, files: Folder, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S94"""
    taken: list[str] = []
    monkeypatch.setattr(world.app.state.rate, "take", taken.append)
    opened(world, f"/links/{uuid.uuid4()}/{'0' * 64}")
    opened(world, f"/links/{uuid.uuid4()}")
    assert len(taken) == 2 and all(name.startswith("nobody:") for name in taken)
