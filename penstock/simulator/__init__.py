"""Simulated providers for tests: enough of the OpenAI, Anthropic, Google Sheets, CloudConvert, Stripe and
prompt shield APIs for their clients, with the same rate limits, and statistics of violations.

    async with simulator.serve(limits=Limits(rpm=60, tpm=10_000)) as sim:
        client = openai.AsyncOpenAI(base_url=sim.openai_url, api_key="any")
        ...
        assert sim.stats()["violation_count"] == 0

To run it in its own process: `penstock simulate`.
"""

from __future__ import annotations

from penstock.simulator.cloudconvert import CloudConvertServer
from penstock.simulator.cloudconvert_config import CloudConvertConfig, CloudConvertStats
from penstock.simulator.config import Config, Fault
from penstock.simulator.limits import AccountStats, Limits
from penstock.simulator.server import serve
from penstock.simulator.sheets import SheetsConfig, SheetsServer, SheetsStats
from penstock.simulator.shield import ShieldConfig, ShieldServer, ShieldStats
from penstock.simulator.simulator import Simulator, Stats, Violation
from penstock.simulator.stripe import StripeServer

__all__ = [
    "AccountStats",
    "CloudConvertConfig",
    "CloudConvertServer",
    "CloudConvertStats",
    "Config",
    "Fault",
    "Limits",
    "SheetsConfig",
    "SheetsServer",
    "SheetsStats",
    "ShieldConfig",
    "ShieldServer",
    "ShieldStats",
    "Simulator",
    "Stats",
    "StripeServer",
    "Violation",
    "serve",
]
