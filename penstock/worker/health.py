"""Health: answers liveness, readiness and drain for a worker, over HTTP, in a file, or to systemd.

It runs in its own thread, so that a handler that blocks the event loop delays no answer. Liveness does not
depend on the database: a restart would not repair it. It fails when the event loop is blocked, because a
worker that is stuck keeps its leases.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any, Literal, TypeAlias

import structlog

from penstock.errors import Conflict, Invalid

log = structlog.get_logger("penstock.worker")

State: TypeAlias = Literal["starting", "running", "draining"]
_STATES: tuple[State, ...] = ("starting", "running", "draining")
_STUCK_SECONDS = 60.0
_WRITE_SECONDS = 1.0


class Pulse:
    """What one worker process says about itself. Its parent process reads it too."""

    def __init__(self) -> None:
        # The event loop's last sign of life, the database's last answer, the state, and the seconds without
        # an answer after which the worker is not ready. Monotonic time is the same in all processes.
        self._values: Any = RawArray("d", 4)
        self.reset()

    def reset(self) -> None:
        """Begin again, for a process that starts or restarts."""
        self._values[:] = [time.monotonic(), 0.0, 0.0, 10.0]

    def tick(self, state: State, answered_at: float, max_silence: float) -> None:
        """Say that the event loop runs, and when the database last answered."""
        self._values[:] = [time.monotonic(), answered_at, float(_STATES.index(state)), max_silence]

    @property
    def state(self) -> State:
        return _STATES[int(self._values[2])]

    def problem_of_liveness(self) -> str | None:
        silent = time.monotonic() - self._values[0]
        return f"the event loop has not run for {silent:.0f} s" if silent > _STUCK_SECONDS else None

    def problem_of_readiness(self) -> str | None:
        if self.state != "running":
            return self.state
        silent = time.monotonic() - self._values[1]
        if silent > self._values[3]:
            return f"the database has not answered for {silent:.0f} s"
        return self.problem_of_liveness()


class Health:
    """Answers for the pulses of one or several worker processes.

    `address` is a port, `host:port`, or the path of a file (with a slash). The file holds a JSON document
    that is replaced every second.
    """

    def __init__(self, address: str | None, pulses: list[Pulse], on_drain: Callable[[], None]) -> None:
        self._pulses, self.on_drain = pulses, on_drain
        self._ended = threading.Event()
        self._file = Path(address) if address and "/" in address else None
        self._systemd = os.environ.pop("NOTIFY_SOCKET", None)
        self._is_ready_told = False
        self._server = _listen(address, self) if address and self._file is None else None
        self.port = self._server.server_address[1] if self._server else None
        """The port it listens on: another one than asked for if that was 0."""
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        if self._server is not None:
            self._begin(self._server.serve_forever)
            log.info("worker.health", port=self.port)
        if self._file is not None or self._systemd is not None:
            self._tell()
            self._begin(self._tell_until_ended)

    def stop(self) -> None:
        self._ended.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        for thread in self._threads:
            thread.join(timeout=2)
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def answer(self) -> dict[str, Any]:
        """Whether all processes are live and ready, and the first problem found."""
        live = [each.problem_of_liveness() for each in self._pulses]
        ready = [each.problem_of_readiness() for each in self._pulses]
        return {
            "live": not any(live),
            "ready": not any(ready),
            "state": max((each.state for each in self._pulses), key=_STATES.index),
            "problem": next((problem for problem in (*live, *ready) if problem), None),
        }

    def _begin(self, act: Callable[[], None]) -> None:
        thread = threading.Thread(target=act, name="health", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _tell_until_ended(self) -> None:
        while not self._ended.wait(_WRITE_SECONDS):
            self._tell()

    def _tell(self) -> None:
        found = self.answer()
        if self._file is not None and found["live"]:
            # Replaced as a whole, so that no reader sees half of it. A probe compares its age.
            written = self._file.with_name(self._file.name + ".new")
            with contextlib.suppress(OSError):
                written.write_text(json.dumps(found) + "\n")
                written.replace(self._file)
        if self._systemd is not None:
            lines = [f"STATUS={found['problem'] or found['state']}"]
            if found["live"]:
                lines.append("WATCHDOG=1")
            if found["ready"] and not self._is_ready_told:
                self._is_ready_told = True
                lines.append("READY=1")
            if found["state"] == "draining":
                lines.append("STOPPING=1")
            _notify(self._systemd, "\n".join(lines))


def _notify(address: str, message: str) -> None:
    """Tell systemd (sd_notify). An address that starts with @ is in the abstract namespace."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    health: Health


def _listen(address: str, health: Health) -> _Server:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdigit() or int(port) > 65535:
        raise Invalid(
            f"--health must be a port, host:port or the path of a file with a slash (got {address!r})",
            code="invalid_health",
        )
    try:
        server = _Server((host or "0.0.0.0", int(port)), _Handler)  # noqa: S104 - probes come from the node
    except OSError as error:
        raise Conflict(
            f"cannot listen on {address}: {error.strerror}",
            code="address_in_use",
            hint="Choose another port.",
        ) from error
    server.health = health
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        found = self.server.health.answer()
        if self.path == "/healthz":
            self._send(200 if found["live"] else 503, found)
        elif self.path == "/readyz":
            self._send(200 if found["ready"] else 503, found)
        else:
            self._send(404, {"problem": "the paths are /healthz, /readyz and POST /drain"})

    def do_POST(self) -> None:
        self.close_connection = True
        if self.path != "/drain":
            self._send(404, {"problem": "the paths are /healthz, /readyz and POST /drain"})
        elif "Origin" in self.headers:
            self._send(403, {"problem": "web pages may not drain the worker"})
        elif not ipaddress.ip_address(self.client_address[0].partition("%")[0]).is_loopback:
            self._send(403, {"problem": "only this machine may drain the worker"})
        else:
            self.server.health.on_drain()
            self._send(202, self.server.health.answer())

    def version_string(self) -> str:
        return "penstock"

    def log_message(self, format: str, *args: Any) -> None:
        """Probes are not logged."""

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
