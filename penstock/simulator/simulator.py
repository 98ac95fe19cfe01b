"""The simulator without HTTP: admission of requests and statistics."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, TypedDict

from penstock.simulator import tokens
from penstock.simulator.cloudconvert import CloudConvertServer
from penstock.simulator.cloudconvert_config import CloudConvertStats
from penstock.simulator.config import FAULTS, Config, Fault, read
from penstock.simulator.limits import HOUR, Account, AccountStats, Admission, Amount, Rejection
from penstock.simulator.media import MediaServer
from penstock.simulator.posthog import TelemetrySink
from penstock.simulator.provider import Behavior, Problem, Provider, Reply
from penstock.simulator.sheets import SheetsServer, SheetsStats
from penstock.simulator.shield import ShieldServer, ShieldStats
from penstock.simulator.stripe import StripeServer

Clock = Callable[[], float]

_VIOLATIONS_KEPT = 1000


class Violation(TypedDict):
    """A request that exceeded a limit."""

    at: float
    provider: str
    model: str
    key: str
    limit: str
    requested: int
    remaining: int


class Stats(TypedDict):
    """Statistics since the start or the last reset. Times are of the simulator's clock."""

    now: float
    seconds: float
    requests: int
    statuses: dict[str, int]
    faults: dict[str, int]
    violation_count: int
    violations: list[Violation]
    accounts: list[AccountStats]
    sheets: SheetsStats
    cloudconvert: CloudConvertStats
    shield: ShieldStats


def running_clock(speed: float) -> Clock:
    """A clock that starts now and runs at `speed` times real time."""
    started, began = time.time(), time.monotonic()
    return lambda: started + (time.monotonic() - began) * speed


class Slot:
    """A request in flight. `end` is idempotent."""

    def __init__(self, account: Account, admission: Admission, used: Amount, clock: Clock) -> None:
        self.account = account
        self.used = used
        self._admission: Admission | None = admission
        self._clock = clock

    def end(self) -> None:
        """End the request and count its actual usage."""
        if self._admission is not None:
            self.account.settle(self._admission, self.used, self._clock())
            self._admission = None


class Simulator:
    """A simulator: URLs, statistics and configuration."""

    def __init__(
        self, config: Config, *, seed: int = 0, speed: float = 1, clock: Clock | None = None
    ) -> None:
        self.config = config
        self.seed = seed
        self.speed = speed
        self.clock = clock or running_clock(speed)
        self._url = ""
        self.sheets = SheetsServer(lambda: self.config.sheets, self.clock, seed)
        """The Sheets server: spreadsheets and users."""
        self.cloudconvert = CloudConvertServer(
            lambda: self.config.cloudconvert, self.clock, seed=seed, speed=speed
        )
        """The simulated CloudConvert."""
        self.telemetry = TelemetrySink()
        """The events of product telemetry, and how the sink behaves."""
        self.media = MediaServer(self.behavior, self.clock, lambda: self.config.video_seconds)
        """Speech of ElevenLabs, videos of Replicate and Runway."""
        self.stripe = StripeServer(self.clock, seed)
        """The Stripe account: customers, subscriptions and webhooks."""
        self.shield = ShieldServer(lambda: self.config.shield)
        """The simulated prompt shield."""
        self.reset()

    @property
    def url(self) -> str:
        """The base URL of the server."""
        return self._url

    @url.setter
    def url(self, value: str) -> None:
        self._url = value
        self.sheets.tokens.url = f"{value}{tokens.PATH}"
        self.cloudconvert.url = self.media.url = value

    @property
    def openai_url(self) -> str:
        """The `base_url` of an OpenAI client."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The `base_url` of an Anthropic client."""
        return self.url

    @property
    def media_url(self) -> str:
        """The base URL of Replicate and Runway; ElevenLabs and Google Vision are at `url`."""
        return f"{self.url}/v1"

    @property
    def sheets_url(self) -> str:
        """The `base_url` of a Sheets client."""
        return self.url

    @property
    def stripe_url(self) -> str:
        """The base address of a Stripe client."""
        return self.url

    @property
    def shield_url(self) -> str:
        """The endpoint of a client of the prompt shield."""
        return self.url

    @property
    def token_url(self) -> str:
        """The token URL of a Sheets client."""
        return self.sheets.tokens.url

    @property
    def cloudconvert_url(self) -> str:
        """The base URL of a CloudConvert client."""
        return f"{self.url}/v2"

    @property
    def control_url(self) -> str:
        """The base URL of stats, config and reset."""
        return f"{self.url}/_simulator"

    def reset(self) -> None:
        """Reset statistics, requests in flight, limits and random numbers."""
        self.started = self.clock()
        self.accounts: dict[tuple[str, str, str], Account] = {}
        self.requests = 0
        self.statuses: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.violation_count = 0
        self.violations: deque[Violation] = deque(maxlen=_VIOLATIONS_KEPT)
        self._paid: Counter[tuple[str, str]] = Counter()
        # Separate generators, so that changing the latency does not change the faults.
        self._fault_chance, self._latency_chance = random.Random(self.seed), random.Random(self.seed)
        self._answer_chance = random.Random(self.seed)
        self.sheets.reset()
        self.cloudconvert.reset()
        self.media.reset()
        self.stripe.reset()
        self.shield.reset()
        self.telemetry.reset()

    def configure(self, /, **changes: Any) -> Config:
        """Change parts of the configuration."""
        self.config = read({**self.config.model_dump(), **changes})
        now = self.clock()
        for account in self.accounts.values():
            account.change(self.config.limits_of(account.provider, account.model), now)
        return self.config

    def stats(self, seconds: float | None = None) -> Stats:
        """The statistics. Used capacity covers the whole time, or the last `seconds`, at most 3600."""
        now = self.clock()
        return {
            "now": now,
            "seconds": now - self.started,
            "requests": self.requests,
            "statuses": dict(self.statuses),
            "faults": dict(self.faults),
            "violation_count": self.violation_count,
            "violations": list(self.violations),
            "accounts": [
                account.stats(now, None if seconds is None else min(seconds, HOUR))
                for account in self.accounts.values()
            ],
            "sheets": self.sheets.stats(),
            "cloudconvert": self.cloudconvert.stats(),
            "shield": self.shield.stats(),
        }

    # Called by the server

    def models(self, provider: Provider) -> list[str]:
        """The listed models of a provider."""
        return list(dict.fromkeys([*provider.models, *self.config.models_of(provider.name)]))

    def expect(self, provider: Provider, model: str) -> None:
        """Raise Problem if the provider does not have the model."""
        if not model.startswith(provider.prefixes) and model not in self.models(provider):
            raise Problem("no_model", model=model)

    def account(self, provider: Provider, model: str, key: str) -> Account:
        """The account of a key for a model."""
        found = self.accounts.get((provider.name, model, key))
        if found is None:
            # Shows only the end of the key, which may be real.
            found = self.accounts[provider.name, model, key] = Account(
                provider.name,
                model,
                f"…{key[-4:]}",
                self.config.limits_of(provider.name, model),
                self.clock(),
            )
        return found

    def admit(self, account: Account, reply: Reply, key: str) -> Slot:
        """Admit a request. Raises Problem if the quota is exhausted or a limit is exceeded."""
        payer, now = (account.provider, key), self.clock()
        most = self.config.quota_exhausted_after
        if self.config.quota_exhausted or (most is not None and self._paid[payer] >= most):
            raise Problem("quota")
        found = account.admit(Amount.of(reply.input_tokens, reply.most_output_tokens), now)
        if isinstance(found, Rejection):
            self._record(account, found, now)
            raise Problem("rate", model=account.model, rejection=found)
        self._paid[payer] += 1
        return Slot(account, found, Amount.of(reply.input_tokens, reply.output_tokens), self.clock)

    def _record(self, account: Account, rejection: Rejection, now: float) -> None:
        self.violation_count += 1
        self.violations.append(
            {
                "at": now,
                "provider": account.provider,
                "model": account.model,
                "key": account.key,
                "limit": rejection.limit,
                "requested": rejection.requested,
                "remaining": rejection.remaining,
            }
        )

    def fault(self) -> Fault | None:
        """The fault of the next request, if any."""
        chance = self._fault_chance.random()
        for fault in FAULTS:
            chance -= self.config.faults.get(fault, 0.0)
            if chance < 0:
                self.faults[fault] += 1
                return fault
        return None

    def behavior(self) -> Behavior:
        """How a model answers the next request."""
        chance = self._answer_chance.random()
        for outcome, share in self.config.answers.items():
            chance -= share
            if chance < 0:
                return Behavior(outcome, self.config.reasoning_tokens)
        return Behavior(None, self.config.reasoning_tokens)

    def latency(self) -> float:
        """Duration of the next request in seconds."""
        return self._latency_chance.uniform(*self.config.latency)
