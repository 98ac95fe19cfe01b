"""One table of options: what the SDK, the API, the command line, SQL and the docs take is what it lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock import App, Invalid, cli
from penstock.api.bulks import BulkRequest, UploadQuery
from penstock.api.jobs import JobRequest
from penstock.cli.job_options import read_options
from penstock.types.options import BulkOptions, JobOptions, TaskOptions, table_of

DOCS = Path(__file__).parents[1] / "docs"
TABLES = [JobOptions, BulkOptions, TaskOptions]


def sdk_names(table: type) -> set[str]:
    return {option.sdk or name for name, (_, option) in table_of(table).items() if option.sdk is not None}


def test_sql_takes_the_options_of_the_table(conn: psycopg.Connection[dict[str, Any]]) -> None:
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute("""select penstock.open_job('t', p_options => '{"colour": 1}')""")
    known = str(caught.value.diag.message_hint).removeprefix("Known options")
    assert set(re.findall(r"\w+", known)) == set(table_of(JobOptions))
    fields = conn.execute("""select attname as name from pg_catalog.pg_attribute
        where attrelid = 'penstock.task_spec'::regclass and attnum > 0 and not attisdropped""").fetchall()
    assert {row["name"] for row in fields} == set(table_of(TaskOptions))


def test_requests_have_the_options_of_the_table() -> None:
    for model, table in [(JobRequest, JobOptions), (BulkRequest, BulkOptions), (UploadQuery, BulkOptions)]:
        wanted = {name for name, (_, option) in table_of(table).items() if option.http}
        assert wanted <= set(model.model_fields), model
    assert JobRequest(type="t", priority=3).model_dump()["priority"] == 3  # type: ignore[call-arg]


def _app_with(name: str) -> App:
    app = App()
    app.task(kind=name)(lambda: None)
    return app


def test_the_command_line_has_the_options_of_the_table() -> None:
    run: Any = cli.program().commands["bulk"].commands["run"]  # type: ignore[attr-defined]
    wanted = {name for name, (_, option) in table_of(BulkOptions).items() if option.cli}
    assert wanted <= {parameter.name for parameter in run.params}
    given = {"budget": "1.5", "key": "a, b", "paused": False, "run_at": None, "priority": 0}
    read = read_options(BulkOptions, given)
    assert (str(read.pop("budget")), read) == ("1.5", {"key": ["a", "b"], "priority": 0})


def test_the_sdk_takes_the_options_of_the_table() -> None:
    task = _app_with("t").tasks["t"]
    for name in sdk_names(JobOptions) | sdk_names(TaskOptions):
        task.options(**{name: None})
    for name in ("digest", "input", "delay_seconds"):
        with pytest.raises(Invalid, match="unexpected keyword argument"):
            task.options(**{name: None})


@pytest.mark.parametrize("table", TABLES)
def test_the_docs_name_every_option(table: type) -> None:
    texts = {name: (DOCS / name).read_text() for name in ("sdk.md", "sql.md", "bulk.md", "cli.md")}
    for name in sdk_names(table) - {"preview", "skip_done"}:
        assert f"`{name}`" in texts["sdk.md"], name
    for name in set(table_of(table)) - {"preview", "skip_done"}:
        assert re.search(rf"`{name}`", texts["sql.md"]), name
    if table is BulkOptions:
        for name, (_, option) in table_of(table).items():
            assert not option.cli or f"`--{name.replace('_', '-')}" in texts["cli.md"], name
