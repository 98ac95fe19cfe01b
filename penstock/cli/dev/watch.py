"""Watches the app's source files, and the keys of the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

ENDINGS = (".py", ".sql", ".html", ".typ")
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}
_MAX_FILES = 20_000
POLL_SECONDS = 0.4


class Watcher:
    """Notices changes of source files below a folder since it was made, or since the last changes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._before = snapshot(root)

    async def changed(self) -> list[str]:
        """Wait until files change, and return their names."""
        before, found = self._before, set[str]()
        while True:
            now = await asyncio.to_thread(snapshot, self._root)
            names = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
            found |= names
            before = now
            if found and not names:
                # An editor or a checkout writes several files: this returns once no more change.
                self._before = now
                return sorted(found)
            await asyncio.sleep(POLL_SECONDS)


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """When each source file below a folder was last changed, and its size."""
    found: dict[str, tuple[int, int]] = {}
    for path in _sources(root):
        try:
            state = path.stat()
        except OSError:
            continue  # removed meanwhile
        found[str(path.relative_to(root))] = state.st_mtime_ns, state.st_size
        if len(found) >= _MAX_FILES:
            break
    return found


def _sources(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for name in files:
            if name.endswith(ENDINGS):
                yield Path(folder, name)


@contextmanager
def keys(press: Callable[[str], None]) -> Generator[bool]:
    """Call `press` with each key, without waiting for Enter. False if there is no terminal to read from."""
    if not _is_interactive():
        yield False
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    loop = asyncio.get_running_loop()
    tty.setcbreak(file)
    loop.add_reader(file, lambda: press(os.read(file, 1).decode("ascii", "replace")))
    try:
        yield True
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _is_interactive() -> bool:
    # The system would stop a process in the background that changes the terminal.
    try:
        return sys.stdin.isatty() and sys.stderr.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
