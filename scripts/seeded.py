"""Mutation tests: puts each bug and hole of tests/seeded.toml into a copy; the named test must fail.

`python scripts/seeded.py` runs all of them and prints how many were caught. Arguments select those whose name
contains one of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FAILED = 1
"""The exit code of pytest when tests failed; any other code is an error."""


def main(wanted: list[str]) -> int:
    seeds = [
        {**seed, "sort": sort}
        for sort, seeds in tomllib.loads((ROOT / "tests/seeded.toml").read_text()).items()
        for seed in seeds
        if not wanted or any(word in seed["name"] for word in wanted)
    ]
    with planted(None) as tree:
        # A test that fails without the bug proves nothing.
        sound = run(tree, sorted({seed["caught_by"] for seed in seeds}))
    if sound:
        print("The tests fail without any bug planted: fix them first.", file=sys.stderr)
        return 1
    caught: dict[str, list[bool]] = {}
    for seed in seeds:
        with planted(seed) as tree:
            is_caught = run(tree, [seed["caught_by"]]) == FAILED
        caught.setdefault(seed["sort"], []).append(is_caught)
        print(f"{'caught' if is_caught else 'MISSED':<7} {seed['sort']:<5} {seed['name']}", flush=True)
    for sort, verdicts in caught.items():
        print(f"{sort}s caught: {sum(verdicts)} of {len(verdicts)} ({sum(verdicts) / len(verdicts):.0%})")
    return 0 if all(all(verdicts) for verdicts in caught.values()) else 1


class planted:
    """A copy of the tree with a seed in it: the package is copied, everything else is a link."""

    def __init__(self, seed: dict[str, Any] | None) -> None:
        self._seed = seed
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-seeded-")

    def __enter__(self) -> Path:
        tree = Path(self._folder.name)
        for entry in ROOT.iterdir():
            if entry.name not in ("penstock", ".git", ".venv", ".pytest_cache"):
                (tree / entry.name).symlink_to(entry)
        shutil.copytree(ROOT / "penstock", tree / "penstock")
        if self._seed:
            file = tree / self._seed["file"]
            text = file.read_text()
            if text.count(self._seed["find"]) != 1:
                raise SystemExit(
                    f"{self._seed['name']}: its text `find` is not in {self._seed['file']}, or more than once"
                )
            file.write_text(text.replace(self._seed["find"], self._seed["replace"]))
        return tree

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def run(tree: Path, tests: list[str]) -> int:
    """The exit code of pytest for these tests in a tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
