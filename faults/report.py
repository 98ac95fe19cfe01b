"""The summary of a run, and its figures in faults/results/latest.json and docs/reliability.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from faults import points
from faults.check import show
from faults.plan import Result, as_dict
from faults.schedule import FAULTS

ROOT = Path(__file__).parent.parent
LATEST = ROOT / "faults/results/latest.json"
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end figures -->"


def table(result: Result) -> str:
    """For people."""
    plan = result.plan
    lines = [
        f"PostgreSQL {result.version}, {plan.tasks:,} tasks, seed {plan.seed}, {sum(result.faults.values())} faults in "
        f"{plan.seconds / 60:.1f} minutes, all done {result.drained_in:.0f} s after the last; {result.seconds:.0f} s in all",
        "",
    ]
    width = max(len(what) for what, _, _ in result.promises)
    lines += [
        f"  {what:<{width}}  {value:>8}  {'ok' if holds else 'WRONG'}"
        for what, value, holds in result.promises
    ]
    lines += [
        "",
        *(
            f"  {name:<{width}}  {value if value is not None else '-':>8}"
            for name, value in result.found.figures.items()
        ),
    ]
    lines += ["", "  fault", *(f"  {FAULTS[name][1]:<{width}}  {result.faults[name]:>8}" for name in FAULTS)]
    lines += [f"  left out: {name}: {why}" for name, why in result.skipped.items()]
    lines += ["", "  point: killed when …"]
    for name, what in points.ALL.items():
        lines.append(f"  {name + ': ' + what:<{width}}  {result.fired[name]:>3} of {result.armed[name]}")
    lines += [
        "",
        "  answer lost after",
        *(f"  {name:<{width}}  {n:>8}" for name, n in sorted(result.lost_answers.items())),
    ]
    for group, sentences in result.found.wrong.items():
        for sentence, rows in sentences.items():
            lines.append(f"\nWRONG ({group}): {sentence}: {len(rows)}\n  {show(rows)}")
    lines += [f"\nWRONG: {text}" for text in result.ended_by_themselves]
    return "\n".join(lines)


def _fired(point: dict[str, int] | None) -> str | None:
    """How often a point was fired; None in a run that did not have it."""
    return f"{point['fired']} of {point['armed']}" if point else None


def save(result: Result) -> None:
    """Keep a run's figures beside those of the other versions of PostgreSQL."""
    kept: list[dict[str, Any]] = json.loads(LATEST.read_text()) if LATEST.exists() else []
    major = result.version.split(".")[0]
    kept = [run for run in kept if run["server"].split(".")[0] != major] + [as_dict(result)]
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(
        json.dumps(sorted(kept, key=lambda run: run["server"]), indent=1, ensure_ascii=False) + "\n"
    )
    write()


def write() -> None:
    """The generated part of docs/reliability.md."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}{figures(json.loads(LATEST.read_text()))}{END}{tail}")


def figures(runs: list[dict[str, Any]]) -> str:
    heads = [f"PostgreSQL {run['server']}" for run in runs]
    lines = ["| promise | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(runs)]

    def row(name: str, values: list[Any]) -> str:
        shown = [
            f"{value:,}" if isinstance(value, int | float) else "–" if value is None else str(value)
            for value in values
        ]
        return f"| {name} | " + " | ".join(shown) + " |"

    names = list(dict.fromkeys(one["what"] for run in runs for one in run["promises"]))
    for name in names:
        found = [next((one for one in run["promises"] if one["what"] == name), None) for run in runs]
        lines.append(
            row(
                name,
                [
                    None if one is None else one["found"] + ("" if one["holds"] else " **wrong**")
                    for one in found
                ],
            )
        )
    lines += ["", "| figure | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(runs)]
    lines.append(row("seed", [str(run["plan"]["seed"]) for run in runs]))
    lines.append(row("minutes of faults", [run["plan"]["seconds"] / 60 for run in runs]))
    lines.append(row("faults", [sum(run["faults"].values()) for run in runs]))
    for name in dict.fromkeys(name for run in runs for name in run["figures"]):
        lines.append(row(name, [run["figures"].get(name) for run in runs]))
    lines += ["", "| fault | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(runs)]
    lines += [
        row(text, [run["skipped"].get(name, run["faults"].get(name, 0)) for run in runs])
        for name, (_, text) in FAULTS.items()
    ]
    lines += [
        "",
        "| point: killed when … (fired of armed) | " + " | ".join(heads) + " |",
        "|---|" + "---:|" * len(runs),
    ]
    for name, text in points.ALL.items():
        lines.append(
            row(
                f"`{name}` {text}",
                [_fired(run["points"].get(name)) for run in runs],
            )
        )
    lines += ["", "| answer lost after | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(runs)]
    for name in dict.fromkeys(name for run in runs for name in run["lost_answers"]):
        lines.append(row(f"`{name}`", [run["lost_answers"].get(name, 0) for run in runs]))
    return "\n".join(lines) + "\n"
