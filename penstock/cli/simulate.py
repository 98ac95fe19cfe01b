"""`penstock simulate`: a provider to test against."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.options import command
from penstock.errors import Invalid


def add_to(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "simulate", rich_help_panel="Run")(simulate)


def simulate(
    host: Annotated[str, typer.Option(help="An address of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 0,
    speed: Annotated[float, typer.Option(help="How many times as fast as the wall its clock runs.")] = 1,
    limits: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Limits by model, as JSON.")
    ] = None,
    rpm: Annotated[int | None, typer.Option(min=1, help="Requests per minute, for each model.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, help="Tokens per minute, for each model.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests in flight, for each model.")
    ] = None,
    latency: Annotated[
        str, typer.Option(metavar="FROM..TO", help="Seconds that each request takes.")
    ] = "0.2..0.8",
    seed: Annotated[int, typer.Option(help="Answers, latency and faults depend on it.")] = 0,
    faults: Annotated[
        str, typer.Option(metavar="FAULT=SHARE,…", help="Such as 429=0.01,500=0.01,529=0.005,timeout=0.002")
    ] = "",
    quota_exhausted_after: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="No key can pay for more requests than these.")
    ] = None,
    sheet: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", show_default=False, help="A CSV file as a spreadsheet with its name."),
    ] = None,
    sheets_faults: Annotated[
        str, typer.Option(metavar="FAULT=SHARE,…", help="Of the Sheets server: 429=0.1,500=0.01,timeout=0.01")
    ] = "",
    credentials: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write a service account for Sheets there."),
    ] = None,
) -> int:
    """Simulate OpenAI, Anthropic and Google Sheets on this machine, with their limits, until stopped."""
    how = {
        "host": host,
        "port": port,
        "speed": speed,
        "limits": _limits(limits, rpm, tpm, concurrency),
        "latency": _latency(latency),
        "seed": seed,
        "faults": _faults(faults),
        "quota_exhausted_after": quota_exhausted_after,
        "sheets": {"faults": _faults(sheets_faults), "latency": _latency(latency)},
    }
    asyncio.run(_serve(how, sheet or [], credentials))
    return 0


def _limits(path: Path | None, rpm: int | None, tpm: int | None, concurrency: int | None) -> Any:
    given = {"rpm": rpm, "tpm": tpm, "concurrency": concurrency}
    if path is None:
        return {"default": given}
    if any(given.values()):
        raise Invalid("--limits says all limits: --rpm, --tpm and --concurrency do not go with it.")
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Invalid(f"The limits in {path} cannot be read: {error}") from error


def _latency(text: str) -> tuple[float, float]:
    low, _, high = text.partition("..")
    try:
        return float(low), float(high or low)
    except ValueError as error:
        raise Invalid(f"{text!r} is no latency.", hint="Write 0.5, or 0.2..0.8.") from error


def _faults(text: str) -> dict[str, float]:
    try:
        return {
            name.strip(): float(share)
            for name, _, share in (fault.partition("=") for fault in text.split(",") if fault.strip())
        }
    except ValueError as error:
        raise Invalid(f"{text!r} are no faults.", hint="Write 429=0.01,timeout=0.002.") from error


def _lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(file)
    except (OSError, ValueError) as error:
        raise Invalid(f"The sheet in {path} cannot be read: {error}") from error


def _keep(path: Path, account: dict[str, Any]) -> None:
    try:
        path.touch(mode=0o600)
        path.write_text(json.dumps(account))
    except OSError as error:
        raise Invalid(f"The service account cannot be written to {path}: {error}") from error


async def _serve(how: dict[str, Any], sheets: list[Path], credentials: Path | None) -> None:
    # Not at the top: no other command needs a web server.
    from penstock import simulator

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with simulator.serve(**how) as running:
        for path in sheets:
            running.sheets.load(path.stem, _lines(path))
        if credentials is not None:
            _keep(credentials, running.sheets.service_account())
        urls = {
            "openai_url": running.openai_url,
            "anthropic_url": running.anthropic_url,
            "sheets_url": running.sheets_url,
            "control_url": running.control_url,
        }
        output.document(urls, lambda: print(_line(urls)))
        sys.stdout.flush()  # whoever reads it from a pipe waits for it
        await stopping.wait()


def _line(urls: dict[str, str]) -> str:
    return f"OpenAI: {urls['openai_url']}  Anthropic: {urls['anthropic_url']}  Sheets: {urls['sheets_url']}"
