"""Penstock: a multi-tenant job platform on plain PostgreSQL."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.client import AsyncClient, Client
    from penstock.errors import (
        Conflict,
        Forbidden,
        Invalid,
        JobFailed,
        LeaseLost,
        Limited,
        NotFound,
        PenstockError,
        TimedOut,
        Unavailable,
        UpgradeRequired,
    )
    from penstock.guards import Guard
    from penstock.sdk.app import App
    from penstock.sdk.bulk_rows import BulkRow, Change, RowError
    from penstock.sdk.context import Context, Fail, Reschedule, Retry, WaitTimedOut
    from penstock.sdk.functions import FunctionRequest, FunctionResponse
    from penstock.sdk.job_types import Started
    from penstock.sdk.pages import PageAction
    from penstock.sdk.signature import Step
    from penstock.types import Answer, Job, Prompt
    from penstock.worker import Worker

# Modules are imported on first use, so that the command line does not load a worker to print a help text.
_MODULES = {
    "penstock.sdk.app": ("App",),
    "penstock.sdk.functions": ("FunctionRequest", "FunctionResponse"),
    "penstock.sdk.job_types": ("Started",),
    "penstock.sdk.pages": ("PageAction",),
    "penstock.sdk.signature": ("Step",),
    "penstock.sdk.bulk_rows": ("BulkRow", "Change", "RowError"),
    "penstock.client": ("AsyncClient", "Client"),
    "penstock.sdk.context": ("Context", "Fail", "Reschedule", "Retry", "WaitTimedOut"),
    "penstock.errors": (
        "Conflict",
        "Forbidden",
        "Invalid",
        "JobFailed",
        "LeaseLost",
        "Limited",
        "NotFound",
        "PenstockError",
        "TimedOut",
        "Unavailable",
        "UpgradeRequired",
    ),
    "penstock.guards": ("Guard",),
    "penstock.types": ("Answer", "Job", "Prompt"),
    "penstock.worker": ("Worker",),
}

__all__ = [
    "Answer",
    "App",
    "AsyncClient",
    "BulkRow",
    "Change",
    "Client",
    "Conflict",
    "Context",
    "Fail",
    "Forbidden",
    "FunctionRequest",
    "FunctionResponse",
    "Guard",
    "Invalid",
    "Job",
    "JobFailed",
    "LeaseLost",
    "Limited",
    "NotFound",
    "PageAction",
    "PenstockError",
    "Prompt",
    "Reschedule",
    "Retry",
    "RowError",
    "Started",
    "Step",
    "TimedOut",
    "Unavailable",
    "UpgradeRequired",
    "WaitTimedOut",
    "Worker",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
