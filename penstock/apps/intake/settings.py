"""Settings from environment variables.

`INTAKE_MODEL` and `INTAKE_VISION_MODEL` name the providers of the passes, `INTAKE_URL` the base URL of an
OpenAI-compatible server (default for `simulator/…`: the simulator's). `INTAKE_CLAMD` is the `host:port` of a
clamd that scans every file. `INTAKE_OCR` names a provider that reads scans, `INTAKE_OCR_URL` its address if
that is not its own: it reads the pages that OCR read poorly here, or all with `INTAKE_OCR_PAGES=all`. With
`INTAKE_REDACT=1` no e-mail addresses, phone, card and account numbers leave this machine, and no page images.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from penstock.apps.addresses import SIMULATOR_URL

MODEL = "openai/gpt-4o-mini"
VISION_MODEL = "openai/gpt-4-vision"


class Settings(NamedTuple):
    """The settings of a worker."""

    model: str
    vision_model: str
    url: str | None
    clamd: tuple[str, int] | None
    redacts: bool
    ocr: str | None
    """The provider that reads scans; None: this machine does."""
    ocr_url: str | None
    reads_all_scans_outside: bool


def settings() -> Settings:
    """The current settings."""
    model = os.environ.get("INTAKE_MODEL") or MODEL
    url = os.environ.get("INTAKE_URL") or (SIMULATOR_URL if model.startswith("simulator/") else None)
    host, _, port = os.environ.get("INTAKE_CLAMD", "").rpartition(":")
    clamd = (host, int(port)) if host and port.isdigit() else None
    redacts = os.environ.get("INTAKE_REDACT", "") not in ("", "0", "false")
    ocr = None if redacts else os.environ.get("INTAKE_OCR") or None
    return Settings(
        model,
        os.environ.get("INTAKE_VISION_MODEL") or VISION_MODEL,
        url,
        clamd,
        redacts,
        ocr,
        os.environ.get("INTAKE_OCR_URL") or None,
        reads_all_scans_outside=ocr is not None and os.environ.get("INTAKE_OCR_PAGES") == "all",
    )
