"""Mutation tests: puts each bug and hole of tests/seeded.toml into a copy; the named test must fail.

`python scripts/seeded.py` runs all of them and prints how many were caught. Arguments select those whose name
contains one of them. `PENSTOCK_TEST_JOBS` is the number of bugs that are tried at the same time (default 2),
each in a copy of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
FAILED = 1
"""The exit code of pytest when tests failed; any other code is an error."""

UNUSABLE = ("FAILED", "ERROR", "SKIPPED")
"""How pytest's summary marks a test that proves nothing: it has to pass where no bug is planted."""


def main(wanted: list[str]) -> int:
    seeds = [
        {**seed, "sort": sort}
        for sort, seeds in tomllib.loads((ROOT / "tests/seeded.toml").read_text()).items()
        for seed in seeds
        if not wanted or any(word in seed["name"] for word in wanted)
    ]
    if not seeds:
        print(f"no bug or hole has a name that contains {' or '.join(wanted)}", file=sys.stderr)
        return 2
    jobs = int(os.environ.get("PENSTOCK_TEST_JOBS") or 2)
    with ExitStack() as stack:
        trees: SimpleQueue[Path] = SimpleQueue()
        for _ in range(jobs):
            trees.put(stack.enter_context(copied()))
        if not all_pass(trees, seeds, jobs):
            return 1
        caught: dict[str, list[bool]] = {}
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        for seed, is_caught in pool.map(lambda seed: (seed, catches(trees, seed)), seeds):
            caught.setdefault(seed["sort"], []).append(is_caught)
            print(f"{'caught' if is_caught else 'MISSED':<7} {seed['sort']:<5} {seed['name']}", flush=True)
    for sort, verdicts in caught.items():
        print(f"{sort}s caught: {sum(verdicts)} of {len(verdicts)} ({sum(verdicts) / len(verdicts):.0%})")
    return 0 if all(all(verdicts) for verdicts in caught.values()) else 1


def all_pass(trees: SimpleQueue[Path], seeds: list[dict[str, Any]], jobs: int) -> bool:
    """Whether the named tests pass where no bug is planted; prints those that do not."""
    tree = trees.get()
    sound = run(tree, sorted({seed["caught_by"] for seed in seeds}), "-n", str(jobs), "-rfEs")
    trees.put(tree)
    unusable = [line for line in sound.stdout.splitlines() if line.startswith(UNUSABLE)]
    if sound.returncode or unusable:
        print("These tests do not pass without a bug planted: fix them first.", file=sys.stderr)
        print(*(unusable or [sound.stdout[-4000:], sound.stderr[-4000:]]), sep="\n", file=sys.stderr)
        return False
    return True


def catches(trees: SimpleQueue[Path], seed: dict[str, Any]) -> bool:
    """Whether the named test fails where the bug is planted, in a copy that nothing else uses meanwhile."""
    tree = trees.get()
    try:
        with planted(tree, seed):
            found = run(tree, [seed["caught_by"]], "-x", "-rfE")
            # An error outside of the test, such as SQL that does not parse, proves nothing about it.
            is_error = any(line.startswith("ERROR") for line in found.stdout.splitlines())
            return found.returncode == FAILED and not is_error
    finally:
        trees.put(tree)


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree: the package is copied, everything else is a link."""
    with tempfile.TemporaryDirectory(prefix="penstock-seeded-") as folder:
        tree = Path(folder)
        for entry in ROOT.iterdir():
            if entry.name not in ("penstock", ".git", ".venv", ".pytest_cache"):
                (tree / entry.name).symlink_to(entry)
        shutil.copytree(ROOT / "penstock", tree / "penstock")
        yield tree


@contextmanager
def planted(tree: Path, seed: dict[str, Any]) -> Iterator[None]:
    """Puts a bug into a copy, and takes it out again."""
    file = tree / seed["file"]
    text = file.read_text()
    if text.count(seed["find"]) != 1:
        raise SystemExit(f"{seed['name']}: its text `find` is not in {seed['file']}, or more than once")
    file.write_text(text.replace(seed["find"], seed["replace"]))
    try:
        yield
    finally:
        file.write_text(text)


def run(tree: Path, tests: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run these tests in a tree."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    # Compiled modules are kept beside the copy, so that each run compiles the changed module only.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(tree / ".compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("word", nargs="*", help="only the bugs and holes whose name contains one of these")
    sys.exit(main(parser.parse_args().word))
