"""Titles, tags and search of jobs."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from penstock.contract import jobs
from penstock.errors import Invalid
from penstock.postgres import db as database


def start(conn: Any, tenant: Any, params: dict[str, Any], type: str = "book", **options: Any) -> Any:
    conn.execute("select penstock.define_kind('write')")
    row = conn.execute(
        'select penstock.start_job(%s, %s, \'[{"kind": "write"}]\', %s) as id',
        [type, json.dumps(params), json.dumps({"tenant_id": str(tenant), **options})],
    ).fetchone()
    return row["id"]


def find(conn: Any, field: str, *values: str) -> set[Any]:
    rows = conn.execute("select penstock.find_jobs(%s, %s) as id", [field, list(values)]).fetchall()
    return {row["id"] for row in rows}


def declare(conn: Any, title: str | None) -> None:
    conn.execute("select penstock.define_params(%s)", [json.dumps({"book": {"title": title}})])


def title(conn: Any, job: Any) -> Any:
    return conn.execute("select title from penstock.jobs where id = %s", [job]).fetchone()["title"]


def test_title_comes_from_the_template_of_the_type(conn: Any, tenant: Any) -> None:
    declare(conn, "{title} in {style.language}")
    job = start(conn, tenant, {"title": "Otters\n\x07 at  dawn", "style": {"language": "en"}})
    assert title(conn, job) == "Otters at dawn in en"
    assert title(conn, start(conn, tenant, {"title": "x" * 500})).startswith("x" * 190)
    assert len(title(conn, start(conn, tenant, {"title": "x" * 500}))) <= 200
    declare(conn, "{title}")
    assert title(conn, start(conn, tenant, {})) is None
    assert title(conn, start(conn, tenant, {"title": "Swans"}, type="other")) is None
    # A title is that of the start: a later template changes no job.
    declare(conn, None)
    assert title(conn, job) == "Otters at dawn in en"
    got = conn.execute("select penstock.get_job(%s) as job", [job]).fetchone()["job"]
    assert got["title"] == "Otters at dawn in en" and got["tags"] == []


def test_jobs_are_found_by_params_tags_and_words(conn: Any, tenant: Any) -> None:
    declare(conn, "{title}")
    otters = start(
        conn,
        tenant,
        {"title": "Otters at Dawn", "page": {"count": 12}, "is_draft": True},
        tags=["Urgent", "EU"],
    )
    swans = start(conn, tenant, {"title": "Swans at dawn", "page": {"count": 7}})
    assert find(conn, "text", "dawn") == {otters, swans}
    assert (
        find(conn, "text", "DAWN, otters!")
        == {otters}
        == find(conn, "tag", "urgent")
        == find(conn, "tag", "URGENT")
    )
    assert (
        find(conn, "params.title", "otters at dawn") == {otters}
        and find(conn, "params.title", "otters") == set()
    )
    assert find(conn, "params.page.count", "12", "7") == {otters, swans}
    assert find(conn, "params.is_draft", "true") == {otters}
    topics = start(conn, tenant, {"topics": ["red buses", {"no": "text"}, "trams"]}, type="other")
    assert find(conn, "text", "buses") == find(conn, "params.topics", "trams") == {topics}
    assert find(conn, "text", "", "--") == set()
    start(conn, tenant, {}, type="other")
    assert len({row["job_id"] for row in conn.execute("select job_id from penstock.job_terms")}) == 3


def test_secrets_are_not_searched_and_large_params_are_cut(conn: Any, tenant: Any) -> None:
    """S98"""
    job = start(
        conn,
        tenant,
        {
            "api_key": "psk_hidden",
            "deep": {"password": "hunter22"},
            "many": {f"k{n}": f"word{n}" for n in range(2000)},
            "long": "lorem " * 20_000 + "end",
        },
    )
    assert (
        find(conn, "text", "hunter22")
        == find(conn, "text", "psk_hidden")
        == find(conn, "params.api_key", "psk_hidden")
        == set()
    )
    [count] = conn.execute("select count(*) as n from penstock.job_terms where job_id = %s", [job]).fetchall()
    assert 10 < count["n"] <= 90


def test_search_stays_within_the_callers_tenants_and_reads_a_bounded_part(
    conn: Any, tenant: Any, as_user: Any = None
) -> None:
    """S98"""
    other = conn.execute("select penstock.create_tenant('Other') as id").fetchone()["id"]
    own, foreign = start(conn, tenant, {"title": "Otters"}), start(conn, other, {"title": "Otters"})
    assert find(conn, "text", "otters") == {own, foreign}
    [key] = conn.execute("select id from penstock.create_key('viewer', 'viewer', %s)", [tenant]).fetchall()
    with conn.transaction():
        claims = json.dumps({"sub": str(key["id"]), "role": "authenticated"})
        conn.execute(
            "select set_config('request.jwt.claims', %s, true), set_config('role', 'authenticated', true)",
            [claims],
        )
        assert find(conn, "text", "otters") == {own}
        with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
            conn.execute("select from penstock.job_terms")
        conn.execute("reset role")
    # A common word: only the newest jobs of the tenant are read.
    conn.execute(
        """insert into penstock.job_terms select %s, 'text=common', penstock._uuid7() from generate_series(1, 12000)""",
        [tenant],
    )
    assert len(find(conn, "text", "common")) == 5000
    plan = "\n".join(
        row["QUERY PLAN"]
        for row in conn.execute(
            "explain select job_id from penstock.job_terms where tenant_id = %s and term = 'text=common' order by job_id desc limit 50",
            [tenant],
        )
    )
    assert "job_terms_pkey" in plan and "Sort" not in plan


@pytest.mark.parametrize(
    "tags", ["urgent", ["x" * 51], [""], [1], ["a\nb"], [[]], [f"t{n}" for n in range(11)], {"a": 1}], ids=str
)
def test_bad_tags_are_refused(conn: Any, tenant: Any, tags: Any) -> None:
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        start(conn, tenant, {}, tags=tags)
    assert "tags must be up to 10 texts" in str(caught.value)


def test_terms_are_deleted_with_their_job(conn: Any, tenant: Any) -> None:
    job = start(conn, tenant, {"title": "Otters"}, tags=["a"])
    conn.execute("select penstock.cancel_job(%s)", [job])
    conn.execute("select penstock._delete_job_rows(%s, 1000)", [job])
    assert conn.execute("select from penstock.job_terms").fetchall() == []


async def test_filter_of_the_list_searches(db: Any) -> None:
    tenant = db.execute("select penstock.create_tenant('Acme') as id")[0]["id"]
    with db.connect() as conn:
        otters = start(conn, tenant, {"title": "Otters at dawn"}, tags=["urgent"])
        swans = start(conn, tenant, {"title": "Swans at dawn"})
        conn.commit()

    async with database.pool(db.dsn) as pool:

        async def found(filter: str) -> list[Any]:
            return [job.id for job in await jobs.list(pool, filter=filter)]

        assert await found("dawn") == [swans, otters]
        assert await found("dawn tag:urgent") == [otters] == await found('"otters dawn" status:queued')
        assert (
            await found('params.title:"otters at dawn"') == [otters] == await found("text:otters type:book")
        )
        assert await found("-tag:Urgent") == [swans] and await found("dawn status:failed") == []
        assert (await jobs.counts(pool, filter="dawn", most=10))["queued"] == 2
        for wrong in (
            "-text:otters",
            "params:x",
            "text:",
            ":",
            "-dawn",
            'text:" "',
            "text:" + ",".join("abcdefghijklmnopqrstuvwxyz"),
        ):
            with pytest.raises(Invalid) as caught:
                await found(wrong)
            assert caught.value.code == "invalid_filter", wrong
