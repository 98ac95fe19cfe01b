"""Configuration of a simulator: limits, faults, latency, quota. It can change while the simulator runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from penstock.errors import Invalid
from penstock.simulator.anthropic import Anthropic
from penstock.simulator.cloudconvert_config import CloudConvertConfig
from penstock.simulator.limits import Limits
from penstock.simulator.openai import OpenAI
from penstock.simulator.provider import Provider, Reason
from penstock.simulator.sheets import SheetsConfig
from penstock.simulator.shield import ShieldConfig
from penstock.simulator.vision import GoogleVision

PROVIDERS: tuple[Provider, ...] = (OpenAI(), Anthropic(), GoogleVision())

Fault = Literal["429", "500", "529", "timeout"]
Outcome = Literal["refusal", "filter", "truncated"]

FAULTS: dict[Fault, Reason] = {"429": "rate", "500": "error", "529": "overloaded", "timeout": "error"}
"""The response of each fault. `timeout` responds only after clients have given up."""

_Share = Annotated[float, Field(ge=0, le=1)]
_Seconds = Annotated[float, Field(ge=0, le=3600)]


class Config(BaseModel):
    """The behavior of a simulator."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limits: dict[str, Limits] = {}
    """Limits per key, by `provider/model`, `provider` or `default`; the most specific entry applies."""
    faults: dict[Fault, _Share] = {}
    """The share of admitted requests that fail with each fault."""
    answers: dict[Outcome, _Share] = {}
    """The share of a model's answers that it refuses, a filter stops, or the provider cuts off."""
    reasoning_tokens: int = Field(default=0, ge=0, le=1_000_000)
    """Tokens that a model thinks before each answer. They count as output, and against its limit."""
    video_seconds: _Seconds = 0
    """How long a video takes."""
    latency: tuple[_Seconds, _Seconds] = (0, 0)
    """Minimum and maximum seconds of a request."""
    quota_exhausted: bool = False
    """Whether the quota of all keys is exhausted."""
    quota_exhausted_after: int | None = Field(default=None, ge=0)
    """Requests per key and provider after which the quota is exhausted."""
    sheets: SheetsConfig = SheetsConfig()
    """Configuration of the Sheets server, which has its own limits, faults and latency."""
    cloudconvert: CloudConvertConfig = CloudConvertConfig()
    """Configuration of the simulated CloudConvert."""
    shield: ShieldConfig = ShieldConfig()
    """Configuration of the simulated prompt shield."""

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
                    f"{name!r} must be default, a provider ({', '.join(sorted(names))}) or provider/model"
                )
        return value

    @field_validator("faults", "answers")
    @classmethod
    def _at_most_all(cls, value: dict[str, float]) -> dict[str, float]:
        if sum(value.values()) > 1:
            raise ValueError("the shares add up to more than 1")
        return value

    @field_validator("latency")
    @classmethod
    def _in_order(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] > value[1]:
            raise ValueError("the first number must not be larger than the second")
        return value

    def limits_of(self, provider: str, model: str) -> Limits:
        """The limits of a model."""
        for name in (f"{provider}/{model}", provider, "default"):
            if name in self.limits:
                return self.limits[name]
        return Limits()

    def models_of(self, provider: str) -> list[str]:
        """The models that the limits name."""
        return [name.partition("/")[2] for name in self.limits if name.startswith(f"{provider}/")]


def read(values: Mapping[str, Any]) -> Config:
    """Parse a configuration."""
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        found = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'config'}: {each['msg']}" for each in error.errors()
        )
        raise Invalid(f"invalid simulator configuration: {found}") from error
