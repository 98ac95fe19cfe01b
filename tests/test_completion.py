"""Completion in bash, zsh and fish: the script that `--show-completion` prints is run by the real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Each shell loads the script, and prints the completions of each line of $lines after the line itself.
SHELLS = {
    "bash": """
        eval "$(penstock --show-completion)"
        complete -p penstock > /dev/null || exit 9
        while read -r line; do
            COMP_WORDS=($line) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _penstock_completion penstock
            printf '%s\\n' "= $line" "${COMPREPLY[@]}"
        done <<< "$lines"
    """,
    "zsh": """
        compdef() { registered=$2 }
        script="$(penstock --show-completion)"
        eval "$script"
        [[ $registered = penstock ]] || exit 9
        _arguments() { print -r -- "$@" }
        for line in ${(f)lines}; do
            print -r -- "= $line"
            words=(${=line}) CURRENT=$#words
            _penstock_completion
        done
    """,
    "fish": """
        penstock --show-completion | source
        for line in (string split \\n -- $lines)
            echo "= $line"
            complete -C "$line"
        end
        true
    """,
}
# A line, an offered word, and one that is not offered.
LINES = [
    ("penstock jo", "jobs", "limits"),
    ("penstock jobs st", "start", "show"),
    ("penstock jobs start --wa", "--watch", "--app"),
]


@pytest.mark.parametrize(
    "shell", ["bash", *(pytest.param(shell, marks=pytest.mark.slow) for shell in ("zsh", "fish"))]
)
def test_completion_offers_commands_and_options(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    environment = {
        **{name: os.environ[name] for name in ("PYTHONPYCACHEPREFIX",) if name in os.environ},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "lines": "\n".join(line for line, *_ in LINES),
    }
    # Without the user's own configuration.
    bare = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [program, *bare, "-c", SHELLS[shell]],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    printed = dict(part.split("\n", 1) for part in f"\n{done.stdout}".split("\n= ")[1:])
    for line, offered, not_offered in LINES:
        assert offered in printed[line] and not_offered not in printed[line], done.stdout
