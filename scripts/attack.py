"""`make attack`: runs the tests of every attack in docs/security.md, and audits the dependencies.

Runs the tests of each attack, prints how many passed, asks pip-audit for known vulnerabilities of the
installed packages, and writes a list of all packages that a release installs (CycloneDX), reproducible for
the same versions.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path

from scripts import docs

ROOT = docs.ROOT
BIN = Path(sys.prefix) / "bin"
LISTED = ROOT / "dist"


def run_tests(files: list[str]) -> dict[str, list[bool]]:
    """Whether each test passed, by the ids of its file, its class and its function."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        environment = {"PENSTOCK_TEST_PG": "contract", **os.environ}
        command = [str(BIN / "pytest"), "-q", "-n", "2", f"--junitxml={report}", *files]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        found: dict[str, list[bool]] = {}
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 (pytest wrote it, for us)
            if case.find("skipped") is not None:
                continue
            passed = case.find("failure") is None and case.find("error") is None
            parts = case.get("classname", "").split(".")
            classes = [part for part in parts if part[:1].isupper()]
            path = "/".join(part for part in parts if part not in classes) + ".py"
            name = path
            found.setdefault(name, []).append(passed)
            for part in (*classes, case.get("name", "").partition("[")[0]):
                name = f"{name}::{part}"
                found.setdefault(name, []).append(passed)
        return found


def audit() -> tuple[str, bool]:
    """The result of pip-audit. An unreachable vulnerability database counts as a failure."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.txt"
        frozen = subprocess.run(
            [BIN / "uv", "pip", "freeze", "--python", sys.executable, "--exclude-editable"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        wanted.write_text(frozen.stdout)
        command = [BIN / "uv", "tool", "run", "pip-audit", "-r", wanted, "--no-deps", "--disable-pip"]
        done = subprocess.run(
            [*command, "--format", "json", "--progress-spinner", "off"],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        return f"pip-audit could not run: {last}", True
    looked = [package for package in packages if "skip_reason" not in package]
    holes = [
        f"{package['name']} {package['version']}: {hole['id']}"
        for package in looked
        for hole in package["vulns"]
    ]
    said = f"pip-audit: {len(looked)} of {len(packages)} packages looked at, {len(holes)} known holes"
    if len(looked) < len(packages):
        said += f"; for {len(packages) - len(looked)} this index has no advisories"
    return "\n  ".join([said, *holes]), not holes


def list_parts() -> str:
    """Install the release into an environment of its own, without development dependencies."""
    LISTED.mkdir(exist_ok=True)
    path = LISTED / f"penstock-{version('penstock')}.cdx.json"
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv/bin/python"
        subprocess.run([BIN / "uv", "venv", "--quiet", Path(folder) / "venv"], check=True)
        subprocess.run([BIN / "uv", "pip", "install", "--quiet", "--python", python, ROOT], check=True)
        subprocess.run(
            [BIN / "uv", "tool", "run", "--from", "cyclonedx-bom", "cyclonedx-py", "environment",
             "--output-reproducible", "--of", "JSON", "-o", path, python],
            check=True, capture_output=True,
        )  # fmt: skip
    count = len(json.loads(path.read_text())["components"])
    return f"{path.relative_to(ROOT)}: {count} parts"


def main() -> int:
    attacks = re.findall(r"^\| (S\d+) \| ([^|]*) \|", (ROOT / "docs/security.md").read_text(), re.M)
    tests = docs.proofs(docs.attack_numbers)
    found = run_tests(
        sorted({name.partition("::")[0] for number, _ in attacks for name in tests.get(number, [])})
    )
    is_well = True
    for number, what in attacks:
        cases = [passed for name in tests.get(number, []) for passed in found.get(name, [])]
        failed = cases.count(False)
        is_well = is_well and not failed and bool(cases or not tests.get(number))
        said = f"{len(cases)} tries, {failed} got through" if cases else "not tried"
        print(f"{number:<4} {said:<28} {what}")
    said, is_clean = audit()
    print(said)
    print(list_parts())
    return 0 if is_well and is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
