"""The policy of a kind of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from penstock.formatting import seconds

Starter: TypeAlias = Literal["owner", "admin", "member", "key", "service"]


class KindPolicy(TypedDict, total=False):
    """What the tasks of a kind may use and ask for, and who may start them. The database enforces it."""

    providers: str | Sequence[str] | None
    """The providers it may use. A task that names none gets the first that is open. Empty: none."""
    units: Mapping[str, float] | None
    """The least that a task counts."""
    units_per_kb: Mapping[str, float] | None
    """What each 1,000 bytes of input add to `units`."""
    max_timeout: float | str | None
    """The longest timeout that a task may ask for."""
    attempts_limit: int | None
    """The most attempts that a task may ask for."""
    min_priority: int | None
    """The best (lowest) priority that a task may have."""
    starters: Sequence[Starter] | None
    """Who may start it."""
    raw_tasks: bool | None
    """Whether users may write such tasks themselves, instead of starting job types."""


def declared_policy(policy: KindPolicy) -> dict[str, Any]:
    """The fields of `define_kinds`. None without a policy: the kind keeps what an operator declared."""
    if all(value is None for value in policy.values()):
        return {}
    providers, longest = policy.get("providers"), policy.get("max_timeout")
    units, per_kb, starters = policy.get("units"), policy.get("units_per_kb"), policy.get("starters")
    return {
        "providers": [providers] if isinstance(providers, str) else providers and list(providers),
        "units": units and dict(units),
        "units_per_kb": per_kb and dict(per_kb),
        "max_timeout_seconds": None if longest is None else seconds(longest),
        "attempts_limit": policy.get("attempts_limit"),
        "min_priority": policy.get("min_priority"),
        "starters": starters and list(starters),
        "raw_tasks": policy.get("raw_tasks"),
    }
