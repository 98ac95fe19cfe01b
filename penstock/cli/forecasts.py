"""Forecasts on the command line: job files to read, fields to print."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.text import Text

from penstock.cli import output
from penstock.errors import Invalid
from penstock.types import Forecast


def read_job_file(file: str) -> dict[str, Any]:
    """Read the arguments of `jobs.start` from a file: type, tasks, options."""
    try:
        document = json.loads(Path(file).read_text(encoding="utf-8"))
        options: dict[str, Any] = document.get("options") or {}
        known = {name: options.get(name) for name in ("tenant_id", "budget")}
        if known["budget"] is not None:
            known["budget"] = Decimal(str(known["budget"]))
        return {"type": document["type"], "tasks": document["tasks"], **known}
    except (OSError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise Invalid(
            f"{file} is neither a job id nor a job file: {error!r}",
            code="usage",
            hint='A job file is JSON of the form {"type": "…", "tasks": […], "options": {…}}.',
        ) from error


def forecast_fields(found: Forecast) -> list[tuple[str, str | Text]]:
    """The names and values of a forecast, for printing."""
    cost, finish = found.cost, found.finish
    lines: list[tuple[str, str | Text]] = [
        ("tasks", f"{found.tasks:,}"),
        ("uses", ", ".join(f"{amount:,f} {meter}" for meter, amount in found.units.items())),
        ("cost", f"{output.money(cost.low)} to {output.money(cost.high, cost.currency)}"),
        ("expected", output.money(cost.expected, cost.currency)),
        ("no price", ", ".join(sorted({*cost.unpriced}))),
    ]
    if found.budget is not None:
        fits = "is enough" if found.budget.fits else "may not be enough: the job would pause"
        lines.append(("budget", f"{output.money(found.budget.amount, cost.currency)} {fits}"))
    for line in found.quota:
        fits = "fits" if line.fits else "does not fit"
        lines.append(("quota", f"{line.needs:,f} of {line.left:,f} {line.meter} left: {fits}"))
    if finish.seconds is None:
        lines.append(("ends", f"unknown: {finish.reason}"))
    else:
        until = f"{output.duration(finish.low)} to {output.duration(finish.high)}"
        lines.append(
            ("ends", f"in about {output.duration(finish.seconds)} ({until}), {output.when(finish.at)}")
        )
        lines.append(("slowest", finish.bottleneck or ""))
    return lines
