"""The catalogue: prices and limits of providers, dated and with their source, in `catalogue.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from penstock.contract import costs, providers
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.providers.interface import Medium

ROOM_TO_THINK = 25_000
"""Reasoning tokens of a model of OpenAI or Anthropic that is not in the catalogue. A limit, not a cost."""
THINKERS = ("openai", "anthropic")
"""Providers whose models reason unless the catalogue says otherwise."""


class Model(BaseModel):
    """A model of a provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    media: tuple[Medium, ...]
    source: str
    checked: date
    """When it was last compared with the source."""
    prices: dict[str, tuple[Decimal, int]] = {}
    """Amount in USD, and for how many units, by meter."""
    limits: dict[str, int] = {}
    """Limits of `set_provider`."""
    features: tuple[str, ...] = ()
    reasoning_tokens: int = 0


class Catalogue(BaseModel):
    """All models, by `name/model`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    as_of: date
    models: dict[str, Model]


def read(text: str, name: str = "catalogue") -> Catalogue:
    """Parse a catalogue."""
    try:
        return Catalogue.model_validate(tomllib.loads(text))
    except (ValidationError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"{name} is not a catalogue: {str(error)[:500]}", code="invalid_catalogue") from error


def read_file(path: Path) -> Catalogue:
    """Parse a catalogue of your own."""
    try:
        return read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {path}: {error}", code="invalid_catalogue") from error


@cache
def shipped() -> Catalogue:
    """The catalogue of this version."""
    return read(files(__package__ or "").joinpath("catalogue.toml").read_text(encoding="utf-8"))


def room_to_think(provider: str) -> int:
    """Tokens to allow `name/model` for reasoning, beside its answer."""
    known = shipped().models.get(provider)
    if known is not None:
        return known.reasoning_tokens
    return ROOM_TO_THINK if provider.partition("/")[0] in THINKERS else 0


def price(provider: str, units: Mapping[str, float]) -> Decimal | None:
    """What the units of an answer cost in USD by the shipped catalogue; None if a price is missing."""
    known = shipped().models.get(provider)
    total = Decimal(0)
    for meter, count in units.items():
        if known is None or meter not in known.prices:
            return None
        amount, per = known.prices[meter]
        total += amount * Decimal(str(count)) / per
    return total


async def apply(
    database: db.Database, found: Catalogue, names: list[str] | None = None
) -> list[tuple[str, str]]:
    """Write limits, features and prices into the database. Returns what changed, by provider.

    Limits that the catalogue does not have stay, and so do prices that were set after it was checked.
    """
    unknown = [name for name in names or () if name not in found.models]
    if unknown:
        raise Invalid(f"the catalogue has no {unknown[0]!r}", code="unknown_provider")
    changed: list[tuple[str, str]] = []
    for name, model in found.models.items():
        if names and name not in names:
            continue
        values: Any = dict(model.limits)
        if model.features:
            values["features"] = list(model.features)
        await providers.set(database, name=name, **values)
        current = {
            each.meter: each
            for each in await costs.prices(database, provider=name)
            if each.tenant_id is None and each.variant == "standard"
        }
        for meter, (amount, per) in model.prices.items():
            old = current.get(meter)
            # A price that was set after the catalogue was checked is newer.
            if old is not None and (old.amount == amount / per or old.valid_from.date() > model.checked):
                continue
            await costs.set_price(
                database, provider=name, meter=meter, amount=amount, per=per, currency="USD"
            )
            changed.append((name, f"{meter} {amount} USD per {per:,}"))
    return changed
