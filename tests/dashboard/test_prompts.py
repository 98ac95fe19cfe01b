"""The pages of prompts, spend and people, and the command line for them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Context, cli, testing
from penstock.cli import prompts as prompts_cli
from penstock.types import TrialRow


@pytest.fixture
def run(sample: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.execute(["--database", sample.db.dsn, *arguments])
        printed = capsys.readouterr()
        return code, printed.out or printed.err

    return call


def test_versions_are_shown_compared_and_activated(site: Any, sample: Any, run: Any, tmp_path: Path) -> None:
    """R2.14/prompt-outage: the page, doctor and the metric show calls that used the constant."""
    db, operator = sample.db, site.browser(site.key("service", None))
    db.execute("""select penstock.declare_prompts('[{"name": "greet", "body": "Hi <b>{{who}}</b>"}]')""")
    db.execute("select penstock.add_prompt('greet', 'Hello <i>{{who}}</i>')")
    assert "constant in the code" in operator.get("/prompts").text
    page = operator.get("/prompts/greet?old=0&new=1").text
    assert "-Hi &lt;b&gt;" in page and "+Hello &lt;i&gt;" in page and "<i>{{" not in page
    assert "Activate version 1 of greet?" in operator.get("/prompts/greet/confirm?version=1").text
    assert operator.post("/prompts/greet", {"version": "1", "expected": "0"}).status_code == 303
    assert operator.post("/prompts/greet", {"version": "0", "expected": "0"}).status_code == 409
    assert operator.post("/prompts/greet", {"version": "x", "expected": "0"}).status_code == 422
    assert operator.get("/prompts/other").status_code == 404
    assert operator.get("/prompts/greet?old=7").status_code == 404
    owner = site.browser(site.key("owner", sample.acme))
    for path in ("/prompts", "/prompts/greet", "/prompts/greet/confirm?version=0", "/spend", "/people"):
        assert owner.get(path).status_code == 403, path
    assert owner.post("/prompts/greet", {"version": "0", "expected": "1"}).status_code == 403
    assert "/prompts" not in owner.get("/").text
    details = '{"prompt_name": "greet", "prompt_version": 0, "prompt_fallback": true}'
    db.execute(
        "select penstock.record_usage('{}', p_tenant_id => %s, p_action => 'ask',"
        " p_options => jsonb_build_object('details', %s::jsonb))", [sample.acme, details],
    )  # fmt: skip
    assert "1 call of the last hour used the constant" in operator.get("/prompts").text
    assert "1 call of the last hour used the code's constant" in run("doctor")[1]
    metrics = site.client.get("/metrics", headers={"authorization": f"Bearer {site.key('service', None)}"})
    assert 'penstock_prompt_fallbacks{prompt="greet"} 1.0' in metrics.text


def test_command_line_adds_compares_activates_and_rolls_back(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "greet.txt"
    file.write_text("Hello {{who}}\n")
    assert run("prompts", "add", "greet", str(file), "--model", "small") == (0, "greet: added version 1.\n")
    file.write_text("Good day {{who}}\n")
    assert "now active" in run("prompts", "add", "greet", str(file), "--activate", "--comment", "politer")[1]
    text = run("prompts", "diff", "greet", "1")[1]
    assert "-Hello {{who}}" in text and "+Good day {{who}}" in text and "-model: small" in text
    assert run("prompts", "activate", "greet", "1", "--expect", "0")[0] == 6
    assert run("prompts", "activate", "greet", "1", "--expect", "2")[0] == 0
    assert run("prompts", "activate", "greet", "2")[0] == 0
    assert run("prompts", "rollback", "greet") == (0, "greet: version 1 is active.\n")
    assert "politer" in run("prompts", "show", "greet")[1]
    assert "Good day" in run("prompts", "show", "greet", "2")[1]
    [line] = json.loads(run("prompts", "ls", "-o", "json")[1])
    assert (line["name"], line["version"]) == ("greet", 1)
    assert run("prompts", "show", "greet", "9")[0] != 0
    assert run("prompts", "add", "greet", str(tmp_path / "none"))[0] == 2


def test_a_trial_compares_outputs_and_costs(
    db: testing.Database, drain: testing.Drain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = drain.use(App(database_url=db.dsn))
    greet = app.prompt("greet", "Hi {{who}}")

    @app.task
    async def ask(ctx: Context, who: str) -> str:
        prompt = await ctx.aprompt(greet)
        await ctx.acost("answer", "0.5" if prompt.version else "0.25")
        return prompt.render(who=who)

    job = ask.start("Ann")
    drain(app)
    file = tmp_path / "greet.txt"
    file.write_text("Hello {{who}}")
    arguments = ["--database", db.dsn, "prompts", "try", "greet", str(file), "--on", str(job.id)]
    assert cli.execute([*arguments, "--wait", "0"]) != 0
    assert "Start a worker" in capsys.readouterr().err
    codes: list[int] = []
    command = threading.Thread(target=lambda: codes.append(cli.execute([*arguments, "-o", "jsonl"])))
    command.start()
    while command.is_alive():
        drain(app)
    assert codes == [0]
    # The worker logs to the same stream.
    found = json.loads(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("{")))
    assert found["version"] == 1, "the same text is not added twice"
    [row] = found["rows"]
    assert (row["output"], row["new_output"]) == ("Hi Ann", "Hello Ann")
    assert (float(row["cost"]), float(row["new_cost"])) == (0.25, 0.5)
    compared = prompts_cli._compare("greet", 1, [TrialRow(**{**row, "cost": None, "new_cost": None})], "USD")  # pyright: ignore[reportPrivateUsage]
    assert compared is None and "Hello Ann" in capsys.readouterr().out
    app.close()


def test_admin_sees_people_and_spend_and_leaves_reasons(site: Any, sample: Any, run: Any) -> None:
    db = sample.db
    operator = site.browser(site.key("service", None))
    assert "Margin by tenant" in operator.get("/spend").text
    assert operator.get("/spend?month=2030-13").status_code == 422
    [row] = db.execute("insert into auth.users (email) values ('eve@example.org') returning id")
    user = str(row["id"])
    page = operator.get(f"/people/{user}")
    assert page.status_code == 200 and "Set plan" in page.text
    assert (
        operator.post(f"/people/{user}", {"verb": "plan", "plan": "basic", "reason": ""}).status_code == 422
    )
    assert (
        operator.post(
            f"/people/{user}", {"verb": "plan", "plan": "basic", "reason": "asked for it"}
        ).status_code
        == 303
    )
    until = "2090-01-01"
    override = {"verb": "override", "meter": "tokens", "amount": "5", "until": until, "reason": "outage"}
    assert operator.post(f"/people/{user}", override).status_code == 303
    assert operator.post(f"/people/{user}", {**override, "amount": "x"}).status_code == 422
    assert "outage" in operator.get(f"/people/{user}").text
    assert run("admin", "set-role", user, "admin")[0] == 0
    assert "admin" in run("admin", "show", user)[1]
    assert user in run("admin", "ls")[1]
    assert run("admin", "override", user, "tokens", "3", "--until", until, "--reason", "x")[0] != 0
    assert run("admin", "override", user, "tokens", "3", "--until", until, "--reason", "more room")[0] == 0
    assert run("admin", "set-plan", user, "premium", "--reason", "won a prize")[0] == 0
    assert run("spend", "set", "rent", "310", "--comment", "office")[0] == 0
    assert "rent" in run("spend", "show", "--refresh")[1]
    assert json.loads(run("spend", "-o", "json")[1])["fixed"][0]["name"] == "rent"
    assert run("spend", "end", "rent")[0] == 0
    assert run("spend", "end", "rent")[0] != 0
    assert run("spend", "tenants")[0] == 0
    assert run("spend", "show", "--month", "x")[0] == 2
