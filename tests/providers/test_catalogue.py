"""The catalogue: dated prices and limits with their sources, applied without a release."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from penstock import testing
from penstock.errors import Invalid
from penstock.providers import catalogue
from tests.conftest import Command

OWN = """
as_of = 2026-12-01
[models."house/llm"]
media = ["text"]
source = "https://llm.example.org/prices"
checked = 2026-12-01
prices = { input_tokens = ["0.5", 1000000], output_tokens = ["1.5", 1000000] }
limits = { requests_per_minute = 60 }
features = ["script"]
"""


def test_every_entry_is_dated_and_has_a_source() -> None:
    found = catalogue.shipped()
    assert len(found.models) >= 9 and found.as_of >= date(2026, 11, 18)
    for name, model in found.models.items():
        assert model.source.startswith("https://") and model.prices, name
        assert model.checked <= found.as_of, name


def test_price_of_an_answer_is_exact_or_unknown() -> None:
    units = {"input_tokens": 1000, "output_tokens": 200}
    assert catalogue.price("anthropic/claude-sonnet-5-5", units) == Decimal("0.004")
    assert catalogue.price("anthropic/claude-sonnet-5-5", {**units, "pages": 1}) is None
    assert catalogue.price("house/llm", units) is None


@pytest.mark.parametrize("text", ["", "as_of = 2026-01-01", "not toml", OWN + "colour = 1"])
def test_invalid_catalogue_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        catalogue.read(text)
    assert refused.value.code == "invalid_catalogue"


def test_commands_show_and_apply_a_catalogue(db: testing.Database, penstock: Command, tmp_path: Path) -> None:
    shown = json.loads(penstock("providers", "catalogue", "--output", "json").out)
    assert {row["name"] for row in shown} == set(catalogue.shipped().models)
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    first = json.loads(penstock("providers", "apply", "--file", file, "--output", "json").out)
    assert [row["provider"] for row in first] == ["house/llm", "house/llm"]
    assert json.loads(penstock("providers", "apply", "--file", file, "--output", "json").out) == []
    [endpoint] = db.execute("select * from penstock.endpoints where name = 'house/llm'")
    assert (endpoint["requests_per_minute"], endpoint["features"]) == (60, ["script"])
    prices = db.execute(
        "select meter, amount from penstock.prices where provider = 'house/llm' order by meter"
    )
    assert [(row["meter"], row["amount"]) for row in prices] == [
        ("input_tokens", Decimal("0.0000005")),
        ("output_tokens", Decimal("0.0000015")),
    ]
    penstock("prices", "set", "house/llm", "input_tokens", "9", "--from", "2026-12-02")
    file.write_text(OWN.replace('"1.5"', '"2.5"'))
    changed = json.loads(penstock("providers", "apply", "house/llm", "--file", file, "--output", "json").out)
    assert [row["change"] for row in changed] == ["output_tokens 2.5 USD per 1,000,000"]
    assert penstock("providers", "apply", "none/such").code != 0
