"""Configuration and statistics of the simulated CloudConvert."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, field_validator

Fault = Literal["402", "429", "500", "timeout"]
JobFault = Literal["error", "stuck"]
WebhookFault = Literal["lost", "doubled", "early", "late", "reordered"]
_Share = Annotated[float, Field(ge=0, le=1)]
_Seconds = Annotated[float, Field(ge=0, le=3600)]


class CloudConvertConfig(BaseModel):
    """The behavior of the simulated CloudConvert."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    faults: dict[Fault, _Share] = {}
    """The share of requests that fail. `timeout`: the job is created, but the response never comes."""
    job_faults: dict[JobFault, _Share] = {}
    """The share of jobs that fail, or never finish."""
    webhook_faults: dict[WebhookFault, _Share] = {}
    """The share of webhooks about the end of a job that get lost, come twice, before the end, long after it,
    or before the webhook about the job's creation."""
    latency: tuple[_Seconds, _Seconds] = (0, 0)
    """Seconds of a conversion."""
    late_seconds: _Seconds = 20
    """Delay of a webhook with the fault `late`."""
    url_seconds: _Seconds = 3600
    """How long the URL of an exported file is valid."""
    credits: int = Field(default=1_000_000, ge=0)
    """Conversions until requests get 402."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Requests per minute; more get 429 and count as violations."""

    @field_validator("faults", "job_faults", "webhook_faults")
    @classmethod
    def _at_most_all(cls, value: dict[Any, float]) -> dict[Any, float]:
        if sum(value.values()) > 1:
            raise ValueError("the shares add up to more than 1")
        return value


class CloudConvertStats(TypedDict):
    """Statistics of the simulated CloudConvert."""

    requests: dict[str, int]
    statuses: dict[str, int]
    jobs: int
    conversions: int
    """Conversions that finished."""
    canceled: int
    most_jobs_per_tag: int
    webhooks: dict[str, int]
    """Webhooks by what became of them: sent, lost, doubled, early, late, reordered, refused."""
    violations: int
