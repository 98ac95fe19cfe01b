"""`python -m faults.sync_devices --faults 100`: devices, the API and PostgreSQL are killed while devices sync.

Three users have two devices each: processes with a library in a file, which edit notes of their own and rows that
both devices of a user edit, and sync over HTTP. A device writes down each edit of its own notes once the library has
stored it. After the last fault every device syncs again. Then a user's devices and the server must have the same
rows, and the server every edit that was written down. Exits with status 1 otherwise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt

from faults.history import History, read
from faults.server import Postgres, place
from faults.slots import Slot
from faults.sync_histories import differences, new_user
from penstock import server
from penstock.apps.notes.app import app as notes
from penstock.apps.notes.device.http import HttpServer, Offline, ServerError
from penstock.apps.notes.device.store import Store
from penstock.apps.notes.device.sync import sync
from penstock.postgres import db
from penstock.server import ensure_login
from penstock.settings import Settings

USERS = 3
DEVICES = 2
"""Devices of a user."""
OWN_NOTES = 10
"""Notes that only one device edits."""
FAULTS = {"device.killed": 5, "api.killed": 2, "postgres.killed": 2, "backend.killed": 1}
"""How often each happens, beside the others."""
SECRET = "only for the faults, and for nothing else"
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_context = multiprocessing.get_context("forkserver")


def serve(folder: Path, settings: dict[str, Any], port: int) -> None:
    """The API of the notes app, as `penstock serve` runs it."""
    _write_output_to(folder / "api.log")
    notes.use(settings["database_url"])
    server.run(Settings(**settings), server.listen("127.0.0.1", port), app=notes)


def live(folder: Path, name: str, url: str, access: str, seed: int) -> None:
    """Edit and sync until killed."""
    _write_output_to(folder / f"{name}.log")
    chance, history = random.Random(seed), History(folder / f"{name}-{os.getpid()}.jsonl")
    store, wire = open_store(folder, name), HttpServer(url, "", lambda: access, timeout=10)
    while True:
        edit(store, history, name, chance)
        if chance.random() < 0.3:
            try:
                sync(store, wire)
                history.note("synced")
            except Offline:
                history.note("offline")
            except ServerError as error:
                history.note("offline" if error.status in _TRANSIENT else "error", text=str(error))
        time.sleep(chance.uniform(0, 0.05))


def edit(store: Store, history: History, name: str, chance: random.Random) -> None:
    """One edit: of an own note, whose text is the number of its edits, or of a row that both devices edit."""
    what, shared = chance.random(), f"shared{chance.randrange(4)}"
    if what < 0.5:
        id = f"{name}-{chance.randrange(OWN_NOTES)}"
        before = store.get("notes", id)
        number = int(before["text"]) + 1 if before else 1
        store.save("notes", id=id, text=str(number))
        history.note("edited", id=id, number=number)
    elif what < 0.7:
        store.save("books", id="book", title=f"{name} {what}")
        store.save("notes", id=shared, book_id="book", text=f"{name} {what}")
    elif what < 0.8:
        store.delete(*chance.choice((("books", "book"), ("notes", shared))))
    else:
        store.undelete(*chance.choice((("books", "book"), ("notes", shared))))


def open_store(folder: Path, name: str) -> Store:
    """The library of a device."""
    return Store(folder / f"{name}.db")


def _write_output_to(file: Path) -> None:
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


class Run:
    """PostgreSQL, the API and the devices of all users."""

    def __init__(self, folder: Path, major: int, seed: int) -> None:
        self.folder, self.dice, self.happened = folder, random.Random(seed), Counter[str]()
        self.postgres = Postgres(folder / "postgres", major)
        notes.migrate(self.postgres.dsn)
        with db.connect(self.postgres.dsn, name="faults") as conn:
            self.users = [new_user(conn) for _ in range(USERS)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        settings = {
            "database_url": self.postgres.dsn,
            "api_url": ensure_login(self.postgres.dsn),
            "jwt_secret": SECRET,
            "home": folder / "home",
        }
        self.api = Slot("api", lambda: self._start(serve, folder, settings, port))
        self.devices = [
            Slot(name := f"u{user}d{device}", self._device(name, self.users[user]))
            for user in range(USERS)
            for device in range(DEVICES)
        ]

    def _device(self, name: str, user: uuid.UUID) -> Callable[[], Any]:
        return lambda: self._start(
            live, self.folder, name, self.url, token(user), self.dice.randrange(1 << 30)
        )

    def _start(self, target: Callable[..., None], *args: Any) -> Any:
        process = _context.Process(target=target, args=args, daemon=True)
        process.start()
        return process

    def wire(self, device: int) -> HttpServer:
        """The server, as the user of a device."""
        return HttpServer(self.url, "", lambda: token(self.users[device // DEVICES]), timeout=30)

    def start(self) -> None:
        """Start everything."""
        for slot in (self.api, *self.devices):
            slot.process = slot.spawn()
        self.wait_for_api()

    def wait_for_api(self) -> None:
        """Wait until the API answers a device."""
        deadline = time.monotonic() + 120
        while True:
            try:
                self.wire(0).state()
                return
            except (Offline, ServerError) as error:
                if time.monotonic() > deadline:
                    raise RuntimeError("the API does not come back") from error
                time.sleep(0.1)

    def draw(self) -> str:
        """The next fault."""
        return self.dice.choices(list(FAULTS), list(FAULTS.values()))[0]

    def break_something(self, fault: str) -> None:
        """Kill a process. It starts again at once, or after a while without it."""
        self.happened[fault] += 1
        if fault == "backend.killed":
            self.postgres.kill_backend()
        elif fault == "postgres.killed":
            self.postgres.kill()
            time.sleep(self.dice.uniform(0, 1))
            self.postgres.start()
        else:
            slot = self.api if fault == "api.killed" else self.dice.choice(self.devices)
            kill(slot)
            time.sleep(self.dice.uniform(0, 0.5))
            slot.process = slot.spawn()
        if fault != "device.killed":
            self.wait_for_api()
        self._wait_for_syncs(self.dice.randint(1, 5))

    def _wait_for_syncs(self, count: int) -> None:
        """Let devices sync between two faults, however slow the machine is."""
        enough, deadline = self._syncs() + count, time.monotonic() + 60
        while self._syncs() < enough:
            if time.monotonic() > deadline:
                raise RuntimeError("no device can sync")
            time.sleep(0.05)

    def _syncs(self) -> int:
        return sum(line["event"] == "synced" for line in read(self.folder, "u*"))

    def problems(self) -> list[str]:
        """Stop the devices, sync all of them, and return differences, lost edits and errors."""
        for slot in self.devices:
            kill(slot)
        stores = [open_store(self.folder, slot.name) for slot in self.devices]
        try:
            for _ in range(3):
                for number, store in enumerate(stores):
                    sync(store, self.wire(number))
            found = [
                problem
                for number, store in enumerate(stores)
                for problem in differences(self.devices[number].name, store, self.wire(number))
            ]
        finally:
            for store in stores:
                store.close()
        stored = {row["id"]: row["text"] for row in self.postgres.execute("select id, text from notes.notes")}
        edits, lines = dict[str, int](), Counter[str]()
        for line in read(self.folder, "u*"):
            lines[line["event"]] += 1
            if line["event"] == "edited":
                edits[line["id"]] = max(line["number"], edits.get(line["id"], 0))
            elif line["event"] == "error":
                found.append(f"a sync failed: {line['text']}")
        found += [
            f"edit {number} of note {id} is lost: the server has {stored.get(id)}"
            for id, number in edits.items() if int(stored.get(id, "0")) < number
        ]  # fmt: skip
        self.happened.update({f"{event} (lines)": count for event, count in lines.items()})
        return found

    def close(self) -> None:
        """Stop everything."""
        for slot in (*self.devices, self.api):
            kill(slot)
        self.postgres.close()


def kill(slot: Slot) -> None:
    """kill -9 a process, if it runs."""
    if slot.process is not None and slot.process.is_alive():
        slot.signal(signal.SIGKILL)
        slot.process.join()


def token(user: uuid.UUID) -> str:
    """An access token of a user."""
    claims = {"sub": str(user), "role": "authenticated", "aud": "authenticated", "exp": time.time() + 7200}
    return jwt.encode(claims, SECRET, "HS256")


@contextmanager
def running(major: int, seed: int) -> Iterator[Run]:
    """A run on a server of its own."""
    _context.set_forkserver_preload(["faults.sync_histories", "penstock.apps.notes.app", "penstock.server"])
    with place(is_disk_wanted=False) as (folder, _, _):
        made = Run(folder, major, seed)
        try:
            made.start()
            yield made
        finally:
            made.close()


def main() -> int:
    """Run, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m faults.sync_devices", description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--server", type=int, default=18, help="which PostgreSQL: 15 or 18")
    given = parser.parse_args()
    began = time.monotonic()
    with running(given.server, given.seed) as run:
        for _ in range(given.faults):
            run.break_something(run.draw())
        problems = run.problems()
        for problem in problems:
            print(problem)
        print(f"PostgreSQL {given.server}, {USERS * DEVICES} devices of {USERS} users, {given.faults} faults in "
              f"{time.monotonic() - began:.0f} s: {len(problems)} differences or lost edits")  # fmt: skip
        print(*(f"  {what}: {count:,}" for what, count in sorted(run.happened.items())), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
