"""The simulator itself, without HTTP: who may do what when, and what was seen."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, TypedDict

from penstock.simulator import tokens
from penstock.simulator.config import FAULTS, Config, Fault, read
from penstock.simulator.limits import HOUR, Account, AccountStats, Admission, Amount, Refusal
from penstock.simulator.provider import Problem, Provider, Reply
from penstock.simulator.sheets import SheetsServer, SheetsStats

Clock = Callable[[], float]

_VIOLATIONS_KEPT = 1000


class Violation(TypedDict):
    """A request that came too early, or beside too many others."""

    at: float
    provider: str
    model: str
    key: str
    limit: str
    requested: int
    remaining: int


class Stats(TypedDict):
    """What a simulator has seen since it started or was reset. Times are its own clock's."""

    now: float
    seconds: float
    requests: int
    statuses: dict[str, int]
    faults: dict[str, int]
    violation_count: int
    violations: list[Violation]
    accounts: list[AccountStats]
    sheets: SheetsStats


def running_clock(speed: float) -> Clock:
    """Starts at the present time, and runs so many times as fast."""
    started, began = time.time(), time.monotonic()
    return lambda: started + (time.monotonic() - began) * speed


class Slot:
    """A request in flight. It ends once, however often that is said."""

    def __init__(self, account: Account, admission: Admission, used: Amount, clock: Clock) -> None:
        self.account = account
        self.used = used
        self._admission: Admission | None = admission
        self._clock = clock

    def end(self) -> None:
        """It has ended: count what it really used."""
        if self._admission is not None:
            self.account.settle(self._admission, self.used, self._clock())
            self._admission = None


class Simulator:
    """A simulator: where it listens, what it has seen, and how to change it."""

    def __init__(
        self, config: Config, *, seed: int = 0, speed: float = 1, clock: Clock | None = None
    ) -> None:
        self.config = config
        self.seed = seed
        self.speed = speed
        self.clock = clock or running_clock(speed)
        self._url = ""
        self.sheets = SheetsServer(lambda: self.config.sheets, self.clock, seed)
        """The Sheets server: what is in it, and who may use it."""
        self.reset()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._url

    @url.setter
    def url(self, value: str) -> None:
        self._url = value
        self.sheets.tokens.url = f"{value}{tokens.PATH}"

    @property
    def openai_url(self) -> str:
        """The `base_url` of an OpenAI client."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The `base_url` of an Anthropic client."""
        return self.url

    @property
    def sheets_url(self) -> str:
        """The `base_url` of a Sheets client."""
        return self.url

    @property
    def token_url(self) -> str:
        """Where a Sheets client gets its tokens."""
        return self.sheets.tokens.url

    @property
    def control_url(self) -> str:
        """Where stats, config and reset are."""
        return f"{self.url}/_simulator"

    def reset(self) -> None:
        """Forget what was seen and what is in flight. All limits are full, and chance begins again."""
        self.started = self.clock()
        self.accounts: dict[tuple[str, str, str], Account] = {}
        self.requests = 0
        self.statuses: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.violation_count = 0
        self.violations: deque[Violation] = deque(maxlen=_VIOLATIONS_KEPT)
        self._paid: Counter[tuple[str, str]] = Counter()
        # One each, so that another latency does not move the faults.
        self._fault_chance, self._latency_chance = random.Random(self.seed), random.Random(self.seed)
        self.sheets.reset()

    def configure(self, /, **changes: Any) -> Config:
        """Change some of the config from now on."""
        self.config = read({**self.config.model_dump(), **changes})
        now = self.clock()
        for account in self.accounts.values():
            account.change(self.config.limits_of(account.provider, account.model), now)
        return self.config

    def stats(self, seconds: float | None = None) -> Stats:
        """What was seen. Used capacity is that of the whole time, or of the last seconds, at most 3600."""
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
        }

    # What the server asks

    def models(self, provider: Provider) -> list[str]:
        """The models of a provider that are listed."""
        return list(dict.fromkeys([*provider.models, *self.config.models_of(provider.name)]))

    def expect(self, provider: Provider, model: str) -> None:
        """Refuse a model that the provider does not have."""
        if not model.startswith(provider.prefixes) and model not in self.models(provider):
            raise Problem("no_model", model=model)

    def account(self, provider: Provider, model: str, key: str) -> Account:
        """The account of a key for a model."""
        found = self.accounts.get((provider.name, model, key))
        if found is None:
            # Somebody may have sent a real key: it is never shown.
            found = self.accounts[provider.name, model, key] = Account(
                provider.name,
                model,
                f"…{key[-4:]}",
                self.config.limits_of(provider.name, model),
                self.clock(),
            )
        return found

    def admit(self, account: Account, reply: Reply, key: str) -> Slot:
        """Let a request in, or refuse it for lack of money or because of a limit."""
        payer, now = (account.provider, key), self.clock()
        most = self.config.quota_exhausted_after
        if self.config.quota_exhausted or (most is not None and self._paid[payer] >= most):
            raise Problem("quota")
        found = account.admit(Amount.of(reply.input_tokens, reply.most_output_tokens), now)
        if isinstance(found, Refusal):
            self._record(account, found, now)
            raise Problem("rate", model=account.model, refusal=found)
        self._paid[payer] += 1
        return Slot(account, found, Amount.of(reply.input_tokens, reply.output_tokens), self.clock)

    def _record(self, account: Account, refusal: Refusal, now: float) -> None:
        self.violation_count += 1
        self.violations.append(
            {
                "at": now,
                "provider": account.provider,
                "model": account.model,
                "key": account.key,
                "limit": refusal.limit,
                "requested": refusal.requested,
                "remaining": refusal.remaining,
            }
        )

    def fault(self) -> Fault | None:
        """The fault of the next request, if it has one."""
        chance = self._fault_chance.random()
        for fault in FAULTS:
            chance -= self.config.faults.get(fault, 0.0)
            if chance < 0:
                self.faults[fault] += 1
                return fault
        return None

    def latency(self) -> float:
        """How long the next request takes, in seconds."""
        return self._latency_chance.uniform(*self.config.latency)
