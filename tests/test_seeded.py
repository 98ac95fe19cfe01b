"""The bugs and holes of seeded.toml can still be planted; `make seeded` plants them."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_seed_has_its_place() -> None:
    """S63: what is planted is planted exactly there."""
    seeds = tomllib.loads((ROOT / "tests/seeded.toml").read_text())
    assert len(seeds["bug"]) >= 25
    assert len(seeds["hole"]) >= 20
    names = [seed["name"] for sort in seeds.values() for seed in sort]
    assert len(names) == len(set(names))
    for seed in (seed for sort in seeds.values() for seed in sort):
        assert (ROOT / seed["file"]).read_text().count(seed["find"]) == 1, seed["name"]
        file, *_, function = seed["caught_by"].split("::")
        assert f"def {function}(" in (ROOT / file).read_text(), seed["name"]
