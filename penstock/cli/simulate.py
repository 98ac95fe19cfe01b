"""`penstock simulate`: simulated providers for tests."""

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

FaultsOption = Annotated[
    str,
    typer.Option(
        metavar="FAULT=SHARE,…",
        help="Share of requests that fail, such as 429=0.01,500=0.01,529=0.005,timeout=0.002",
    ),
]
SheetsFaultsOption = Annotated[
    str,
    typer.Option(
        metavar="FAULT=SHARE,…",
        help="Share of Sheets requests that fail, such as 429=0.1,500=0.01,timeout=0.01",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "simulate", rich_help_panel="Run")(simulate)


def simulate(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")] = 0,
    speed: Annotated[float, typer.Option(help="Clock speed relative to real time.")] = 1,
    limits: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="JSON file with limits by model.")
    ] = None,
    rpm: Annotated[int | None, typer.Option(min=1, help="Requests per minute, per model.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, help="Tokens per minute, per model.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Concurrent requests, per model.")] = None,
    latency: Annotated[str, typer.Option(metavar="FROM..TO", help="Response time in seconds.")] = "0.2..0.8",
    seed: Annotated[int, typer.Option(help="Random seed of answers, latency and faults.")] = 0,
    faults: FaultsOption = "",
    quota_exhausted_after: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Report an exhausted quota after N requests per key."),
    ] = None,
    sheet: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", show_default=False, help="CSV file to serve as a spreadsheet. Repeatable."
        ),
    ] = None,
    sheets_faults: SheetsFaultsOption = "",
    cloudconvert_faults: Annotated[
        str, typer.Option(metavar="FAULT=SHARE,…", help="Share of lost, doubled, early or late webhooks.")
    ] = "",
    stripe_webhook: Annotated[
        str | None,
        typer.Option(metavar="URL", show_default=False, help="Where to send Stripe's webhooks."),
    ] = None,
    credentials: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write a Sheets service account to this file."),
    ] = None,
) -> int:
    """Simulate OpenAI, Anthropic, Google Sheets, CloudConvert, Stripe and a prompt shield until stopped."""
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
        "cloudconvert": {"webhook_faults": _faults(cloudconvert_faults), "latency": _latency(latency)},
    }
    asyncio.run(_serve(how, sheet or [], credentials, stripe_webhook))
    return 0


def _limits(path: Path | None, rpm: int | None, tpm: int | None, concurrency: int | None) -> Any:
    given = {"rpm": rpm, "tpm": tpm, "concurrency": concurrency}
    if path is None:
        return {"default": given}
    if any(given.values()):
        raise Invalid("--limits cannot be combined with --rpm, --tpm or --concurrency")
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot read limits from {path}: {error}") from error


def _latency(text: str) -> tuple[float, float]:
    low, _, high = text.partition("..")
    try:
        return float(low), float(high or low)
    except ValueError as error:
        raise Invalid(f"invalid latency {text!r}", hint="Use a form such as 0.5 or 0.2..0.8.") from error


def _faults(text: str) -> dict[str, float]:
    try:
        return {
            name.strip(): float(share)
            for name, _, share in (fault.partition("=") for fault in text.split(",") if fault.strip())
        }
    except ValueError as error:
        raise Invalid(
            f"invalid faults {text!r}", hint="Use a form such as 429=0.01,timeout=0.002."
        ) from error


def _lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(file)
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot read sheet {path}: {error}") from error


def _keep(path: Path, account: dict[str, Any]) -> None:
    try:
        path.touch(mode=0o600)
        path.write_text(json.dumps(account))
    except OSError as error:
        raise Invalid(f"cannot write the service account to {path}: {error}") from error


async def _serve(
    how: dict[str, Any], sheets: list[Path], credentials: Path | None, stripe_webhook: str | None
) -> None:
    # Imported here because few commands need a web server.
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
            "cloudconvert_url": running.cloudconvert_url,
            "cloudconvert_secret": running.cloudconvert.secret,
            "stripe_url": running.stripe_url,
            "stripe_webhook_secret": running.stripe.secret,
            "shield_url": running.shield_url,
            "telemetry_url": running.url,
            "control_url": running.control_url,
        }
        output.document(urls, lambda: print(_line(urls)))
        sys.stdout.flush()  # a program that reads the URLs from a pipe waits for them
        running.stripe.webhook_url = stripe_webhook
        sending = asyncio.create_task(running.stripe.run())
        await stopping.wait()
        sending.cancel()


def _line(urls: dict[str, str]) -> str:
    names = {"OpenAI": "openai_url", "Anthropic": "anthropic_url", "Sheets": "sheets_url"}
    names |= {"CloudConvert": "cloudconvert_url", "Stripe": "stripe_url"}
    return "  ".join(f"{name}: {urls[key]}" for name, key in names.items())
