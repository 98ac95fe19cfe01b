"""Prompts: versions of a text for a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from penstock.errors import Invalid

_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A version of a prompt, ready to be rendered."""

    name: str
    version: int
    """0 is the constant in the code."""
    body: str
    model: str | None = None
    max_tokens: int | None = None
    is_fallback: bool = False
    """The constant was used because the database could not answer, or has no active version."""
    variables: frozenset[str] | None = None
    """The variables that the code passes: those of its constant. None: those of the body."""

    def render(self, **values: Any) -> str:
        """The text with its variables replaced, in one pass: braces in a value are left as they are.

        Raises Invalid unless the values are exactly the variables that the constant in the code has; a later
        version may use fewer of them.
        """
        expected = self.variables if self.variables is not None else variables_of(self.body)
        for what, names in (("missing", expected - values.keys()), ("unknown", values.keys() - expected)):
            if names:
                raise Invalid(
                    f"prompt {self.name}: {what} variable {sorted(names)[0]!r}",
                    code="invalid_variables",
                    details={what: sorted(names)},
                )
        return _VARIABLE.sub(lambda match: str(values.get(match[1], match[0])), self.body)

    @property
    def details(self) -> dict[str, Any]:
        """What a usage event says about the prompt of its call."""
        return {
            "prompt_name": self.name,
            "prompt_version": self.version,
            "prompt_fallback": self.is_fallback,
        }


@dataclass(frozen=True, slots=True)
class PromptVersion:
    """A stored version of a prompt."""

    name: str
    version: int
    """0 is the constant in the code, as the app last declared it."""
    body: str
    variables: list[str]
    model: str | None
    max_tokens: int | None
    is_active: bool
    comment: str
    created_by: str
    created_at: datetime
    activated_at: datetime | None


def variables_of(body: str) -> frozenset[str]:
    """The names between double braces."""
    return frozenset(_VARIABLE.findall(body))


@dataclass(frozen=True, slots=True)
class PromptStats:
    """Statistics of a version of a prompt."""

    name: str
    version: int
    uses: int
    failures: int
    fallbacks: int
    median_seconds: float | None
    p95_seconds: float | None
    cost: Decimal | None
    """In the base currency; None: nothing was priced."""
    last_used_at: datetime


@dataclass(frozen=True, slots=True)
class PromptFallback:
    """A prompt whose constant was used although it has an active version."""

    name: str
    uses: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A task of a trial beside the one of the past job."""

    task_id: int
    kind: str
    input: Any
    output: Any
    cost: Decimal | None
    seconds: float | None
    new_task_id: int
    new_output: Any
    new_error: str | None
    new_cost: Decimal | None
    new_seconds: float | None
