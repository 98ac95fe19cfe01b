"""requirements.lock pins every package that pyproject.toml asks for, by hash, and names no package index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}")


def pinned() -> dict[str, list[Requirement]]:
    """Name → its pins: several where the version depends on the Python or the platform."""
    found: dict[str, list[Requirement]] = {}
    for line in LOCK.splitlines():
        if line and line[0] not in "# ":
            pin = Requirement(line.removesuffix(" \\"))
            found.setdefault(canonicalize_name(pin.name), []).append(pin)
    return found


def wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = [project["dependencies"], *project["optional-dependencies"].values()]
    asked = [Requirement(text) for texts in every for text in texts]
    return [requirement for requirement in asked if requirement.name != project["name"]]


def test_it_names_no_index_and_no_host() -> None:
    assert not re.search(r"https?:|file:|index|find-links|@", LOCK)


def test_every_package_has_a_version_and_hashes() -> None:
    lines = [line.removesuffix(" \\") for line in LOCK.splitlines() if not line.startswith("#")]
    assert len(pinned()) > 50
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith(" "):
            assert re.match(r"[a-z0-9.-]+(\[[a-z,-]+\])?==\S+( ; .+)?$", line), line
            assert HASH.fullmatch(following), line
        else:
            assert HASH.fullmatch(line), line


def test_it_has_what_pyproject_asks_for() -> None:
    """When this fails, run `make lock`."""
    found = pinned()
    for requirement in wanted():
        pins = found.get(canonicalize_name(requirement.name), [])
        assert pins, f"{requirement.name} is not locked"
        for pin in pins:
            [version] = [specifier.version for specifier in pin.specifier]
            assert requirement.specifier.contains(version), f"{pin} does not satisfy {requirement}"
