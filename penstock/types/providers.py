"""Types of providers, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider's endpoint: its limits (None: unlimited), and their use in the current time windows."""

    id: int
    name: str
    tenant_id: UUID | None
    state: Literal["active", "full", "closed", "exhausted", "disabled", "maintenance"]
    reason: str | None
    opens_at: datetime | None
    requests_minute: int
    requests_per_minute: int | None
    tokens_minute: int
    tokens_per_minute: int | None
    requests_hour: int
    requests_per_hour: int | None
    tokens_hour: int
    tokens_per_hour: int | None
    running: int
    concurrency: int | None
    waiting: int
    pace: float
    refusals: int
    refused_at: datetime | None
    default_tokens: int
    backpressure_threshold: float | None
    backpressure_delay_seconds: float | None
    depth_limit: int | None
    features: list[str]
    changed_at: datetime
    in_flight: int
    """Operations at the provider whose task waits; they count as running."""


class ProviderValues(TypedDict, total=False):
    """The settings of a provider. A limit of None means unlimited; settings left out do not change."""

    status: Literal["active", "disabled", "maintenance"]
    requests_per_minute: int | None
    requests_per_hour: int | None
    tokens_per_minute: int | None
    tokens_per_hour: int | None
    concurrency: int | None
    default_tokens: int
    """Estimated tokens of a task that declares none."""
    backpressure_threshold: float | None
    backpressure_delay_seconds: float | None
    depth_limit: int | None
    """While this many tasks wait, new ones are rejected."""
    features: list[str]
    hosts: list[str] | None
    """The hosts whose answers close or slow it. None: those known for its name."""


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """A rejection by a provider, or a change of its settings."""

    id: int
    at: datetime
    name: str
    tenant_id: UUID | None
    event: Literal["refused", "exhausted", "opened", "changed"]
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SealedKey:
    """The encrypted key of a provider."""

    provider: str
    tenant_id: UUID | None
    """Whose key it is. None: for all tenants that have no own key."""
    host: str
    """The only host that gets the key."""
    sealed: bytes = field(repr=False)
    wrapped_key: bytes = field(repr=False)
    master_id: str


@dataclass(frozen=True, slots=True)
class ProviderKey:
    """The stored key of a provider, without its secret."""

    provider: str
    tenant_id: UUID | None
    host: str
    master_id: str
    created_by: str
    created_at: datetime
