"""Errors are stored without credentials (S80), and stacks are for operators and the tenant's admins (S81)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Contract

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
# The text of an error, and what must not be stored of it.
SECRETS: list[tuple[str, str]] = [
    ("401 for https://api.x.org/v1/chat?api-version=3&sig=abc%2Fdef#frag", "abc%2Fdef"),
    ("GET https://bucket.s3.amazonaws.com/k?X-Amz-Signature=0123abcd HTTP/1.1", "0123abcd"),
    ("connection to postgresql://app:hunter2@db:5432/app failed", "hunter2"),
    ("postgresql://app:p@ss/word@db/app", "ss/word"),
    ("redis://:hunter2@cache:6379/0", "hunter2"),
    ("could not connect: host=db user=app password=hunter2 dbname=app", "hunter2"),
    ("host=db password='hunter two' dbname=app", "hunter"),
    ("Authorization: Bearer abcdef123456", "abcdef123456"),
    ("{'Authorization': 'Basic dXNlcjpwYXNz', 'Accept': '*/*'}", "dXNlcjpwYXNz"),
    ("headers={'x-api-key': 'k-1234567', 'b': 1}", "k-1234567"),
    ("[(b'authorization', b'x'), ('Cookie', 'a=1')] Cookie: session=abc123; other=1", "abc123"),
    ("the server rejected bearer abcdef123456.", "abcdef123456"),
    ('{"api_key": "k-1234567", "n": 1}', "k-1234567"),
    ('{"tokens": 3, "access_token": ["k-1234567"]}', "k-1234567"),
    ("OPENAI_API_KEY=k-1234567 is not valid", "k-1234567"),
    ("client_secret: s3cr3t-value", "s3cr3t-value"),
    ("access_token=abcdef; refresh_token=ghijkl", "ghijkl"),
    ("Incorrect API key provided: sk-proj-abcdefghijklmnop1234", "abcdefghijklmnop"),
    ("key psk_0123456789abcdef0123456789abcdef was revoked", "0123456789abcdef"),
    ("aws AKIAIOSFODNN7EXAMPLE", "IOSFODNN7"),
    (f"token {JWT} has expired", "c2lnbmF0dXJl"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "klmnop"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEowIB\n-----END RSA PRIVATE KEY-----\nand more", "MIIEowIB"),
]
HARMLESS = [
    "",
    "division by zero",
    "used 12000 tokens, max_tokens=4000, token=17",
    "File \"/srv/app/keys.py\", line 3, in authorize\n    raise KeyError('password')",
    "see https://docs.x.org/errors/rate-limits for more",
    "KeyError: 'api_key'",
    "no column named author: id",
    '{"status": 429, "is_secret": true, "password": null}',
]


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=[text[:30] for text, _ in SECRETS])
def test_credentials_are_redacted_wherever_an_error_is_stored(sql: Contract, text: str, secret: str) -> None:
    """S80: in the message, in details (as text, as key and as value), in the stack, and in the dead letter."""
    sql.start([{"kind": "work"}])
    task = sql.claim_one("w1")
    details = {"stack": f"Traceback:\n  {text}\nError: {text}", "note": text, "more": [{"text": text}]}
    sql.fail(task, text, "w1", error_details=Jsonb(details), permanent=True)
    stored = [
        str(row)
        for table in ("attempts", "error_stacks", "results", "dead_letters")
        for row in sql.execute(f"select * from penstock.{table}")
    ]
    assert len(stored) == 4
    assert [row for row in stored if secret in row] == []
    assert all("[redacted]" in row for row in stored)
    # What stands around it stays.
    kept = sql.one("select error_details from penstock.attempts")
    assert set(kept) == {"note", "more"} and len(kept["note"]) > 9


@pytest.mark.parametrize("text", HARMLESS)
def test_errors_without_credentials_stay_unchanged(sql: Contract, text: str) -> None:
    assert sql.one("select penstock._redact(%s)", text) == text


def test_redacted_url_keeps_host_and_path(sql: Contract) -> None:
    text = "PUT https://u:p@x.org:8080/a/b.pdf?sig=1 returned 403"
    assert sql.one("select penstock._redact(%s)", text) == (
        "PUT https://[redacted]@x.org:8080/a/b.pdf?[redacted] returned 403"
    )


@pytest.mark.parametrize(
    "document",
    [
        {"password": 'a"b\\c', "next": 'x "token": "y" z'},
        {"Authorization": 'Bearer \u00e9\n\t"quoted" \\', "n": [1, None, True]},
        {"token": 5, "secret": None, "api_key": ["k1", {"password": 1.5}]},
        {"url": 'https://x/?a="b"', "password=": "\\", "token:": "\\\\"},
    ],
)
def test_redacted_document_is_still_json(sql: Contract, document: Any) -> None:
    found = sql.one("select penstock._redact_document(%s)", Jsonb(document))
    assert set(found) == set(document) and json.dumps(found)


def test_stack_is_visible_to_operators_owners_and_admins_only(sql: Contract) -> None:
    """S81: a viewer and a member see the error without its stack."""
    sql.start([{"kind": "work"}])
    sql.fail(sql.claim_one("w1"), "boom", "w1", error_details=Jsonb({"type": "Boom", "stack": "line 1"}))
    tenant = sql.one("select tenant_id from penstock.error_stacks")
    assert sql.one("select error_details from penstock.attempts") == {"type": "Boom"}
    seen: dict[str, int] = {}
    for role in ("viewer", "member", "admin", "owner"):
        key = sql.one("select id from penstock.create_key(%s, %s, %s)", role, role, tenant)
        with sql.connection.transaction(force_rollback=True):
            sql.execute("select set_config('request.jwt.claims', %s, true)", json.dumps({"sub": str(key)}))
            sql.execute("set local role authenticated")
            assert len(sql.execute("select * from penstock.attempts")) == 1
            seen[role] = len(sql.execute("select * from penstock.error_stacks"))
    assert seen == {"viewer": 0, "member": 0, "admin": 1, "owner": 1}
    with sql.connection.transaction(force_rollback=True):
        sql.execute("set local role service_role")
        assert sql.execute("select stack from penstock.error_stacks") == [{"stack": "line 1"}]
