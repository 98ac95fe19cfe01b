"""Completion in bash, zsh and fish: the script that `--show-completion` prints is run by the real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Each shell loads the script and prints the completions of the line in $line.
SHELLS = {
    "bash": """
        eval "$(penstock --show-completion)"
        complete -p penstock > /dev/null || exit 9
        COMP_WORDS=($line) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _penstock_completion penstock
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        compdef() { registered=$2 }
        script="$(penstock --show-completion)"
        eval "$script"
        [[ $registered = penstock ]] || exit 9
        _arguments() { print -r -- "$@" }
        words=(${=line}) CURRENT=$#words
        _penstock_completion
    """,
    "fish": """
        penstock --show-completion | source
        complete -C "$line"
        true
    """,
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("penstock jo", "jobs", "limits"),
        ("penstock jobs st", "start", "show"),
        ("penstock jobs start --wa", "--watch", "--app"),
    ],
)
def test_completion_offers_commands_and_options(
    shell: str, line: str, offered: str, not_offered: str, tmp_path: Path
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "line": line,
    }
    # Without the user's own configuration.
    bare = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [program, *bare, "-c", SHELLS[shell]],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert offered in done.stdout, done.stderr
    assert not_offered not in done.stdout
    assert done.stderr == ""
