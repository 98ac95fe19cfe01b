"""The compose file at work: its own commands, variables, order and health checks, as processes of this machine.

No container runtime runs here, so the database is a cluster of the tests, the store is a folder, and addresses and
ports are replaced. Everything else comes from docker-compose.yml and deploy/compose/.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from penstock import testing
from penstock.postgres import embedded
from tests.conftest import Eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
BIN = Path(sys.executable).parent
_VARIABLE = re.compile(r"\$\{([A-Z_]+)(?:(:-|:\?)([^}]*))?\}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class Compose:
    """What `docker compose up` does with the services that are Penstock's."""

    def __init__(self, folder: Path, cluster: embedded.Cluster) -> None:
        self.folder, self.running = folder, dict[str, subprocess.Popen[bytes]]()
        example = (ROOT / "deploy/compose/env.example").read_text()
        self.variables = {
            name: secrets.token_hex(24) if "change-me" in value else value
            for name, value in re.findall(r"(?m)^([A-Z_]+)=(.*)$", example)
        }
        self.admin = conninfo_to_dict(cluster.dsn("postgres", tcp=True))
        self.ports = {"api": free_port(), "worker-1": free_port(), "worker-2": free_port()}

    def expanded(self, text: str) -> str:
        return _VARIABLE.sub(lambda found: self.variables.get(found[1]) or found[3] or "", text)

    def initialize(self) -> None:
        """What the image of PostgreSQL does on an empty volume, with the script that the compose file mounts."""
        given = {name: self.expanded(text) for name, text in SERVICES["db"]["environment"].items()}
        user, name = given["POSTGRES_USER"], given["POSTGRES_DB"]
        address = {f"PG{key.upper()}": str(self.admin[key]) for key in ("host", "port")}
        with psycopg.connect(**{**self.admin, "autocommit": True}) as connection:  # pyright: ignore[reportArgumentType]
            password = given["POSTGRES_PASSWORD"]
            connection.execute(f"create role {user} superuser login password '{password}'".encode())
            connection.execute(f"create database {name} owner {user}".encode())
        (script,) = [volume.split(":")[0] for volume in SERVICES["db"]["volumes"] if "initdb.d" in volume]
        subprocess.run(
            ["/bin/sh", ROOT / script],
            env={**os.environ, **given, **address, "PGPASSWORD": given["POSTGRES_PASSWORD"]},
            check=True,
        )

    def environment(self, service: str) -> dict[str, str]:
        found = {name: self.expanded(text) for name, text in SERVICES[service]["environment"].items()}
        database = f"@127.0.0.1:{self.admin['port']}/"
        found = {name: text.replace("@db/", database) for name, text in found.items()}
        if "PENSTOCK_STORAGE" in found:
            found["PENSTOCK_STORAGE"] = f"file://{self.folder}/store"
        home = {"PENSTOCK_HOME": str(self.folder / "home"), "PYTHONPATH": str(ROOT)}
        return {"PATH": f"{BIN}:/usr/bin:/bin", **home, **found}

    def command(self, service: str, name: str) -> list[str]:
        """The entry point of the image with the command of the service, on a port of its own."""
        given = [str(part) for part in SERVICES[service]["command"]]
        if name in self.ports:
            given = [str(self.ports[name]) if part in ("8080", "8081") else part for part in given]
        return [str(BIN / "penstock"), *given]

    def run(self, service: str, *command: str) -> str:
        """`docker compose run`: to its end."""
        given = [str(BIN / "penstock"), *command] if command else self.command(service, service)
        done = subprocess.run(
            given, env=self.environment(service), cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, service: str, name: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                self.command(service, name), env=self.environment(service), cwd=ROOT, stdout=log, stderr=log
            )

    def is_healthy(self, service: str, name: str) -> bool:
        _, *test = SERVICES[service]["healthcheck"]["test"]
        test = [re.sub(r"808[01]", str(self.ports[name]), part) for part in test]
        assert self.running[name].poll() is None, (self.folder / f"{name}.log").read_text()
        return subprocess.run([BIN / test[0], *test[1:]], capture_output=True).returncode == 0


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    cluster = embedded.Cluster(tmp_path / "cluster", testing.binaries(18))
    cluster.join()
    cluster.start()
    made = Compose(tmp_path, cluster)
    try:
        yield made
    finally:
        for process in made.running.values():
            process.kill()
            process.wait()
        cluster.leave(discard=True)


@pytest.mark.timeout(240)
def test_the_services_of_compose_run_a_job(compose: Compose, eventually: Eventually) -> None:
    """B11/images: one command runs it: logins, migrate, a server and two workers become healthy and run a job."""
    compose.initialize()
    for service in ("api", "worker"):
        assert SERVICES[service]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    compose.run("migrate")
    begun = time.monotonic()
    names = {
        "api": "api",
        **{f"worker-{n + 1}": "worker" for n in range(SERVICES["worker"]["deploy"]["replicas"])},
    }
    for name, service in names.items():
        compose.start(service, name)
    for name, service in names.items():
        eventually(lambda service=service, name=name: compose.is_healthy(service, name), f"{name} is healthy")
    print(f"healthy after {time.monotonic() - begun:.1f} s")
    made = compose.run("migrate", "keys", "create", "me", "--role", "service")
    (key,) = re.findall(r"psk_[0-9a-f]{64}", made)
    with httpx.Client(
        base_url=f"http://localhost:{compose.ports['api']}", headers={"apikey": key}, trust_env=False
    ) as client:
        tenant = client.post("/rest/v1/rpc/ensure_tenant", json={"p_name": "acme"}).json()
        body = {"type": "book", "params": {"titles": ["otters", "herons"]}, "tenant_id": tenant}
        started = client.post("/api/jobs/start", json=body)
        assert started.status_code == 201, started.text
        job = f"/api/jobs/{started.json()['id']}"
        eventually(lambda: client.get(job).json()["status"] == "completed", "the job ends")
        assert client.get(f"{job}/result").json()["result"]["pages"] == 4
        found = client.get("/dashboard/", follow_redirects=True)
        assert found.status_code in (200, 401) and "Penstock" in found.text
    for name, service in names.items():
        compose.running[name].terminate()
        grace = int(SERVICES[service]["stop_grace_period"].rstrip("s"))
        # The server ends with the signal that it was sent, once it has drained.
        assert compose.running[name].wait(grace) in (0, -signal.SIGTERM), name
