"""Rate limits of providers: token buckets, requests in flight, and the maximum of any time window.

All times are seconds of the simulator's clock and are passed as arguments, so that nothing here waits.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypedDict

from pydantic import BaseModel, ConfigDict, Field

_Limit = Annotated[int, Field(ge=1, le=10**12, strict=True)] | None

MINUTE, HOUR = 60.0, 3600.0
# A caller that waits exactly for Retry-After must not fail because of rounding.
_CLOSE_ENOUGH = 1e-6


class Limits(BaseModel):
    """Limits of one key for one model. None is unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rpm: _Limit = None
    """Requests per minute."""
    tpm: _Limit = None
    """Tokens per minute, input and output together."""
    itpm: _Limit = None
    """Input tokens per minute."""
    otpm: _Limit = None
    """Output tokens per minute."""
    rph: _Limit = None
    """Requests per hour."""
    tph: _Limit = None
    """Tokens per hour."""
    concurrency: _Limit = None
    """Requests in flight."""


class Amount(NamedTuple):
    """The usage of a request in all units."""

    requests: int
    tokens: int
    input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, input_tokens: int, output_tokens: int) -> Amount:
        """One request with these tokens."""
        return cls(1, input_tokens + output_tokens, input_tokens, output_tokens)


# Limits with a bucket: the index in Amount, and the period in seconds.
_REFILLING: dict[str, tuple[int, float]] = {
    "rpm": (0, MINUTE),
    "tpm": (1, MINUTE),
    "itpm": (2, MINUTE),
    "otpm": (3, MINUTE),
    "rph": (0, HOUR),
    "tph": (1, HOUR),
}


class Bucket:
    """A token bucket that refills continuously."""

    __slots__ = ("at", "level", "limit", "seconds", "which")

    def __init__(self, limit: int, which: int, seconds: float, now: float) -> None:
        self.limit = limit
        self.which = which
        self.seconds = seconds
        self.level = float(limit)
        self.at = now

    def refill(self, now: float) -> None:
        """Refill for the time since the last call."""
        passed = max(0.0, now - self.at)
        self.level = min(self.limit, self.level + passed * self.limit / self.seconds)
        self.at = max(self.at, now)

    def wait(self, amount: float) -> float:
        """Seconds until the amount is available: 0 if it is, infinite if it exceeds the limit."""
        if amount > self.limit:
            return math.inf
        missing = amount - self.level
        return 0.0 if missing <= _CLOSE_ENOUGH else missing * self.seconds / self.limit

    @property
    def remaining(self) -> int:
        """The available amount in whole units."""
        return max(0, math.floor(self.level + _CLOSE_ENOUGH))

    @property
    def seconds_to_full(self) -> float:
        """Seconds until the bucket is full, if nothing is taken."""
        return max(0.0, (self.limit - self.level) * self.seconds / self.limit)


@dataclass(slots=True, eq=False)
class Admission:
    """An admitted request and its counted usage: first the maximum, after its end the actual usage."""

    at: float
    amount: Amount


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected request and the limit it exceeded."""

    limit: str
    allowed: int
    remaining: int
    requested: int
    wait: float
    """Seconds until it would be admitted; infinite if never."""


class Window:
    """The maximum requests and tokens admitted within any period of `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.admissions: deque[Admission] = deque()
        self.tokens = 0
        self.max_requests = 0
        self.max_tokens = 0

    def add(self, admission: Admission) -> None:
        """Count an admitted request."""
        self._forget(admission.at)
        self.admissions.append(admission)
        self.tokens += admission.amount.tokens
        self._look()

    def correct(self, admission: Admission, tokens: int, now: float) -> None:
        """Correct the tokens of a counted request by a difference."""
        self._forget(now)
        if admission.at > now - self.seconds:
            self.tokens += tokens
            self._look()

    def _forget(self, now: float) -> None:
        while self.admissions and self.admissions[0].at <= now - self.seconds:
            self.tokens -= self.admissions.popleft().amount.tokens

    def _look(self) -> None:
        self.max_requests = max(self.max_requests, len(self.admissions))
        self.max_tokens = max(self.max_tokens, self.tokens)


class AccountStats(TypedDict):
    """Usage of one model by one key."""

    provider: str
    model: str
    key: str
    limits: dict[str, int]
    requests: int
    tokens: int
    input_tokens: int
    output_tokens: int
    in_flight: int
    max_concurrency: int
    max_requests_60s: int
    max_tokens_60s: int
    max_requests_3600s: int
    max_tokens_3600s: int
    used: dict[str, float]
    violations: dict[str, int]


class Account:
    """Limits and usage of one model by one key."""

    def __init__(self, provider: str, model: str, key: str, limits: Limits, now: float) -> None:
        self.provider, self.model, self.key = provider, model, key
        self.limits = limits
        self.buckets: dict[str, Bucket] = {}
        self.change(limits, now)
        self.in_flight = self.max_concurrency = 0
        self.total = Amount(0, 0, 0, 0)
        self.minute, self.hour = Window(MINUTE), Window(HOUR)
        self.first: float | None = None
        self.last = now
        self.violations: Counter[str] = Counter()

    def change(self, limits: Limits, now: float) -> None:
        """Set new limits. Buckets keep their level, up to the new limit."""
        self.limits = limits
        old, self.buckets = self.buckets, {}
        for name, (which, seconds) in _REFILLING.items():
            if (limit := getattr(limits, name)) is not None:
                bucket = self.buckets[name] = Bucket(limit, which, seconds, now)
                if name in old:
                    old[name].refill(now)
                    bucket.level = min(bucket.level, old[name].level)

    def admit(self, amount: Amount, now: float) -> Admission | Rejection:
        """Admit a request, or return the limit with the longest wait."""
        if rejection := self._rejection(amount, now):
            self.violations[rejection.limit] += 1
            return rejection
        for bucket in self.buckets.values():
            bucket.level -= amount[bucket.which]
        self.in_flight += 1
        self.max_concurrency = max(self.max_concurrency, self.in_flight)
        admission = Admission(now, amount)
        self.minute.add(admission)
        self.hour.add(admission)
        self._add(amount)
        self.first = now if self.first is None else self.first
        self.last = now
        return admission

    def _rejection(self, amount: Amount, now: float) -> Rejection | None:
        self.refill(now)
        worst: Rejection | None = None
        for name, bucket in self.buckets.items():
            requested = amount[bucket.which]
            wait = bucket.wait(requested)
            if wait > (worst.wait if worst else 0):
                worst = Rejection(name, bucket.limit, bucket.remaining, requested, wait)
        most = self.limits.concurrency
        if worst is None and most is not None and self.in_flight >= most:
            # The end of running requests is unknown, so guess a second.
            return Rejection("concurrency", most, 0, 1, 1.0)
        return worst

    def settle(self, admission: Admission, used: Amount, now: float) -> None:
        """Count the actual usage of a request that has ended."""
        self.refill(now)
        counted = admission.amount
        more = Amount(*(a - b for a, b in zip(used, counted, strict=True)))
        for bucket in self.buckets.values():
            bucket.level = min(bucket.limit, bucket.level - more[bucket.which])
        self.minute.correct(admission, more.tokens, now)
        self.hour.correct(admission, more.tokens, now)
        admission.amount = used
        self._add(more)
        self.in_flight -= 1
        self.last = max(self.last, now)

    def refill(self, now: float) -> None:
        """Refill all buckets."""
        for bucket in self.buckets.values():
            bucket.refill(now)

    def _add(self, amount: Amount) -> None:
        self.total = Amount(*(a + b for a, b in zip(self.total, amount, strict=True)))

    def stats(self, now: float, seconds: float | None = None) -> AccountStats:
        """All statistics. `used` covers the last `seconds`, or the time from the first request to the end of
        the last one."""
        return {
            "provider": self.provider,
            "model": self.model,
            "key": self.key,
            "limits": self.limits.model_dump(exclude_none=True),
            "requests": self.total.requests,
            "tokens": self.total.tokens,
            "input_tokens": self.total.input_tokens,
            "output_tokens": self.total.output_tokens,
            "in_flight": self.in_flight,
            "max_concurrency": self.max_concurrency,
            "max_requests_60s": self.minute.max_requests,
            "max_tokens_60s": self.minute.max_tokens,
            "max_requests_3600s": self.hour.max_requests,
            "max_tokens_3600s": self.hour.max_tokens,
            "used": self._used(now, seconds),
            "violations": dict(self.violations),
        }

    def _used(self, now: float, seconds: float | None) -> dict[str, float]:
        if seconds is None:
            amount = self.total
            period = 0.0 if self.first is None else self.last - self.first
        else:
            recent = [a.amount for a in self.hour.admissions if a.at > now - seconds]
            amount = Amount(*(sum(numbers) for numbers in zip(*recent, strict=True))) if recent else (0,) * 4
            period = seconds
        return {
            # A full bucket may be used at once, so a period shorter than the bucket's would show more than
            # 100 %.
            name: round(amount[bucket.which] * bucket.seconds / bucket.limit / max(period, bucket.seconds), 4)
            for name, bucket in self.buckets.items()
        }
