"""The outcome of a delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Outcome:
    """`retry` is tried again later, `failed` is not, `gone` also disables the target."""

    result: Literal["sent", "retry", "failed", "gone"]
    error: str | None = None


SENT = Outcome("sent")
