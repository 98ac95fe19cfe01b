"""Penstock: a multi-tenant job platform on plain PostgreSQL."""

__version__ = "0.1.0"

from penstock.app import App, Context, Fail, Reschedule, Retry, Started
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
)
from penstock.types import Job
from penstock.worker import Worker

__all__ = [
    "App",
    "Conflict",
    "Context",
    "Fail",
    "Forbidden",
    "Invalid",
    "Job",
    "JobFailed",
    "LeaseLost",
    "Limited",
    "NotFound",
    "PenstockError",
    "Reschedule",
    "Retry",
    "Started",
    "TimedOut",
    "Unavailable",
    "Worker",
]
