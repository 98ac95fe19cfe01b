"""`make attack`: runs the tests of every attack in docs/security.md, and audits the dependencies.

Runs the tests of each attack, prints how many passed, asks pip-audit for known vulnerabilities of the
installed packages, and writes a list of all packages that a release installs (CycloneDX), reproducible for
the same versions.

It fails when an attack got through, and also when a check could not run: pytest broke, an attack has no test,
a test was skipped, pip-audit gave no answer. An index that has no advisories for a package is not a failure:
the output says which packages nobody looked at. `PENSTOCK_REQUIRE_ADVISORIES=1`, for releases, makes it one.

CI has just run most of these tests: `--report FILE` (a JUnit report of `make test`) counts them and runs only
the others, and leaves the list of packages out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scripts import docs

ROOT = docs.ROOT
BIN = Path(sys.prefix) / "bin"
LISTED = ROOT / "dist"
UNTESTED = {"S8": "response times are not measured"}
"""Attacks without a test, and why."""
# pytest's exit codes: all passed, some failed.
RAN = (0, 1)

Cases = dict[str, list[bool]]
"""Whether each run of a test passed, by the ids of its file, its class and its function."""


@dataclass(frozen=True)
class Verdict:
    """The result of one check, and whether it counts as a success."""

    text: str
    is_good: bool


def read_report(path: Path) -> Cases:
    """The cases of a JUnit report. A skipped test did not run, so it is not among them."""
    found: Cases = {}
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 (pytest wrote it, for us)
        if case.find("skipped") is not None:
            continue
        passed = case.find("failure") is None and case.find("error") is None
        parts = case.get("classname", "").split(".")
        classes = [part for part in parts if part[:1].isupper()]
        name = "/".join(part for part in parts if part not in classes) + ".py"
        found.setdefault(name, []).append(passed)
        for part in (*classes, case.get("name", "").partition("[")[0]):
            name = f"{name}::{part}"
            found.setdefault(name, []).append(passed)
    return found


def run_tests(names: list[str]) -> tuple[Cases, Verdict]:
    """Run these tests; returns their cases, and whether pytest itself worked."""
    if not names:
        return {}, Verdict("", True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        environment = {"PENSTOCK_TEST_PG": "contract", **os.environ}
        reruns = os.environ.get("PENSTOCK_TEST_RERUNS", "0")
        command = [str(BIN / "pytest"), "-q", "-n", "2", "--reruns", reruns, f"--junitxml={report}", *names]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code not in RAN or not report.exists():
            return {}, Verdict(f"pytest could not run the tests (exit code {code})", False)
        return read_report(report), Verdict("", True)


def judge(number: str, what: str, tests: list[str], cases: Mapping[str, list[bool]]) -> Verdict:
    """The line of one attack. It failed if it got through, or if one of its tests did not run."""
    found = [passed for name in tests for passed in cases.get(name, [])]
    missing = [name for name in tests if not cases.get(name)]
    if number in UNTESTED:
        said, is_good = f"not tried: {UNTESTED[number]}", not tests
    elif not tests:
        said, is_good = "NO TEST", False
    elif missing:
        said, is_good = f"DID NOT RUN: {', '.join(missing)}", False
    else:
        said, is_good = f"{len(found)} tries, {found.count(False)} got through", all(found)
    return Verdict(f"{number:<4} {said:<28} {what}", is_good)


def audit() -> Verdict:
    """Ask pip-audit for known vulnerabilities of the installed packages."""
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
    return read_audit(done.stdout, done.stderr, os.environ.get("PENSTOCK_REQUIRE_ADVISORIES") == "1")


def read_audit(output: str, errors: str, is_strict: bool) -> Verdict:
    """Tell apart: known vulnerabilities, no answer, and packages that the index has no advisories for."""
    try:
        packages: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        last = (errors.strip().splitlines() or ["no answer"])[-1]
        return Verdict(f"pip-audit COULD NOT RUN: {last}", False)
    if not packages:
        return Verdict("pip-audit COULD NOT RUN: it found no packages", False)
    looked = [package for package in packages if "skip_reason" not in package]
    known = [
        f"{package['name']} {package['version']}: {hole['id']}"
        for package in looked
        for hole in package["vulns"]
    ]
    lines = [
        f"pip-audit: {len(looked)} of {len(packages)} packages looked at, {len(known)} known holes",
        *known,
    ]
    skipped = sorted(package["name"] for package in packages if "skip_reason" in package)
    if skipped:
        more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        lines.append(f"NOT LOOKED AT, the index has no advisories for: {', '.join(skipped[:5])}{more}")
    return Verdict("\n  ".join(lines), not known and not (skipped and is_strict))


def list_parts() -> Verdict:
    """Install the release into an environment of its own, without development dependencies."""
    LISTED.mkdir(exist_ok=True)
    path = LISTED / f"penstock-{version('penstock')}.cdx.json"
    try:
        with tempfile.TemporaryDirectory() as folder:
            python = Path(folder) / "venv/bin/python"
            subprocess.run([BIN / "uv", "venv", "--quiet", Path(folder) / "venv"], check=True)
            subprocess.run([BIN / "uv", "pip", "install", "--quiet", "--python", python, ROOT], check=True)
            subprocess.run(
                [BIN / "uv", "tool", "run", "--from", "cyclonedx-bom", "cyclonedx-py", "environment",
                 "--output-reproducible", "--of", "JSON", "-o", path, python],
                check=True, capture_output=True,
            )  # fmt: skip
    except subprocess.CalledProcessError as error:
        return Verdict(f"the list of packages COULD NOT BE MADE: {error}", False)
    count = len(json.loads(path.read_text())["components"])
    return Verdict(f"{path.relative_to(ROOT)}: {count} parts", True)


def attacks() -> list[tuple[str, str]]:
    """Number and description of each attack in the table."""
    return re.findall(r"^\| (S\d+) \| ([^|]*) \|", (ROOT / "docs/security.md").read_text(), re.M)


def merged(reports: Iterable[Cases]) -> Cases:
    found: Cases = {}
    for report in reports:
        for name, cases in report.items():
            found.setdefault(name, []).extend(cases)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make attack")
    parser.add_argument("--report", type=Path, action="append", default=[], help="a report of `make test`")
    options = parser.parse_args(arguments)
    tests = docs.proofs(docs.attack_numbers)
    wanted = {number: (what, tests.get(number, [])) for number, what in attacks()}
    earlier = merged(read_report(path) for path in options.report)
    names = {name for _, named in wanted.values() for name in named}
    found, worked = run_tests(sorted(name for name in names if not earlier.get(name)))
    cases = merged([earlier, found])
    verdicts = [worked, *(judge(number, *line, cases) for number, line in wanted.items()), audit()]
    if not options.report:
        verdicts.append(list_parts())
    for verdict in verdicts:
        if verdict.text:
            print(verdict.text if verdict.is_good else f"FAILED  {verdict.text}")
    return 0 if all(verdict.is_good for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
