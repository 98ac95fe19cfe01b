"""From a laptop to two machines by the page alone: docs/deploy/index.md, typed on two hosts with a network between them.

The hosts are network namespaces of this machine with names, addresses and host files of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Eventually

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs/deploy/index.md"
_BLOCK = re.compile(
    r"(?:^<!-- on (?P<host>A|B|A and B)(?:: (?P<how>background|skip))? -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
NETWORK = "198.18.77"
"""Of the range for tests of networks; nothing routes it."""
STORE = f"http://{NETWORK}.1:9000"
MOUNTED = Path("/etc/netns")
"""`ip netns exec` mounts the files of a folder of this one over those of /etc."""


def blocks() -> list[re.Match[str]]:
    """Of the walk only."""
    text = PAGE.read_text()
    begin = text.index("## From `make demo` to two machines")
    return list(_BLOCK.finditer(text[begin : text.index("\n## ", begin)]))


def postgres_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return found[-1] if found else None


def may_make_hosts() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("runuser"):
        return False
    return (
        subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True).returncode == 0
    )


class Host:
    """A machine of the walk: a shell whose variables stay from block to block."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address, self.folder = name, address, folder / name
        self.space = f"penstock-{os.getpid()}-{name}"
        self.running: list[subprocess.Popen[bytes]] = []
        self._state = self.folder / "state"
        (self.folder / "mysite").mkdir(parents=True)
        self._state.write_text("")

    def command(self, script: str) -> list[str]:
        named = f"echo {self.name} > /proc/sys/kernel/hostname; {script}"
        return ["ip", "netns", "exec", self.space, "unshare", "--uts", "bash", "-e", "-c", named]

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{postgres_binaries()}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "HOME": str(self.folder), "PGHOST": str(self.folder), "COLUMNS": "150"}

    def type(self, script: str, timeout: float = 120) -> str:
        done = subprocess.run(
            self.command(f". {self._state}; {script}\nexport -p > {self._state}"),
            cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0, f"{self.name}: {script}\n{done.stdout}{done.stderr}{self.log()}"
        return done.stdout + done.stderr

    def start(self, script: str) -> None:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                self.command(f". {self._state}; exec {script}"),
                cwd=self.folder, env=self.environment(), stdout=log, stderr=log,
            )  # fmt: skip
        self.running.append(process)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text()[-5000:] if path.exists() else ""

    def stop(self) -> None:
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def hosts() -> Iterator[dict[str, Host]]:
    if not may_make_hosts() or postgres_binaries() is None:
        pytest.skip("network namespaces or Debian's PostgreSQL are not here")
    folder = Path(tempfile.mkdtemp(prefix="two-machines-"))
    # PostgreSQL's own user reads below it.
    folder.chmod(0o755)
    made = {name: Host(name.lower(), f"{NETWORK}.{n}", folder) for n, name in enumerate("AB", 1)}
    names = f"127.0.0.1 localhost\n{NETWORK}.1 a.example.org\n"
    ends = [f"ps{os.getpid()}{host.name}"[:15] for host in made.values()]
    try:
        for host in made.values():
            subprocess.run(["ip", "netns", "add", host.space], check=True)
            (MOUNTED / host.space).mkdir(parents=True)
            (MOUNTED / host.space / "hosts").write_text(names)
        subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
        for end, host in zip(ends, made.values(), strict=True):
            subprocess.run(["ip", "link", "set", end, "netns", host.space], check=True)
            host.type(f"ip addr add {host.address}/30 dev {end}; ip link set {end} up; ip link set lo up")
        yield made
    finally:
        # The worker first: PostgreSQL waits for its sessions.
        for host in reversed(list(made.values())):
            host.stop()
            subprocess.run(["ip", "netns", "del", host.space], check=False)
            shutil.rmtree(MOUNTED / host.space, ignore_errors=True)
            print(f"--- {host.name} ---", host.log(), sep="\n")
        shutil.rmtree(folder)


def adapted(text: str, host: Host) -> str:
    text = text.replace("/etc/penstock", str(host.folder.parent / "keys"))
    return text.replace("https://s3.example.org", STORE)


def make_certificates(folder: Path) -> None:
    """Of a small authority, for the name of A."""
    folder.mkdir()
    new = "openssl req -x509 -newkey rsa:2048 -nodes -days 2"
    for command in (
        f"{new} -keyout ca.key -out ca.pem -subj /CN=authority",
        f"{new} -CA ca.pem -CAkey ca.key -keyout server.key -out server.pem -subj /CN=a.example.org"
        " -addext subjectAltName=DNS:a.example.org -addext basicConstraints=critical,CA:FALSE",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    shutil.chown(folder / "server.key", "postgres")


def start_postgres(host: Host, found: list[re.Match[str]], eventually: Eventually) -> None:
    """A cluster as Debian makes it, with the lines of the page in its files."""
    data = host.folder / "data"
    data.mkdir()
    shutil.chown(data, "postgres")
    shutil.chown(host.folder, "postgres")
    host.type(f"runuser -u postgres -- initdb -D {data} --auth-local=peer --no-sync")
    (settings,) = (block["text"] for block in found if block["language"] == "ini")
    (access,) = (block["text"] for block in found if block["language"] == "text")
    with (data / "postgresql.conf").open("a") as file:
        file.write(adapted(settings, host))
    (data / "pg_hba.conf").write_text(f"local all postgres peer\n{access}")
    host.start(f"runuser -u postgres -- postgres -D {data} -k {host.folder}")
    eventually(lambda: (host.folder / ".s.PGSQL.5432").exists(), "PostgreSQL listens")


def answers(host: Host, url: str) -> bool:
    return subprocess.run(host.command(f"curl --silent --fail {url}"), capture_output=True).returncode == 0


@pytest.mark.timeout(300)
def test_walk_to_two_machines(hosts: dict[str, Host], eventually: Eventually) -> None:
    """Every block of the page in its order; the task of the last one runs on the second machine."""
    a, b, found, printed = hosts["A"], hosts["B"], blocks(), ""
    make_certificates(a.folder.parent / "keys")
    start_postgres(a, found, eventually)
    a.start(f"{sys.executable} -m moto.server -H {a.address} -p 9000")
    eventually(lambda: answers(a, f"-X PUT {STORE}/jobs"), "the store answers")
    for block in found:
        if block["language"] == "python":
            for host in hosts.values():
                (host.folder / "mysite/jobs.py").write_text(block["text"])
        if block["language"] != "console" or block["how"] == "skip":
            continue
        host = hosts[block["host"]]
        lines = [adapted(line[2:], host) for line in block["text"].splitlines() if line.startswith("$ ")]
        if block["how"] == "background":
            (line,) = lines
            host.start(line)
            port = 8080 if " serve " in line else 8081
            eventually(
                lambda host=host, port=port: answers(host, f"localhost:{port}/readyz"), f"{line} is ready"
            )
        else:
            printed += host.type("\n".join(lines))
    assert "0 failed, 0 warnings" in printed and "completed" in printed, printed
    results = a.type("runuser -u postgres -- psql -d jobs -Atc 'select output from penstock.results'")
    assert results == '"Hello, Ada, from b"\n', "the task ran on the second machine"
    assert not (a.folder / ".penstock").exists() and not (b.folder / ".penstock").exists()
    # Nothing crosses the network without TLS.
    plain = (
        "psql 'host=a.example.org dbname=jobs user=penstock_worker password=WORKER_PASSWORD sslmode=disable'"
    )
    with pytest.raises(AssertionError, match="no encryption"):
        b.type(f"{plain} -c 'select 1'")
