"""A real Prometheus with deploy/'s configuration scrapes a running server and draws every panel of the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import api, testing
from penstock.settings import Settings
from tests.api.conftest import serving
from tests.conftest import Eventually

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
ROWS = """
set session_replication_role = replica;
insert into penstock.operations (tenant_id, job_id, task_id, number, provider, object, gated_lane_id, attempts, started_at, deadline_at)
select tenant_id, job_id, id, 1, 'p/m', 'film', lane_id, 0, penstock._now(), penstock._now() from penstock.tasks limit 1;
insert into penstock.webhooks (source, key, type, payload, received_at, last_received_at, next_try_at)
values ('stripe', 'evt_1', 'x', '{}', penstock._now(), penstock._now(), penstock._now());
insert into penstock.operator_alerts (kind, subject, day, count, first_at, last_at)
values ('provider_closed', 'p/m', (penstock._now() at time zone 'utc')::date, 3, penstock._now(), penstock._now());
insert into penstock.cost_sums (day, cost_type, amount, unit_count, lines, is_fresh)
values ((penstock._now() at time zone 'utc')::date, 'inference', 12.5, 1, 1, false);
insert into penstock.accounts (tenant_id, job_id, meter, period, used)
select tenant_id, id, 'cost', 'epoch', 9.5 from penstock.jobs where budget = 10
on conflict (tenant_id, job_id, meter, period) do update set used = 9.5"""


def fill(db: testing.Database, clock: testing.Clock) -> None:
    """An installation with something to see in each panel."""

    def call(function: str, *arguments: Any) -> Any:
        given = [json.dumps(each) if isinstance(each, dict | list) else each for each in arguments]
        marks = ", ".join("%s" for _ in given)
        return db.execute(f"select * from penstock.{function}({marks})", given)

    tenant = str(call("create_tenant", "t")[0]["create_tenant"])
    call("define_kind", "work", {"raw_tasks": True, "max_attempts": 1})
    call("set_provider", "p/m", {"concurrency": 3})
    call("set_price", "p/m", "requests", 0)
    options = {"tenant_id": tenant}
    call("start_job", "j", {}, [{"kind": "work", "provider": "p/m"}] * 10, {**options, "budget": 10})
    # Three at a time; eight end, two of them fail.
    for n in range(8):
        [task] = db.execute("select * from penstock.claim_tasks('w', 1, '{work}', 30)")
        if n < 2:
            call("fail_task", task["id"], "w", "broken")
        else:
            call("complete_task", task["id"], "w")
    clock.advance(seconds=75)
    db.execute("select penstock.upkeep()")
    call("report_worker", "w", {"state": "running", "concurrency": 7})
    db.execute(ROWS)


@contextmanager
def prometheus(folder: Path, port: int, key: str) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Prometheus on the repository's own configuration; yields a query."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed: make system-packages")
    text = (DEPLOY / "prometheus/prometheus.yml").read_text()
    for old, new in (("127.0.0.1:8080", f"127.0.0.1:{port}"), (": 30s", ": 1s")):
        assert old in text
        text = text.replace(old, new)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(DEPLOY / "prometheus/rules.yml", folder)
    (folder / "penstock.key").write_text(key)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
               f"--web.listen-address={address}"]  # fmt: skip
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def query(expression: str) -> list[dict[str, Any]]:
        try:
            answer = httpx.get(
                f"http://{address}/api/v1/query", params={"query": expression}, trust_env=False
            )
        except httpx.TransportError:
            return []
        if answer.status_code == 503:  # it is starting
            return []
        assert answer.status_code == 200, f"{expression}: {answer.text}"
        return answer.json()["data"]["result"]

    try:
        yield query
    finally:
        process.terminate()
        process.wait(20)
        print((folder / "prometheus.log").read_text()[-3000:])


@pytest.mark.timeout(180)
def test_every_panel_of_the_dashboard_shows_figures(
    db: testing.Database,
    clock: testing.Clock,
    api_settings: Settings,
    tmp_path: Path,
    eventually: Eventually,
) -> None:
    """B11/observability: each query of the dashboard gives figures of a running server, with the labels of its legend."""
    fill(db, clock)
    panels = json.loads((DEPLOY / "grafana/penstock.json").read_text())["panels"]
    [row] = db.execute("select secret from penstock.create_key('prometheus', 'service')")
    with (
        serving(api.create(api_settings)) as served,
        prometheus(tmp_path, served.port, row["secret"]) as query,
    ):

        def figures(expression: str) -> list[dict[str, Any]]:
            return [each for each in query(expression) if each["value"][1] != "NaN"]

        shown: dict[str, list[dict[str, Any]]] = {}
        for panel in panels:
            for target in panel["targets"]:
                expression = target["expr"]
                found = eventually(lambda e=expression: figures(e), f"{panel['title']}: {expression}")
                shown[f"{panel['title']} {target['refId']}"] = found
                for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                    assert any(label in each["metric"] for each in found), (panel["title"], label)
        assert query("ALERTS{alertstate='firing'}") == []

    def value(name: str) -> float:
        return sum(float(each["value"][1]) for each in shown[name])

    assert value("Wanted slots and slots of workers A") == 2, "two wait, and three fit"
    assert value("Wanted slots and slots of workers B") == 7
    assert value("Waiting tasks A") == 2
    assert value("Failed share A") == 0.25
    assert (value("Costs of today A"), value("Jobs near their budget A")) == (12.5, 1)
    # The new key is an alert too.
    assert (value("Alerts to the operator A"), value("Unprocessed webhooks A")) == (3 + 1, 1)
