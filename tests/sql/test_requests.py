"""Repeated requests: the stored response, and its owner."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from .conftest import Contract

DIGEST = hashlib.sha256(b"body").digest()


def begin(sql: Contract, key: str = "k", digest: bytes = DIGEST) -> Any:
    return sql.value("begin_request", key=key, digest=digest)


def end(sql: Contract, answer: Any, status: Any = 200, key: str = "k") -> None:
    sql.value("end_request", key=key, status=status, answer=Jsonb(answer))


def test_a_repeated_request_gets_the_first_response(sql: Contract) -> None:
    assert begin(sql) is None
    end(sql, {"n": 1}, 201)
    end(sql, {"n": 2}, 200)
    assert begin(sql) == {"status": 201, "answer": {"n": 1}}
    with sql.refused(409, "idempotency_key_reused"):
        begin(sql, digest=hashlib.sha256(b"other").digest())


def test_keys_of_different_callers_are_independent(sql: Contract) -> None:
    begin(sql)
    end(sql, {"n": 1})
    sql.execute("select set_config('penstock.actor', 'somebody else', true)")
    assert begin(sql) is None
    end(sql, {"n": 2})
    assert begin(sql)["answer"] == {"n": 2}
    sql.execute("select set_config('penstock.actor', '', true)")
    assert begin(sql)["answer"] == {"n": 1}


@pytest.mark.parametrize("status", [None, 0, 199, 600])
def test_an_invalid_status_is_refused(sql: Contract, status: Any) -> None:
    begin(sql)
    with sql.refused(422, "invalid_status"):
        end(sql, {}, status)


def test_large_and_deep_responses_are_refused(sql: Contract) -> None:
    begin(sql)
    with sql.refused(413, "too_large"):
        end(sql, {"x": "x" * 2_000_000})
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with sql.refused(422, "unreadable"):
        end(sql, deep)
    end(sql, {"x": "x" * 1_900_000})
