"""Security: headers, cross-site requests, roles, tenants, redirects, sign-in."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from penstock import dashboard
from penstock.dashboard import forms

WRITES = (
    ("/act", {"noun": "jobs", "verb": "cancel"}),
    ("/provider", {"name": "openai/gpt-5", "verb": "pause"}),
    ("/workers/drain", {"id": "box-1:2210"}),
    ("/settings/value", {"name": "maintenance", "value": "true"}),
    ("/settings/keys", {"name": "mine", "role": "owner"}),
    ("/settings/keys/revoke", {"id": str(uuid.uuid4())}),
)


def routes(app: Any) -> list[tuple[str, str]]:
    """Return the method and path of every route of the dashboard."""

    def found(some: Any) -> Iterator[Any]:
        for route in some:
            if included := getattr(route, "original_router", None):
                yield from found(included.routes)
            elif getattr(route, "methods", None):
                yield route

    [mounted] = [route for route in app.routes if getattr(route, "name", "") == "dashboard"]
    return [(method, route.path) for route in found(mounted.app.routes) for method in sorted(route.methods)]


def check_headers(answer: Any) -> str:
    """Check that the response allows only the dashboard's own files and no caching; returns the nonce."""
    parts = (part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    policy = {name: value for name, value in parts}
    assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'" and policy["form-action"] == "'self'"
    assert re.fullmatch(r"'nonce-[\w-]*'", policy["script-src"]) and "unsafe" not in str(policy)
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-store"
    # No inline script, style or event handler.
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", answer.text)
    return policy["script-src"]


def test_every_route_sends_security_headers_and_checks_form_tokens(site: Any, sample: Any) -> None:
    """S33: also on errors. No route redirects to another site."""
    operator, nobody = site.browser(site.key("service")), site.browser(None)
    [task] = sample.db.execute("select id, job_id from penstock.tasks where key = 'audio 2' limit 1")
    ids = {"job_id": task["job_id"], "task_id": task["id"], "tenant_id": sample.acme}
    # Streams and stored files have headers of their own.
    excluded = {
        "/live",
        "/jobs/{job_id}/tasks/{task_id}/stream",
        "/storage/{path:path}",
        "/artifacts/{artifact_id}",
    }
    every = [(method, path) for method, path in routes(site.app) if path not in excluded]
    assert len(every) > 40
    nonces: set[str] = set()
    shown = 0
    for method, path in every:
        filled = re.sub(r"{(\w+)}", lambda name: str(ids.get(name[1], uuid.uuid4())), path)
        if method == "POST":
            for headers in ({}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
                refused = operator.client.post(f"/dashboard{filled}", data={"verb": "x"}, headers=headers)
                assert refused.status_code == 403 and "cross_site" in refused.text, path
                check_headers(refused)
        elif method == "GET":
            answer = operator.get(filled)
            shown += answer.status_code == 200
            nonces.add(check_headers(answer))
            stranger = nobody.get(filled, params={"next": "//evil.example"})
            check_headers(stranger)
            assert stranger.headers.get("location", "/dashboard/").startswith("/dashboard/"), path
    assert shown >= 20 and len(nonces) >= 20
    for path in ("/nowhere", "/jobs/x"):
        check_headers(operator.get(path))


def test_static_files_are_cached_and_cannot_escape_their_folder(site: Any) -> None:
    answer = site.client.get("/dashboard/static/vendor/htmx.min.js?v=1")
    assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]
    for path in (
        "/dashboard/static/../pages.py",
        "/dashboard/static/%2e%2e/pages.py",
        "/dashboard/static/vendor",
    ):
        assert site.client.get(path).status_code == 404


def test_vendored_files_match_their_recorded_digests() -> None:
    from hashlib import sha256
    from pathlib import Path

    folder = Path(dashboard.__file__).parent / "static/vendor"
    for line in (folder / "VERSIONS").read_text().splitlines()[2:]:
        name, *_, digest = line.split()
        assert sha256((folder / name).read_bytes()).hexdigest() == digest, name


def test_forms_without_a_valid_token_or_from_another_site_are_rejected(site: Any, sample: Any) -> None:
    """S33"""
    owner, other = site.browser(site.key("owner", sample.acme)), site.browser(site.key("owner", sample.other))
    job = str(sample.jobs["running"])
    form = {"noun": "jobs", "verb": "cancel", "id": job}
    good = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
    tries = [
        ({}, good),
        ({"token": ""}, good),
        ({"token": "x" * 64}, good),
        ({"token": "é" * 64}, good),
        ({"token": owner.token("token")}, {"Origin": "http://["}),
        # The token of another user, and the token from before the sign-in.
        ({"token": other.token("token")}, good),
        ({"token": owner.token("public_token")}, good),
        ({"token": owner.token("token")}, {"Origin": "http://evil.example"}),
        ({"token": owner.token("token")}, {"Origin": "null"}),
        ({"token": owner.token("token")}, {**good, "Sec-Fetch-Site": "cross-site"}),
        ({"token": owner.token("token")}, {**good, "Sec-Fetch-Site": "same-site"}),
    ]
    for data, headers in tries:
        answer = owner.client.post("/dashboard/act", data={**form, **data}, headers=headers)
        assert answer.status_code == 403 and "cross_site" in answer.text, (data, headers)
    [row] = sample.db.execute("select status from penstock.jobs where id = %s", [job])
    assert row["status"] == "running"
    assert owner.client.get("/dashboard/act").status_code == 405


def test_forms_with_invalid_values_are_rejected(site: Any, sample: Any) -> None:
    operator = site.browser(site.key("service"))
    tries = [
        ("/settings/keys/revoke", {"id": ""}, "invalid_form"),
        ("/settings/keys/revoke", {"id": "x"}, "invalid_form"),
        ("/settings/keys", {"name": "x", "role": "owner", "tenant": "x"}, "invalid_form"),
        ("/settings/value", {"name": "maintenance", "value": "[" * 100_000}, "invalid_setting"),
        ("/provider", {"name": "openai", "verb": "pause", "tenant": "x"}, "invalid_form"),
    ]
    for path, data, code in tries:
        answer = operator.post(path, data)
        assert (answer.status_code, code in answer.text) == (422, True), (path, answer.status_code)


def test_empty_form_cookie_is_replaced(site: Any) -> None:
    browser = site.browser(None)
    browser.client.cookies.set("penstock_form", "")
    assert "penstock_form=" in browser.get("/sign-in").headers["set-cookie"]


def test_viewers_and_members_cannot_write_beyond_their_role(site: Any, sample: Any) -> None:
    """R0.9/roles: viewers read, members act in their tenant, operators do everything else."""
    for role in ("viewer", "member"):
        browser = site.browser(site.key(role, sample.acme))
        for path, data in WRITES:
            data = {**data, "id": str(sample.jobs["other"])} if path == "/act" else data
            answer = browser.post(path, data)
            assert answer.status_code in (403, 404, 422), (role, path, answer.status_code)
    for table, condition in (
        ("settings", "name = 'maintenance' and value = 'true'"),
        ("endpoints", "status <> 'active'"),
        ("workers", "drain_asked_at is not null"),
    ):
        assert not sample.db.execute(f"select 1 from penstock.{table} where {condition}"), table
    assert (
        "Retry 3 failed"
        not in site.browser(site.key("viewer", sample.acme)).get(f"/jobs/{sample.jobs['failed']}").text
    )


def test_read_only_dashboard_rejects_every_change(site: Any, sample: Any) -> None:
    operator = site.browser(site.key("service"))
    from dataclasses import replace

    site.app.state.settings = replace(site.app.state.settings, read_only=True)
    for path, data in (*WRITES, ("/schedules/" + str(uuid.uuid4()), {"verb": "run"})):
        answer = operator.post(path, {**data, "id": str(sample.jobs["running"])} if path == "/act" else data)
        assert answer.status_code == 403 and "read_only" in answer.text, path
    for path in (
        "/jobs",
        f"/jobs/{sample.jobs['running']}",
        "/dead-letters",
        "/workers",
        "/schedules",
        "/settings",
        f"/tenants/{sample.acme}",
        "/provider?name=openai/gpt-5",
    ):
        page = operator.get(path).text
        assert "read-only" in page
        # Only sign-out, the theme and disabled forms remain.
        actions = set(re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', page))
        assert actions <= {
            "/dashboard/theme",
            "/dashboard/sign-out",
            "/dashboard/provider",
            f"/dashboard/tenants/{sample.acme}",
        }, (path, actions)
    assert operator.post("/theme", {"theme": "dark", "next": "/jobs"}).status_code == 303


def test_pages_of_another_tenant_are_not_found(site: Any, sample: Any) -> None:
    """S99: the response is the same as for something that does not exist."""
    stranger = site.browser(site.key("owner", sample.other))
    job, [task] = (
        sample.jobs["failed"],
        sample.db.execute("select id, job_id from penstock.tasks where key = 'audio 2' limit 1"),
    )
    for path in (
        f"/jobs/{job}", f"/jobs/{job}?view=grid", f"/jobs/{job}/tasks/{task['id']}", f"/jobs/{uuid.uuid4()}",
        f"/tenants/{sample.acme}", f"/?tenant={sample.acme}", f"/usage?tenant={sample.acme}", f"/providers?tenant={sample.acme}",
        f"/settings?tenant={sample.acme}", f"/costs.csv?tenant={sample.acme}", f"/live?job={job}", f"/actions/{uuid.uuid4()}",
    ):  # fmt: skip
        assert stranger.get(path).status_code == 404, path
    for path in (f"/live?tenant={sample.acme}", "/live", "/workers", "/provider?name=openai/gpt-5"):
        assert stranger.get(path).status_code == 403, path
    for path in (
        "/",
        "/jobs",
        "/dead-letters",
        "/audit",
        "/usage",
        "/tenants",
        "/schedules",
        "/jobs.csv",
        "/dead-letters.csv",
        "/audit.csv",
        f"/jobs?filter=tenant:{sample.acme}",
        f"/audit?filter=job:{job}",
    ):
        text = stranger.get(path).text
        assert f"jobs/{job}" not in text and "Acme" not in text and "voice_missing" not in text, path
    for verb in ("cancel", "retry"):
        weighed = stranger.get(f"/confirm?noun=jobs&verb={verb}&id={job}&id={sample.jobs['running']}")
        assert "Nothing to" in weighed.text
        assert stranger.post("/act", {"noun": "jobs", "verb": verb, "id": str(job)}).status_code == 422
    letters = [str(row["id"]) for row in sample.db.execute("select id from penstock.dead_letters")]
    assert "Nothing to" in stranger.get(f"/confirm?noun=dead-letters&verb=discard&id={letters[0]}").text
    assert (
        stranger.post("/act", {"noun": "dead-letters", "verb": "discard", "id": letters}).status_code == 422
    )
    assert len(sample.db.execute("select 1 from penstock.dead_letters")) == len(letters)


def test_next_parameter_never_leads_to_another_site(site: Any) -> None:
    """S33"""
    key = site.key("service")
    for target in (
        "//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)", "/\t/evil.example",
        "///evil.example", "http:evil.example", "evil.example", "", "/%0d%0aSet-Cookie:x=1\r\nX: y", "//evil.example/dashboard", "data:text/html,x", "//[",
    ):  # fmt: skip
        browser = site.browser(None)
        answer = browser.post("/sign-in", {"credential": key, "next": target})
        assert answer.status_code == 303 and answer.headers["location"] == "/dashboard/", target
        assert 'value="/"' in browser.get("/sign-in", params={"next": target}).text
        assert browser.post("/theme", {"theme": "dark", "next": target}).headers["location"] == "/dashboard/"
    assert forms.local("/jobs?filter=status:failed") == "/jobs?filter=status:failed"


def test_sign_in_stores_a_valid_credential_until_sign_out_or_revocation(site: Any, sample: Any) -> None:
    browser = site.browser(None)
    answer = browser.get("/jobs?filter=status:failed")
    assert (
        answer.status_code == 303
        and answer.headers["location"] == "/dashboard/sign-in?next=%2Fjobs%3Ffilter%3Dstatus%3Afailed"
    )
    expired = jwt.encode(
        {"role": "service_role", "exp": int(time.time()) - 3600},
        "a secret of the tests, of more than 32 bytes",
        "HS256",
    )
    for credential in ("", "psk_" + "0" * 64, "nonsense", site.key("worker"), "x" * 9000, expired):
        refused = browser.post("/sign-in", {"credential": credential, "next": "/"})
        assert refused.status_code == 401 and "penstock_dashboard" not in browser.client.cookies, credential
        assert credential not in refused.text or not credential
    [made] = sample.db.execute("select id, secret from penstock.create_key('x', 'viewer', %s)", [sample.acme])
    answer = browser.post("/sign-in", {"credential": made["secret"], "next": "/jobs?filter=status:failed"})
    assert answer.headers["location"] == "/dashboard/jobs?filter=status:failed"
    cookie = next(
        value for value in answer.headers.get_list("set-cookie") if value.startswith("penstock_dashboard")
    )
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Path=/;" in cookie
    assert made["secret"] not in str(answer.headers), "the cookie is not the key"
    assert browser.get("/jobs").status_code == 200
    # A revoked key stops working at once.
    sample.db.execute("select penstock.revoke_key(%s)", [made["id"]])
    assert browser.get("/jobs").headers["location"].startswith("/dashboard/sign-in")
    again = site.browser(site.key("viewer", sample.acme))
    out = again.post("/sign-out")
    assert out.status_code == 303 and 'penstock_dashboard=""' in str(out.headers.get_list("set-cookie"))
    # The API ignores the dashboard's cookie, and accepts its value in no header.
    session = site.browser(site.key("service")).client.cookies["penstock_dashboard"]
    for headers in (
        {"Cookie": f"penstock_dashboard={session}"},
        {"Authorization": f"Bearer {session}"},
        {"apikey": session},
    ):
        assert site.client.get("/api/me", headers=headers).status_code == 401


@pytest.mark.parametrize("prefix", ["/admin/jobs", "/x"])
def test_dashboard_works_in_another_application_and_below_any_prefix(
    db: Any, dashboard_settings: Any, prefix: str
) -> None:
    host = FastAPI()

    @host.get("/")
    async def root() -> str:  # pyright: ignore[reportUnusedFunction]
        return "the host application"

    dashboard.mount(host, prefix, settings=dashboard_settings)
    [row] = db.execute("select secret from penstock.create_key('x', 'service')")
    with TestClient(host, root_path="/behind", follow_redirects=False) as client:
        assert client.get("/behind/").json() == "the host application"
        first = client.get(f"/behind{prefix}/sign-in")
        kept = {"Cookie": first.headers["set-cookie"].split(";")[0]}
        assert f"Path=/behind{prefix}" in first.headers["set-cookie"]
        token = re.findall(r'name="token" value="(\w+)"', first.text)[-1]
        form = {"token": token, "credential": row["secret"], "next": "/jobs"}
        answer = client.post(f"/behind{prefix}/sign-in", data=form, headers=kept)
        assert answer.headers["location"] == f"/behind{prefix}/jobs", answer.text
        kept["Cookie"] += "; " + answer.headers["set-cookie"].split(";")[0]
        page = client.get(f"/behind{prefix}/", headers=kept).text
        links = re.findall(r'(?:href|src|action|hx-get|data-live)="([^"]*)"', page)
        assert links and all(link.startswith((f"/behind{prefix}/", "#")) for link in links), links
        style = re.findall(r'href="([^"]*dashboard.css[^"]*)"', page)[0]
        assert client.get(style).status_code == 200


def test_own_tenant_is_selected_first_even_if_another_tenant_added_the_user(site: Any) -> None:
    """Any owner can add any user as a member, also to a tenant that is older than the user's own."""
    trap = site.tenant("Trap")
    [ann] = site.db.execute("insert into auth.users (email) values ('ann@example.org') returning id")
    site.key("owner", trap)
    site.db.execute("select penstock.set_member(%s, %s, 'member')", [trap, ann["id"]])
    [own] = site.db.execute("select tenant_id as id from penstock.profiles where user_id = %s", [ann["id"]])
    now = int(time.time())
    claims = {
        "sub": str(ann["id"]),
        "role": "authenticated",
        "aud": "authenticated",
        "iat": now,
        "exp": now + 600,
    }
    browser = site.browser(jwt.encode(claims, site.app.state.settings.jwt_secret, "HS256"))
    for path in ("/", "/usage", "/settings"):
        page = browser.get(path).text
        assert f'value="{own["id"]}" selected' in page and f'value="{trap}" selected' not in page, path
