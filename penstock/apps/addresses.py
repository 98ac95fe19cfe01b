"""Addresses that the apps share."""

from __future__ import annotations

SIMULATOR_URL = "http://127.0.0.1:8090/v1"
"""The URL of `penstock simulate --port 8090`."""
