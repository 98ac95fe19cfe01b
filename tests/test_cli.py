"""The command line: every command on a real database, with its help, JSON output, exit codes and errors."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock import cli, testing
from penstock.cli import run as cli_run
from penstock.cli.commands import COMMANDS
from penstock.errors import EXIT_INTERRUPTED, EXIT_PARTLY_DONE, TABLE
from penstock.postgres import embedded
from penstock.settings import settings
from tests.conftest import Command, CommandResult


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def spawn(db: testing.Database, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Runs the program in a new process on the test's database."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **how: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "penstock", *map(str, arguments), "--database", db.dsn]
        environment = {**os.environ, "PENSTOCK_ALLOW_UNSAFE": "1", "PENSTOCK_HOME": str(tmp_path / "home")}
        streams: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        started.append(
            subprocess.Popen(command, env=environment, cwd=tmp_path, text=True, **{**streams, **how})
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def start_job(db: testing.Database, tenant: UUID) -> Callable[..., UUID]:
    """Starts a job with tasks of the kind `step`, with one attempt each."""
    db.execute("select penstock.define_kind('step', '{\"max_attempts\": 1}')")

    def start(type: str = "publish", tasks: int = 1, **options: Any) -> UUID:
        specs = json.dumps([{"kind": "step", "input": {"n": n}} for n in range(tasks)])
        chosen = json.dumps({"tenant_id": str(tenant), **options})
        return db.execute("select penstock.start_job(%s, '{}', %s, %s) as id", [type, specs, chosen])[0]["id"]

    return start


def fail_all(db: testing.Database, message: str = "no voice", code: str = "handler_error") -> None:
    """Claim all queued tasks and fail them."""
    for task in db.execute("select id from penstock.claim_tasks('test', 1000)"):
        arguments = [task["id"], message, code]
        db.execute("select penstock.fail_task(%s, 'test', %s, p_error_code => %s)", arguments)


def complete_all(db: testing.Database) -> None:
    """Claim all queued tasks and complete them."""
    for task in db.execute("select id from penstock.claim_tasks('test', 1000)"):
        db.execute("select penstock.complete_task(%s, 'test')", [task["id"]])


def status(db: testing.Database, job_id: UUID) -> str:
    return db.execute("select status from penstock.jobs where id = %s", [job_id])[0]["status"]


# Help


def leaves(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands with their paths."""
    command = command or cli.program()
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from leaves(child, (*path, name))
    else:
        yield path, command


def test_the_overview_says_what_each_command_says() -> None:
    for name, command in cli.program().commands.items():
        entry = COMMANDS[name]
        assert (entry.panel, entry.help) == (command.rich_help_panel, command.help.partition("\n")[0]), name


def test_the_overview_lists_every_command_below_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heading, below = "", dict[str, str]()
    for line in lines:
        if line.endswith(":") and not line.startswith(" "):
            heading = line.removesuffix(":")
        elif line.startswith("  ") and line[2:3].strip():
            below[line.split()[0]] = heading
    assert {name: below.get(name) for name in COMMANDS} == {
        name: entry.panel for name, entry in COMMANDS.items()
    }
    assert below["--database"] == below["-h,"] == "Options"


def test_the_overview_loads_no_database_driver_and_no_panels() -> None:
    slow = "{'psycopg', 'pydantic', 'typer.rich_utils', 'rich.console'}"
    code = f"import sys; from penstock import cli; cli.execute(['--help']); print({slow} & {{*sys.modules}})"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("path", [path for path, _ in leaves()], ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute([*path, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"penstock {' '.join(path)}" in out
    assert "--database" in out


def test_docs_list_every_command_option_and_exit_code() -> None:
    text = (Path(__file__).parents[1] / "docs/cli.md").read_text()
    sections = text.split("\n### ")
    for path, command in leaves():
        verb = path[-1]
        found = [
            section
            for section in sections
            if section.startswith(f"`penstock {' '.join(path[:-1])}".rstrip())
            and re.search(rf"\b{verb}\b", section.split("\n")[0])
        ]
        assert found, f"docs/cli.md has no section on penstock {' '.join(path)}"
        for parameter in command.params:
            for option in (o for o in parameter.opts if o.startswith("--") and o != "--help"):
                assert option in found[0] or option in sections[0], f"{path}: {option} is not documented"
    codes = {0, EXIT_PARTLY_DONE, EXIT_INTERRUPTED} | {row.exit_code for row in TABLE}
    for code in codes:
        assert f"\n| {code} | " in sections[0], f"exit code {code} is not documented"


# Jobs


def test_empty_list_prints_no_data(penstock: Command) -> None:
    assert penstock("jobs", "ls") == CommandResult(0, "", "No jobs.\n")
    assert penstock("jobs", "ls", "-o", "json") == CommandResult(0, "[]\n", "")
    assert penstock("jobs", "ls", "-o", "jsonl") == CommandResult(0, "", "")
    for command in (
        ("dead-letters", "ls"),
        ("schedules", "ls"),
        ("workers", "ls"),
        ("tenants", "ls"),
        ("backlog",),
    ):
        assert penstock(*command, "-o", "json") == CommandResult(0, "[]\n", "")
        assert penstock(*command).code == 0
        assert penstock(*command).out == ""


def test_jobs_ls_pages_newest_first(penstock: Command, start_job: Callable[..., UUID]) -> None:
    ids = [str(start_job()) for _ in range(3)]
    first = penstock("jobs", "ls", "-n", 2)
    assert [line.split()[0] for line in first.out.splitlines()] == ["ID", ids[2], ids[1]]
    assert f"--before {ids[1]}" in first.err
    second = penstock("jobs", "ls", "-n", 2, "--before", ids[1], "-o", "json")
    assert [job["id"] for job in second.json] == [ids[0]]
    assert second.json[0]["progress"]["total"] == 1
    lines = penstock("-o", "jsonl", "jobs", "ls").out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids[::-1]


def test_jobs_ls_filters_jobs(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID]
) -> None:
    failed = str(start_job("publish"))
    fail_all(db)
    queued = str(start_job("other"))

    def found(*filter: str) -> list[str]:
        answer = penstock("jobs", "ls", "-o", "json", "--", *filter)
        assert answer.code == 0, answer.err
        return [job["id"] for job in answer.json]

    assert found("status:failed") == [failed]
    assert found("status:failed,queued") == [queued, failed]
    assert found("-status:failed") == [queued]
    assert found("type:publish", "tenant:test", "age:<1d") == [failed]
    assert found("type:publish status:queued") == []
    assert found("age:>1h") == []
    assert found("age:1h", f"id:{queued}") == [queued]
    assert found("tenant:nobody") == []


@pytest.mark.parametrize(
    "filter",
    [
        "status:failed' or true --",
        "status:nothing",
        "unknown:1",
        "status:",
        "age:soon",
        "age:<1d,2d",
        "age:<99999999999w",
        "id:1",
        'tenant:"open',
        "type:a\0b",
        "%s:%s",
        "type:\udc80",
    ],
)
def test_invalid_filter_is_rejected(penstock: Command, filter: str) -> None:
    answer = penstock("jobs", "ls", "-o", "json", "--", filter)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.problem["status"] == 422


@pytest.mark.parametrize(
    "filter",
    [
        "type:'; drop table penstock.jobs; --",
        "type:%s",
        "tenant:%(x)s",
        "type:$1",
        'tenant:"a\\"b, c"',
        "type:\\",
    ],
)
def test_filter_value_is_never_read_as_sql(
    penstock: Command, start_job: Callable[..., UUID], filter: str
) -> None:
    start_job()
    answer = penstock("jobs", "ls", "-o", "json", "--", filter.replace(" ", "_"))
    assert (answer.code, answer.out) == (0, "[]\n")


def test_jobs_show_prints_job_and_tasks(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID]
) -> None:
    job_id = start_job(tasks=3)
    fail_all(db, "voice not found")
    shown = penstock("jobs", "show", job_id, "-n", 2)
    assert "(database login)" in shown.out and "service:" not in shown.out
    assert shown.code == 0
    assert "handler_error: voice not found" in shown.out
    assert "2 of 3 tasks shown" in shown.err
    document = penstock("jobs", "show", job_id, "-o", "json").json
    assert document["status"] == "failed"
    assert (document["cost"], document["budget"], document["currency"]) == ("0", None, "USD")
    assert document["tenant"] == "test"
    assert [task["error_code"] for task in document["tasks"]] == ["handler_error"] * 3
    assert penstock("jobs", "show", job_id, "--status", "running", "-o", "json").json["tasks"] == []
    assert penstock("jobs", "show", job_id, "--status", "sleeping").code == 2


def test_missing_object_exits_with_5(penstock: Command) -> None:
    answer = penstock("jobs", "show", uuid4(), "-o", "json")
    assert answer.code == 5
    assert answer.out == ""
    assert answer.problem["code"] == "unknown_job"
    assert answer.problem["status"] == 404
    for command in (
        ("dead-letters", "show", 1),
        ("dead-letters", "replay", 1),
        ("schedules", "rm", "x", "--yes"),
    ):
        assert penstock(*command).code == 5
    assert penstock("schedules", "ls", "--tenant", "nobody").code == 5


def test_control_characters_from_the_database_are_not_printed(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID]
) -> None:
    job_id = start_job("report")
    # Names with control characters are rejected, but a database may have some from before.
    db.execute("update penstock.jobs set type = %s", ["\x1b[31mred\x1b]0;title\x07[bold]\nnext\u202e"])
    fail_all(db, "line\r\n\x1b[2Jgone [link=x]y[/link]")
    out = (
        penstock("jobs", "ls").out + penstock("jobs", "show", job_id).out + penstock("dead-letters", "ls").out
    )
    assert "red[bold] next" in out
    assert "gone [link=x]y[/link]" in out
    assert not {"\x1b", "\r", "\u202e", "\x07"} & set(out)


def test_pause_resume_retry_and_cancel_one_job(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID]
) -> None:
    job_id = start_job()
    assert penstock("jobs", "pause", job_id, "--reason", "lunch", "-o", "json").json == [
        {"id": str(job_id), "result": "paused"}
    ]
    assert "lunch" in penstock("jobs", "ls", "status:paused").out
    assert penstock("jobs", "resume", job_id).code == 0
    assert status(db, job_id) == "queued"
    fail_all(db)
    assert penstock("jobs", "pause", job_id).code == 6
    retried = penstock("jobs", "retry", job_id)
    assert "1 task requeued" in retried.out
    assert penstock("jobs", "cancel", job_id).code == 0
    assert status(db, job_id) == "canceled"
    refused = penstock("jobs", "retry", job_id, "-o", "json")
    assert (refused.code, refused.problem["code"]) == (6, "not_failed")


def test_filter_needs_confirmation_and_acts_on_all_matches(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID]
) -> None:
    ids = [start_job() for _ in range(3)]
    other = start_job("other")
    refused = penstock("jobs", "cancel", "type:publish")
    assert refused.code == 2
    assert "3 jobs (3 publish)" in refused.err
    assert "--yes" in refused.err
    assert [status(db, job_id) for job_id in ids] == ["queued"] * 3
    done = penstock("jobs", "cancel", "type:publish", "--yes", "-o", "json")
    assert done.code == 0
    assert {line["id"] for line in done.json} == set(map(str, ids))
    assert [status(db, job_id) for job_id in ids] == ["canceled"] * 3
    assert status(db, other) == "queued"
    assert penstock("jobs", "cancel", "type:nothing", "--yes").code == 0
    assert penstock("jobs", "cancel", "--all", "--yes").code == 0
    assert status(db, other) == "canceled"


def test_partial_failure_exits_with_8(penstock: Command, start_job: Callable[..., UUID]) -> None:
    answer = penstock("jobs", "pause", start_job(), uuid4(), "-o", "json")
    assert answer.code == EXIT_PARTLY_DONE
    assert [line.get("code") for line in answer.document] == [None, "unknown_job"]


@pytest.mark.parametrize(
    "which", [(), ("",), ("status:failed", "x"), ("--all", "status:failed"), ("nonsense",)]
)
@pytest.mark.parametrize("group", ["jobs retry", "dead-letters replay", "dead-letters discard"])
def test_action_without_clear_selection_is_rejected(
    penstock: Command, group: str, which: tuple[str, ...]
) -> None:
    assert penstock(*group.split(), *which, "--yes").code == 2


def test_terminal_asks_for_confirmation(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = start_job()
    for reply, code, expected in (("n\n", 1, "queued"), ("y\n", 0, "canceled")):
        monkeypatch.setattr(sys, "stdin", Terminal(reply))
        answer = penstock("jobs", "cancel", "status:queued")
        assert "Cancel 1 job (1 publish)?" in answer.err
        assert answer.code == code
        assert status(db, job_id) == expected


# Watch


def test_watch_exits_when_the_job_ends(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID]
) -> None:
    job_id = start_job(tasks=2)
    complete_all(db)
    watched = penstock("jobs", "watch", job_id)
    assert (watched.code, watched.err) == (0, "")
    assert watched.out.startswith("100%  completed  2/2")
    assert penstock("jobs", "watch", job_id, "-o", "json").json["status"] == "completed"
    failed = start_job()
    fail_all(db)
    assert penstock("jobs", "watch", failed).code == 3
    problem = penstock("jobs", "watch", failed, "-o", "jsonl")
    assert problem.problem["code"] == "job_failed"
    canceled = start_job()
    penstock("jobs", "cancel", canceled)
    assert penstock("jobs", "watch", canceled).code == 3


def test_watch_prints_each_change(
    db: testing.Database, spawn: Callable[..., subprocess.Popen[str]], start_job: Callable[..., UUID]
) -> None:
    job_id = start_job(tasks=2)
    process = spawn("jobs", "watch", job_id, "-o", "jsonl", "--interval", "0.05")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["status"] == "queued"
    db.execute("select id from penstock.claim_tasks('test', 2)")
    assert json.loads(process.stdout.readline())["progress"]["running"] == 2
    db.execute("select * from penstock.complete_tasks('test', array(select task_id from penstock.leases))")
    out, _ = process.communicate(timeout=30)
    last = json.loads(out.splitlines()[-1])
    assert (last["status"], last["progress"]["percent"]) == ("completed", 100)
    assert process.returncode == 0


def test_watch_stops_after_timeout(penstock: Command, start_job: Callable[..., UUID]) -> None:
    job_id = start_job()
    assert penstock("jobs", "watch", job_id, "--timeout", "0.2s", "--interval", "0.05").code == 124
    assert penstock("jobs", "watch", job_id, "--timeout", "soon").code == 2
    assert penstock("jobs", "watch", uuid4()).code == 5


def test_ctrl_c_exits_with_130(
    spawn: Callable[..., subprocess.Popen[str]], start_job: Callable[..., UUID]
) -> None:
    process = spawn("jobs", "watch", start_job())
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (EXIT_INTERRUPTED, "")


def test_terminal_output_has_colors_and_bars(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = start_job(tasks=2)
    fail_all(db, "x" * 500)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def screen(*arguments: object) -> str:
        monkeypatch.setattr(sys, "stdout", terminal := Terminal())
        penstock(*arguments)
        return terminal.getvalue()

    assert "\x1b[" in screen("jobs", "ls")
    assert "✗ failed" in screen("jobs", "ls")
    assert "\x1b[" not in screen("jobs", "ls", "-o", "json")
    assert "\x1b[31m" not in screen("jobs", "ls", "--no-color")
    assert "█" * 30 in screen("jobs", "watch", job_id)
    for command in (
        ("jobs", "show", job_id),
        ("dead-letters", "ls"),
        ("dead-letters", "show", 1),
        ("doctor",),
    ):
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen(*command))
        assert shown
        assert command == ("doctor",) or max(map(len, shown.splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "60")
    assert "TENANT" not in screen("jobs", "ls")


# Dead letters


def test_dead_letters_are_listed_shown_replayed_and_discarded(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID]
) -> None:
    job_id = start_job(tasks=3)
    fail_all(db, "the voice nova is unknown", "unknown_voice")
    listed = penstock(
        "dead-letters", "ls", "code:unknown_voice", "error:NOVA", f"job:{job_id}", "-o", "json"
    ).json
    assert [letter["error_code"] for letter in listed] == ["unknown_voice"] * 3
    assert "replay kind:step code:unknown_voice" in penstock("dead-letters", "ls").err
    assert penstock("dead-letters", "ls", "-o", "json", "--", "-kind:step").json == []
    letter = penstock("dead-letters", "show", listed[0]["id"], "-o", "json").json
    assert [attempt["error_message"] for attempt in letter["history"]] == ["the voice nova is unknown"]
    assert "after 1 attempt" in penstock("dead-letters", "show", listed[0]["id"]).out

    assert penstock("dead-letters", "discard", listed[0]["id"], "-o", "json").json == {
        "matched": 1,
        "done": 1,
    }
    assert penstock("dead-letters", "replay", "error:nova").code == 2
    assert "2 of 2 dead letters replayed" in penstock("dead-letters", "replay", "error:nova", "--yes").out
    assert status(db, job_id) == "running"
    assert penstock("dead-letters", "ls", "-o", "json").json == []


def test_dead_letters_of_canceled_job_cannot_be_replayed(
    db: testing.Database, penstock: Command, start_job: Callable[..., UUID]
) -> None:
    job_id = start_job(tasks=2)
    task = db.execute("select id from penstock.claim_tasks('test', 1)")[0]
    db.execute("select penstock.fail_task(%s, 'test', 'no')", [task["id"]])
    penstock("jobs", "cancel", job_id)
    answer = penstock("dead-letters", "replay", "--all", "--yes", "-o", "json")
    assert (answer.code, answer.document) == (EXIT_PARTLY_DONE, {"matched": 1, "done": 0})


# Schedules


def test_schedule_is_created_changed_and_removed(
    db: testing.Database, penstock: Command, tenant: UUID, tmp_path: Path
) -> None:
    db.execute("select penstock.define_job_type('report')")
    # The only tenant needs no option; with several, it does.
    bare = ("schedules", "set", "bare", "--cron", "0 3 * * *", "--type", "report")
    assert penstock(*bare).code == 0 and penstock("schedules", "rm", "bare", "--yes").code == 0
    db.execute("select penstock.create_tenant('another')")
    assert "--tenant is required" in penstock(*bare).err
    arguments = ("schedules", "set", "nightly", "--cron", "0 3 * * *", "--type", "report", "--tenant", "test")
    made = penstock(*arguments, "--timezone", "Europe/Berlin", "--missed", "all")
    assert UUID(made.out.strip())
    params = tmp_path / "params.json"
    params.write_text('{"pages": 3}')
    changed = penstock(*arguments, "--params", f"@{params}", "--disabled", "-o", "json")
    assert changed.json == {"id": made.out.strip()}
    [schedule] = penstock("schedules", "ls", "--tenant", tenant, "-o", "json").json
    assert (schedule["params"], schedule["is_enabled"], schedule["missed"]) == ({"pages": 3}, False, "once")
    heading, line = penstock("schedules", "ls").out.splitlines()
    assert "off" in line and heading.count("ERROR") == 1
    assert penstock("schedules", "rm", "nightly").code == 2
    assert penstock("schedules", "rm", "nightly", "--yes").code == 0
    assert penstock("schedules", "ls", "-o", "json").json == []


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--cron", "61 * * * *", "invalid_cron"),
        ("--cron", "0 0 30 2 *", "invalid_cron"),
        ("--cron", "never", "invalid_cron"),
        ("--timezone", "Mars/Olympus", "invalid_timezone"),
        ("--timezone", "../etc/passwd", "invalid_timezone"),
        ("--params", "[]", "usage"),
        ("--params", "@nowhere.json", "usage"),
        ("--tasks", "{}", "usage"),
        ("--tasks", '[{"kind": "unknown"}]', "unknown_kind"),
        ("--missed", "sometimes", "usage"),
    ],
)
def test_invalid_schedule_is_rejected(
    penstock: Command, tenant: UUID, option: str, value: str, code: str
) -> None:
    arguments = {"--cron": "0 3 * * *", "--type": "report", "--tenant": "test", option: value}
    answer = penstock(
        "schedules", "set", "x", *(word for pair in arguments.items() for word in pair), "-o", "json"
    )
    assert (answer.code, answer.problem["code"]) == (2, code)


def test_ambiguous_schedule_name_needs_tenant(db: testing.Database, penstock: Command, tenant: UUID) -> None:
    db.execute("select penstock.define_job_type('report')")
    penstock("tenants", "create", "second")
    for owner in ("test", "second"):
        arguments = ("--cron", "0 3 * * *", "--type", "report", "--tenant", owner)
        assert penstock("schedules", "set", "nightly", *arguments).code == 0
    assert penstock("schedules", "rm", "nightly", "--yes").code == 6
    assert penstock("schedules", "rm", "nightly", "--tenant", "second", "--yes").code == 0
    assert len(penstock("schedules", "ls", "-o", "json").json) == 1


# Workers, tenants, backlog


def test_workers_ls_hides_stopped_workers(
    db: testing.Database, penstock: Command, clock: testing.Clock
) -> None:
    info = json.dumps(
        {"host": "h", "pid": 7, "kinds": ["step"], "concurrency": 4, "version": "1", "running": 2}
    )
    db.execute("select penstock.report_worker('w1', %s)", [info])
    db.execute("select penstock.report_worker('w2', '{\"state\": \"stopped\"}')")
    assert [worker["id"] for worker in penstock("workers", "ls", "-o", "json").json] == ["w1"]
    assert "2/4" in penstock("workers", "ls").out
    assert "stopped" in penstock("workers", "ls", "--all").out
    clock.advance(minutes=2)
    assert penstock("workers", "ls", "-o", "json").json[0]["state"] == "gone"


def test_tenants_are_created_and_listed(penstock: Command) -> None:
    made = penstock("tenants", "create", "Acme, Inc.", "--weight", "2.5")
    [tenant] = penstock("tenants", "ls", "-o", "json").json
    assert (tenant["id"], tenant["name"], tenant["weight"]) == (made.out.strip(), "Acme, Inc.", 2.5)
    assert penstock("tenants", "create", "x", "--weight", "-1").code == 2
    assert penstock("tenants", "create", "").code == 2
    penstock("tenants", "create", "second")
    assert [t["name"] for t in penstock("tenants", "ls", "--after", tenant["id"], "-o", "json").json] == [
        "second"
    ]
    assert penstock("jobs", "ls", 'tenant:"Acme, Inc."', "-o", "json").json == []


def test_backlog_shows_kinds_without_workers(penstock: Command, start_job: Callable[..., UUID]) -> None:
    start_job(tasks=1500)
    line = penstock("backlog").out.splitlines()[1].split()
    assert (line[0], line[2], line[-1]) == ("step", "1,500", "none")
    assert penstock("backlog", "-o", "json").json[0]["waiting"] == 1500


# Setting up


def test_migrate_applies_checks_and_rolls_back(
    server: testing.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    name = server.create()
    try:

        def run(*arguments: str) -> CommandResult:
            capsys.readouterr()
            code = cli.execute([*arguments, "--database", server.dsn(name)])
            out, err = capsys.readouterr()
            return CommandResult(code, out, err)

        unready = run("jobs", "ls", "-o", "json")
        assert (unready.code, unready.problem["code"]) == (1, "not_migrated")
        assert "penstock migrate" in unready.problem["hint"]
        assert run("migrate", "--check").code == 1
        applied = run("migrate", "-o", "json").json
        assert applied[0] == "0001_create_roles.sql"
        assert run("migrate", "-o", "json").json == []
        assert run("migrate", "--check") == CommandResult(0, "", "The schema matches this version.\n")
        assert run("migrate", "--rollback-to", "0").code == 2
        assert run("migrate", "--rollback-to", "0", "--yes", "-o", "json").json == applied[::-1]
        assert run("migrate", "--check", "-o", "json").code == 1
    finally:
        server.drop(name)


def test_migrate_sql_needs_no_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["migrate", "--sql", "--database", "postgresql://nowhere.invalid/"]) == 0
    assert "create table penstock.jobs" in capsys.readouterr().out


def test_doctor_fails_without_fsync(penstock: Command) -> None:
    answer = penstock("doctor", "-o", "json")
    assert answer.code == 1
    found = {check["name"]: check for check in answer.document}
    assert found["durability"]["state"] == "fail"  # the tests' server runs without fsync
    assert found["LISTEN"]["state"] == "ok"
    text = penstock("doctor")
    assert "fail  durability    " in text.out
    assert "Set fsync = on" in text.out


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("postgresql://nobody@127.0.0.1:1/x?connect_timeout=2", 1),
        ("postgresql://nowhere.invalid/x", 1),
        ("nonsense", 2),
    ],
)
def test_unreachable_database_is_reported(
    address: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["jobs", "ls", "-o", "json", "--database", address]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["detail"]
    assert cli.execute(["doctor", "--database", address]) == 1


def test_missing_database_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    settings.cache_clear()
    try:
        assert cli.execute(["jobs", "ls"]) == 1
        assert cli.execute(["worker", "x:app"]) == 1
    finally:
        settings.cache_clear()
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_migrate_creates_a_healthy_embedded_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    settings.cache_clear()
    try:
        assert cli.execute(["migrate"]) == 0
        assert cli.execute(["tenants", "create", "acme"]) == 0
        capsys.readouterr()
        assert cli.execute(["doctor", "-o", "json"]) == 0
        assert {check["state"] for check in json.loads(capsys.readouterr().out)} == {"ok"}
    finally:
        settings.cache_clear()
        embedded.of(tmp_path / "home").leave()
        embedded.stop(tmp_path / "home")


# Running


APP = """\
from penstock import App
app = App(tenant="test")

@app.task
async def double(n: int) -> int:
    return 2 * n

@app.task
async def other(n: int) -> int:
    return n
"""


def test_worker_drains_its_kinds(
    db: testing.Database, spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path, tenant: UUID
) -> None:
    (tmp_path / "some_app.py").write_text(APP)
    db.execute('select penstock.define_kinds(\'[{"name": "double"}, {"name": "other"}]\')')
    tasks = json.dumps(
        [{"kind": "double", "input": {"n": n}} for n in range(5)] + [{"kind": "other", "input": {"n": 1}}]
    )
    options = json.dumps({"tenant_id": str(tenant)})
    db.execute("select penstock.start_job('sums', '{}', %s, %s)", [tasks, options])
    process = spawn("worker", "some_app:app", "--drain", "--kinds", "double", "--concurrency", 2)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "")
    assert "worker.started" in err
    rows = db.execute("select status, count(*) as n from penstock.task_list group by status order by status")
    assert [(row["status"], row["n"]) for row in rows] == [("queued", 1), ("succeeded", 5)]


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [("7", (), 7), ("7", ("--concurrency", 3), 3), ("", (), 10), (None, (), 10)],
)
def test_concurrency_of_a_worker_comes_from_option_or_environment(
    penstock: Command,
    monkeypatch: pytest.MonkeyPatch,
    environment: str | None,
    arguments: tuple[object, ...],
    expected: int,
) -> None:
    found: list[int] = []
    monkeypatch.setattr(cli_run, "_work", lambda *_, **how: found.append(how["concurrency"]) or 0)
    monkeypatch.delenv("PENSTOCK_WORKER_CONCURRENCY", raising=False)
    if environment is not None:
        monkeypatch.setenv("PENSTOCK_WORKER_CONCURRENCY", environment)
    assert penstock("worker", "some_app:app", *arguments).code == 0
    assert found == [expected]


@pytest.mark.parametrize(("value", "reason"), [("0", "greater than or equal to 1"), ("many", "integer")])
def test_bad_concurrency_in_the_environment_is_rejected_by_its_name(
    penstock: Command, monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_CONCURRENCY", value)
    answer = penstock("worker", "some_app:app")
    assert answer.code == 2
    assert "PENSTOCK_WORKER_CONCURRENCY" in answer.err and reason in answer.err


@pytest.mark.parametrize("path", ["no_such_module:app", "json:app", "json:loads", "json"])
def test_unloadable_app_is_rejected(penstock: Command, path: str) -> None:
    answer = penstock("worker", path, "-o", "json")
    assert (answer.code, answer.out) == (2, "")
    assert path.partition(":")[0] in answer.problem["detail"]


@pytest.mark.slow
def test_dev_runs_until_sigterm(
    db: testing.Database, spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "some_app.py").write_text(APP)
    for arguments in ((), ("some_app:app",)):
        process = spawn("dev", *arguments, "--port", 0)
        assert process.stderr is not None
        lines: list[str] = []
        while not lines or "  Worker  " not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], "".join(lines)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0


# The program


def test_usage_error_exits_with_2(penstock: Command) -> None:
    for arguments in (
        ("jobs", "show", "not-an-id"),
        ("jobs", "ls", "-n", "0"),
        ("jobs", "ls", "--limit", "many"),
        ("jobs", "ls", "--no-such-option"),
        ("no-such-command",),
        ("schedules", "set", "x"),
        ("worker",),
    ):
        answer = penstock(*arguments)
        assert (answer.code, answer.out) == (2, ""), arguments
        assert answer.err
    assert "'not-an-id' is not an id such as" in penstock("jobs", "show", "not-an-id").err
    assert "'--port': must be less than or equal to 65535" in penstock("serve", "--port", "99999").err
    assert "'--role': 'boss' is not one of 'owner'" in penstock("keys", "create", "x", "--role", "boss").err
    assert "Commands: ls, set, rm." in penstock("schedules", "pause").err
    assert "Missing argument 'NAME'" in penstock("tenants", "create").err
    problem = penstock("jobs", "show", "not-an-id", "--output=json").problem
    assert problem["code"] == "usage"


def test_closed_pipe_is_no_error(db: testing.Database, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    db.execute("select penstock.create_tenant('t' || n) from generate_series(1, 1000) as n")
    process = spawn("tenants", "ls", "-n", 1000, "-o", "json")
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(30) == 0


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["--version"]) == 0
    assert capsys.readouterr().out.startswith("penstock ")
