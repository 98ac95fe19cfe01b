"""Every command that Penstock prints, in docs, hints and the dashboard, is one that the program accepts."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import Exit

from penstock import cli, testing

ROOT = Path(__file__).parents[1]
VALUE = "\N{REPLACEMENT CHARACTER}"
"""Stands for a value that the program fills in."""
PLACEHOLDERS = ("00000000-0000-0000-0000-000000000001", "1")
# Names of threads and connections, which look like commands.
NOT_COMMANDS = {"api", "app", "beat", "cli", "listen", "process", "task"}
# These run until they are stopped, or make files.
LONG_RUNNING = {"demo", "dev", "init", "mcp", "serve", "simulate", "watch", "worker"}

APP = """\
from penstock import App
from pydantic import BaseModel

app = App()

class Row(BaseModel):
    title: str

@app.task
def TYPE(name: str) -> str:
    return name

@app.bulk(row=Row, name="TYPE")
def posters(row: Row) -> None:
    TYPE.step(row.title)
"""

# In backticks, after a colon, alone in a string, or in the dashboard's <code>.
_IN_TEXT = re.compile(r"`(penstock [^`]+)`|(?:^|: )\s*(penstock [a-z][^`\n]*)", re.MULTILINE)
_IN_TEMPLATE = re.compile(r"""'(penstock [^']+)'|<code>(penstock .+?)</code>""")
_EXPRESSION = re.compile(r"\{\{.*?\}\}")


def in_pages() -> Iterator[tuple[str, str]]:
    """Lines after `$` in console blocks, and inline code, but not headings, which show the syntax."""
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        name, text = str(page.relative_to(ROOT)), page.read_text()
        for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    yield from ((name, part) for part in _commands_in_shell(line[2:]))
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for line in prose.splitlines():
            if not line.startswith("#"):
                yield from ((name, found) for found in re.findall(r"`(penstock (?!COMMAND)[^`]+)`", line))


def _commands_in_shell(line: str) -> Iterator[str]:
    line = re.sub(r"\$\([^)]*\)|\$\w+", PLACEHOLDERS[0], line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;>"):
            if words and words[0] == "penstock":
                yield shlex.join(words)
            # What follows > is a file.
            words = ["file of"] if set(word) == {">"} else []
        else:
            words.append(word)


@cache
def in_python() -> list[tuple[str, str]]:
    return list(_in_python())


def _in_python() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "penstock").rglob("*.py")):
        source = path.read_text()
        if "penstock " not in source:
            continue
        inner: set[int] = set()
        for node in ast.walk(ast.parse(source)):
            if id(node) in inner:
                continue
            if isinstance(node, ast.JoinedStr):
                inner.update(id(part) for part in node.values)
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            for quoted, plain in _IN_TEXT.findall(text):
                found = quoted or re.split(r"\s{2,}", plain)[0].rstrip(". ")
                if found.split()[1] not in NOT_COMMANDS:
                    yield str(path.relative_to(ROOT)), found


def in_templates() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "penstock/dashboard/templates").glob("*.html")):
        for quoted, code in _IN_TEMPLATE.findall(path.read_text()):
            yield path.name, _EXPRESSION.sub(VALUE, quoted or code)


def in_sql() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "penstock/sql/functions").glob("*.sql")):
        for found in re.findall(r"`(penstock [^`]+)`", path.read_text()):
            yield path.name, found.replace("%s", VALUE)


def printed() -> list[tuple[str, str]]:
    return sorted({*in_pages(), *in_python(), *in_templates(), *in_sql()})


def words_of(command: str, value: str) -> list[str]:
    """The arguments of a command, with a value for each placeholder."""
    words = shlex.split(command.replace(VALUE, value), comments=True)[1:]
    return [value if word in ("ID", "JOB", "TASK", "N") else word for word in words]


@cache
def _program() -> Any:
    return cli.program()


def _message(error: Exception) -> str:
    return getattr(error, "format_message", lambda: repr(error))()


def refusal(words: list[str]) -> str | None:
    """Why the program does not accept these arguments. A command that is only named needs no arguments."""
    command: Any = _program()
    context: Any = None
    path: list[str] = []
    while hasattr(command, "commands"):
        if not words and path:
            return None
        try:
            context = command.make_context(command.name, list(words), parent=context)
            name, child, words = command.resolve_command(
                context, [*getattr(context, "_protected_args", []), *context.args]
            )
        except (Exit, SystemExit):
            return None  # --help, --version or --show-completion
        except Exception as error:
            return _message(error)
        path.append(name)
        command = child
    if not words:
        return None
    try:
        command.make_context(path[-1], list(words), parent=context)
    except Exception as error:
        return _message(error)
    return None


def test_collector_finds_commands_of_every_source() -> None:
    assert len(list(in_pages())) > 80
    assert len(list(in_python())) > 30
    assert len(list(in_templates())) > 8
    assert len(list(in_sql())) >= 1


def test_wrong_commands_are_recognized() -> None:
    assert refusal(["jobs", "ls", "status:failed"]) is None
    assert refusal(["limits"]) is None
    for wrong in (["job", "ls"], ["jobs", "begin", "x"], ["schedules", "set", "x", "0 9 * * *"],
                  ["limits", "set", "x", "--rpm", "5"]):  # fmt: skip
        assert refusal(wrong) is not None, wrong


def is_only_named(words: list[str]) -> bool:
    """Whether there is nothing but the command's name, as in a sentence about it."""
    command = _program()
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return False
    return hasattr(command, "commands") or any(
        parameter.required for parameter in getattr(command, "params", [])
    )


def test_every_printed_command_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_APP", "module:app")  # as the pages say
    refused: list[str] = []
    for place, command in printed():
        reasons = [refusal(words_of(command, value)) for value in PLACEHOLDERS]
        if None not in reasons:
            refused.append(f"{place}: {command.replace(VALUE, '…')}: {reasons[0]}")
    assert refused == []


@pytest.mark.slow
def test_hints_of_the_dashboard_and_the_command_line_run(
    db: testing.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a database with a tenant, a provider, a meter, a job and an app, none is refused as wrong usage."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "module.py").write_text(APP)
    monkeypatch.setenv("PENSTOCK_APP", "module:app")
    (tmp_path / "rows.csv").write_text("title\nOtters\n")
    [tenant] = db.execute("select penstock.create_tenant('NAME') as id")
    db.execute("select penstock.define_kind('work'), penstock.define_kind('TYPE')")
    db.execute("select penstock.set_provider('openai/gpt-5', '{}'), penstock.set_meter('meter')")
    [job] = db.execute(
        "select penstock.start_job('TYPE', '{}', '[{\"kind\": \"work\"}]', jsonb_build_object('tenant_id', %s::text))"
        " as id",
        [str(tenant["id"])],
    )
    hints = [
        (place, command)
        for place, command in {*in_templates(), *in_python()}
        if place.endswith((".html", "penstock/doctor.py", "penstock/demo.py")) or "penstock/cli/" in place
    ]
    run = 0
    for place, command in sorted(hints):
        words = words_of(command, str(job["id"]))
        if is_only_named(words) or LONG_RUNNING & {*words[:2]} or {"MODULE:APP", "FILE"} & {*words}:
            continue
        watch = ["--no-watch"] if words[:2] == ["bulk", "run"] else []
        code = cli.execute([*words, *watch, "--yes", "--database", db.dsn])
        said = capsys.readouterr()
        if code == 2 and place.endswith(".py"):
            # The value may be the number of a task.
            code = cli.execute([*words_of(command, "1"), "--yes", "--database", db.dsn])
        assert code != 2, (place, command, said.err)
        run += 1
    assert run >= 10
