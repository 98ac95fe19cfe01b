"""What a simulator is told: limits, faults, latency, quota. All of it may be changed while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from penstock.errors import Invalid
from penstock.simulator.anthropic import Anthropic
from penstock.simulator.limits import Limits
from penstock.simulator.openai import OpenAI
from penstock.simulator.provider import Provider, Reason
from penstock.simulator.sheets import SheetsConfig

PROVIDERS: tuple[Provider, ...] = (OpenAI(), Anthropic())

Fault = Literal["429", "500", "529", "timeout"]

FAULTS: dict[Fault, Reason] = {"429": "rate", "500": "error", "529": "overloaded", "timeout": "error"}
"""Which answer each fault has; `timeout` has it only when nobody waits any more."""

_Share = Annotated[float, Field(ge=0, le=1)]
_Seconds = Annotated[float, Field(ge=0, le=3600)]


class Config(BaseModel):
    """How a simulator behaves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limits: dict[str, Limits] = {}
    """By `provider/model`, `provider` or `default`: the first of these that is there holds, for each key."""
    faults: dict[Fault, _Share] = {}
    """The share of requests that are admitted, and then fail like this."""
    latency: tuple[_Seconds, _Seconds] = (0, 0)
    """Each request takes between so many and so many seconds."""
    quota_exhausted: bool = False
    """No key has any money left."""
    quota_exhausted_after: int | None = Field(default=None, ge=0)
    """So many requests each key can pay for, with each provider."""
    sheets: SheetsConfig = SheetsConfig()
    """Of the Sheets server, which has limits, faults and latency of its own."""

    @field_validator("limits", mode="before")
    @classmethod
    def _for_all(cls, value: Any) -> Any:
        return {"default": value} if isinstance(value, Limits) else value or {}

    @field_validator("limits")
    @classmethod
    def _of_providers(cls, value: dict[str, Limits]) -> dict[str, Limits]:
        names = {provider.name for provider in PROVIDERS}
        for name in value:
            provider, slash, model = name.partition("/")
            if name != "default" and (provider not in names or (slash and not model)):
                raise ValueError(
                    f"{name!r} is not default, a provider ({', '.join(sorted(names))}) or provider/model"
                )
        return value

    @field_validator("faults")
    @classmethod
    def _at_most_all(cls, value: dict[Fault, float]) -> dict[Fault, float]:
        if sum(value.values()) > 1:
            raise ValueError("the shares are more than 1 together")
        return value

    @field_validator("latency")
    @classmethod
    def _in_order(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] > value[1]:
            raise ValueError("the first number is the smaller one")
        return value

    def limits_of(self, provider: str, model: str) -> Limits:
        """What holds for a model."""
        for name in (f"{provider}/{model}", provider, "default"):
            if name in self.limits:
                return self.limits[name]
        return Limits()

    def models_of(self, provider: str) -> list[str]:
        """The models that are named here."""
        return [name.partition("/")[2] for name in self.limits if name.startswith(f"{provider}/")]


def read(values: Mapping[str, Any]) -> Config:
    """A config from plain values."""
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        found = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'config'}: {each['msg']}" for each in error.errors()
        )
        raise Invalid(f"The simulator cannot be told this. {found}") from error
