"""What a provider counts: buckets that refill, requests in flight, and the most that any window ever held.

All times are seconds of the simulator's own clock and are passed in, so that nothing here waits.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypedDict

from pydantic import BaseModel, ConfigDict, Field

_Limit = Annotated[int, Field(ge=1, le=10**12, strict=True)] | None

MINUTE, HOUR = 60.0, 3600.0
# A caller that waits exactly as long as it was told must not fail by a rounding error.
_CLOSE_ENOUGH = 1e-6


class Limits(BaseModel):
    """What one key may use of one model. Nothing is limited that has no number."""

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
    """What a request uses, in all that is counted."""

    requests: int
    tokens: int
    input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, input_tokens: int, output_tokens: int) -> Amount:
        """One request with so many tokens."""
        return cls(1, input_tokens + output_tokens, input_tokens, output_tokens)


# The limits that refill: which number of an amount each counts, and per how many seconds.
_REFILLING: dict[str, tuple[int, float]] = {
    "rpm": (0, MINUTE),
    "tpm": (1, MINUTE),
    "itpm": (2, MINUTE),
    "otpm": (3, MINUTE),
    "rph": (0, HOUR),
    "tph": (1, HOUR),
}


class Bucket:
    """A limit that refills continuously, up to itself."""

    __slots__ = ("at", "level", "limit", "seconds", "which")

    def __init__(self, limit: int, which: int, seconds: float, now: float) -> None:
        self.limit = limit
        self.which = which
        self.seconds = seconds
        self.level = float(limit)
        self.at = now

    def refill(self, now: float) -> None:
        """Add what has come since the last time."""
        passed = max(0.0, now - self.at)
        self.level = min(self.limit, self.level + passed * self.limit / self.seconds)
        self.at = max(self.at, now)

    def wait(self, amount: float) -> float:
        """Seconds until so much is there: none if it is, infinitely many if it never will be."""
        if amount > self.limit:
            return math.inf
        missing = amount - self.level
        return 0.0 if missing <= _CLOSE_ENOUGH else missing * self.seconds / self.limit

    @property
    def remaining(self) -> int:
        """What is there, in whole units."""
        return max(0, math.floor(self.level + _CLOSE_ENOUGH))

    @property
    def seconds_to_full(self) -> float:
        """Seconds until it is full again, if nothing is taken."""
        return max(0.0, (self.limit - self.level) * self.seconds / self.limit)


@dataclass(slots=True, eq=False)
class Admission:
    """A request that was let in, and what it is counted as: the most it can use, in the end what it did."""

    at: float
    amount: Amount


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not let in, and by which limit."""

    limit: str
    allowed: int
    remaining: int
    requested: int
    wait: float
    """Seconds until it would be let in; infinite if it never will be."""


class Window:
    """The most requests and tokens that were admitted within any stretch of so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.admissions: deque[Admission] = deque()
        self.tokens = 0
        self.max_requests = 0
        self.max_tokens = 0

    def add(self, admission: Admission) -> None:
        """Count one that has just been admitted."""
        self._forget(admission.at)
        self.admissions.append(admission)
        self.tokens += admission.amount.tokens
        self._look()

    def correct(self, admission: Admission, tokens: int, now: float) -> None:
        """Count one with so many tokens more, or fewer, than before."""
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
    """What one key has used of one model."""

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
    """One key's use of one model of one provider."""

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
        """Other limits from now on. What is left of the old ones stays, as far as it fits."""
        self.limits = limits
        old, self.buckets = self.buckets, {}
        for name, (which, seconds) in _REFILLING.items():
            if (limit := getattr(limits, name)) is not None:
                bucket = self.buckets[name] = Bucket(limit, which, seconds, now)
                if name in old:
                    old[name].refill(now)
                    bucket.level = min(bucket.level, old[name].level)

    def admit(self, amount: Amount, now: float) -> Admission | Refusal:
        """Let a request in, or say which limit it would exceed for longest."""
        if refusal := self._refusal(amount, now):
            self.violations[refusal.limit] += 1
            return refusal
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

    def _refusal(self, amount: Amount, now: float) -> Refusal | None:
        self.refill(now)
        worst: Refusal | None = None
        for name, bucket in self.buckets.items():
            requested = amount[bucket.which]
            wait = bucket.wait(requested)
            if wait > (worst.wait if worst else 0):
                worst = Refusal(name, bucket.limit, bucket.remaining, requested, wait)
        most = self.limits.concurrency
        if worst is None and most is not None and self.in_flight >= most:
            # Nobody knows when one of them ends; a second is a fair guess.
            return Refusal("concurrency", most, 0, 1, 1.0)
        return worst

    def settle(self, admission: Admission, used: Amount, now: float) -> None:
        """The request has ended, and has used this."""
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
        """Bring all buckets up to date."""
        for bucket in self.buckets.values():
            bucket.refill(now)

    def _add(self, amount: Amount) -> None:
        self.total = Amount(*(a + b for a, b in zip(self.total, amount, strict=True)))

    def stats(self, now: float, seconds: float | None = None) -> AccountStats:
        """All numbers; `used` is of the last so many seconds, or of the time from the first request to the
        last one's end."""
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
            # A full bucket may be used at once: in less than its own time more than all would be no news.
            name: round(amount[bucket.which] * bucket.seconds / bucket.limit / max(period, bucket.seconds), 4)
            for name, bucket in self.buckets.items()
        }
