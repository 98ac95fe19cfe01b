"""`penstock jobs start` and `jobs rerun`, on a real database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import cli, testing

APP = """\
from penstock import App, Fail
app = App()

@app.task
def write(topic: str, words: int = 100) -> str:
    if topic == "nothing":
        raise Fail("there is nothing about it", code="nothing_there")
    return topic

@app.job
def publish(topics: list[str], year: str = "") -> None:
    for topic in topics:
        write.step(topic)
"""


@pytest.fixture
def penstock(
    db: testing.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    (tmp_path / "app_to_start.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PENSTOCK_APP", "app_to_start:app")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.execute(["--database", db.dsn, *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def job_of(db: testing.Database, printed: str) -> Any:
    [job] = db.execute("select * from penstock.jobs where id = %s", [printed.strip()])
    return job


def test_jobs_start_reads_values_by_the_types_of_the_params(db: testing.Database, penstock: Any) -> None:
    code, out, err = penstock("jobs", "start", "publish", 'topics=["otters", "herons"]', "year=2026")
    assert (code, err) == (0, "")
    assert job_of(db, out)["params"] == {"topics": ["otters", "herons"], "year": "2026"}
    assert db.execute("select count(*) as n from penstock.tasks") == [{"n": 2}]
    code, out, _ = penstock("jobs", "start", "write", "topic=2026", "words=50", "--priority", "1")
    assert code == 0
    [task] = db.execute("select input from penstock.tasks where job_id = %s", [out.strip()])
    assert task["input"] == {"topic": "2026", "words": 50}
    assert job_of(db, out)["priority"] == 1


def test_jobs_rerun_repeats_params_with_changes(db: testing.Database, penstock: Any) -> None:
    _, first, _ = penstock("jobs", "start", "publish", 'topics=["otters"]', "year=2025", "--priority", "2")
    code, again, err = penstock("jobs", "rerun", first.strip(), "year=2026")
    assert code == 0, err
    assert again != first
    job = job_of(db, again)
    assert (job["type"], job["priority"]) == ("publish", 2)
    assert job["params"] == {"topics": ["otters"], "year": "2026"}
    _, single, _ = penstock("jobs", "start", "write", "topic=herons")
    _, other, _ = penstock("jobs", "rerun", single.strip(), "words=7", "-o", "json")
    [task] = db.execute("select input from penstock.tasks where job_id = %s", [json.loads(other)["id"]])
    assert task["input"] == {"topic": "herons", "words": 7}


def test_wrong_types_params_and_apps_are_named(penstock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert penstock("jobs", "start", "publsh")[::2] == (
        2, "Error: unknown job type 'publsh'\nThe app has publish, write.\n"
    )  # fmt: skip
    assert penstock("jobs", "start", "write", "topick=otters")[::2] == (
        2, "Error: topick: unknown param; write takes topic, words\n"
    )  # fmt: skip
    assert penstock("jobs", "start", "write", "words=5")[::2] == (2, "Error: topic: this param is required\n")
    code, _, err = penstock("jobs", "start", "publish", "topics=otters")
    assert code == 2 and "topics" in err
    assert penstock("jobs", "start", "publish", "otters")[0] == 2
    monkeypatch.delenv("PENSTOCK_APP")
    code, _, err = penstock("jobs", "start", "publish")
    assert code == 2 and "--app MODULE:APP" in err


def test_watch_prints_the_result_or_the_errors(db: testing.Database, penstock: Any, drain: Any) -> None:
    from penstock.sdk.load import load

    app = drain.use(load("app_to_start:app"))
    _, good, _ = penstock("jobs", "start", "write", "topic=otters")
    _, bad, _ = penstock("jobs", "start", "write", "topic=nothing")
    drain(app)
    code, out, err = penstock("jobs", "watch", good.strip())
    assert (code, err) == (0, "") and 'result  "otters"' in out
    assert penstock("jobs", "watch", good.strip(), "-o", "json")[1].lstrip().startswith("{")
    code, out, err = penstock("jobs", "watch", bad.strip())
    assert code == 3 and "write-1: nothing_there: there is nothing about it" in err
    assert "1 of 1 task failed" in err and "result" not in out
    shown = penstock("jobs", "show", good.strip())[1]
    assert 'params   {"topic": "otters"}' in shown
