"""Handlers on a Ray cluster: three nodes on this machine, one of which is killed under load."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Invalid, testing
from penstock.worker import ray_actors
from tests import ray_workload

# Ray leaves files and sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore")
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    utils = pytest.importorskip("ray.cluster_utils")
    found = utils.Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    monkeypatch.setenv("RAY_ADDRESS", found.address)
    yield found
    found.shutdown()


@pytest.mark.slow
def test_a_killed_node_loses_no_task_and_repeats_none(
    cluster: Any, drain: testing.Drain, db: testing.Database, tmp_path: Path
) -> None:
    """B11/ray: handlers run on Ray; each task succeeds once, also when a node dies, and only lost attempts repeat."""
    nodes = [cluster.add_node(**NODE, resources={"spot": 1}) for _ in range(2)]
    raylet = nodes[0].all_processes["raylet"][0].process.pid
    app = drain.use(ray_workload.app)
    jobs = [ray_workload.square.start(str(tmp_path), n, n >= 6) for n in range(20)]
    computed = ray_workload.compute.start()
    failed = "select error_code from penstock.attempts where error_code is not null"
    is_over = threading.Event()

    def wait_until(happened: Callable[[], bool]) -> None:
        while not is_over.wait(0.05) and not happened():
            pass

    def kill_the_node_of_a_waiting_task() -> None:
        wait_until(lambda: str(raylet) in [path.read_text() for path in waiting(tmp_path)])
        cluster.remove_node(nodes[0], allow_graceful=False)
        wait_until(lambda: bool(db.execute(failed)))
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill_the_node_of_a_waiting_task)
    killer.start()
    try:
        drain(app, concurrency=2)
    finally:
        is_over.set()
        killer.join()
    (tmp_path / "go").unlink()
    assert [job.result(timeout=5) for job in jobs] == [n * n for n in range(20)]
    assert computed.result(timeout=5)["pid"] != computed.result(timeout=5)["own"] == os.getpid()
    lost = db.execute(failed)
    assert {row["error_code"] for row in lost} == {"process_died"}
    begun = len(list(tmp_path.iterdir()))
    assert 20 < begun <= 20 + len(lost), "only a lost attempt runs again"


def waiting(folder: Path) -> list[Path]:
    """The records of executions that wait for the file `go`."""
    return [path for path in folder.iterdir() if int(path.name.partition(".")[0]) >= 6]


@pytest.mark.slow
def test_a_limit_kills_the_actor_and_a_crash_fails_the_attempt(
    cluster: Any, drain: testing.Drain, db: testing.Database, tmp_path: Path, eventually: Any
) -> None:
    app = drain.use(ray_workload.app)
    ray_workload.too_long.start(str(tmp_path), 60)
    ray_workload.crash.start()
    drain(app, concurrency=1)
    found = {row["kind"]: row["error_code"] for row in db.execute("select * from penstock.task_list")}
    assert found == {"too_long": "timeout", "crash": "process_died"}
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the actor's process is gone")


@pytest.mark.slow
def test_an_actor_gets_one_call_per_task_once_it_knows_the_handler(
    cluster: Any, drain: testing.Drain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B11/ray: each call takes about as long as a task of a few milliseconds."""
    cluster.add_node(**NODE, resources={"spot": 1})
    calls = 0
    real = ray_actors._get

    async def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return await real(*arguments)

    monkeypatch.setattr(ray_actors, "_get", counted)
    app = drain.use(ray_workload.app)
    jobs = [ray_workload.square.start(str(tmp_path), n, False) for n in range(10)]
    drain(app, concurrency=1)
    assert [job.result(timeout=5) for job in jobs] == [n * n for n in range(10)]
    assert calls == 12, "two calls start an actor: it is placed and imports the handler"


@pytest.mark.slow
async def test_a_worker_leaves_the_cluster_while_it_has_nothing_to_run_there(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B11/ray: the loss of the cluster's head ends every process that is connected to it."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray_actors, "IDLE_SECONDS", 0.0)
    actors = ray_actors.RayActors()
    try:
        for n in (2, 3):
            assert await actors.call(ray_workload.crush, ((n,), {}), None, {}) == n * n
            assert ray.is_initialized()
            while actors._leaving is None:  # noqa: ASYNC110 set by a timer of the loop
                await asyncio.sleep(0)
            await actors._leaving
            assert not ray.is_initialized()
            actors._leaving = None
    finally:
        actors.close()


def test_a_worker_refuses_a_task_that_another_process_would_not_find(drain: testing.Drain) -> None:
    app = drain.use(App())
    app.task(kind="other", cpu_bound=True)(ray_workload.crush)
    with pytest.raises(Invalid, match="crush is not this task"):
        drain(app)


def test_a_worker_refuses_a_task_for_ray_of_the_main_module(
    drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = drain.use(App())
    monkeypatch.setattr("penstock.worker.engines.find_spec", lambda name: name)
    monkeypatch.setattr(ray_workload.crush, "__module__", "__main__")
    app.task(engine="ray")(ray_workload.crush)
    with pytest.raises(Invalid, match="cannot import from __main__"):
        drain(app)


def test_an_engine_and_its_resources_are_checked_when_a_task_is_declared() -> None:
    app = App()
    wrong: dict[str, dict[str, Any]] = {
        "engine must be": {"engine": "spark"},
        "resources are for": {"resources": {"num_gpus": 1}},
        "unknown resource 'gpus'": {"engine": "ray", "resources": {"gpus": 1}},
        "either cpu_bound or": {"engine": "ray", "cpu_bound": True},
    }
    for message, options in wrong.items():
        with pytest.raises(Invalid, match=message):
            app.task(**options)(ray_workload.square.function)
