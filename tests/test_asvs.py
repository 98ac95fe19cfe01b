"""The ASVS checklist has an answer and a reason for each line, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"^\| (\d+\.\d+\.\d+) \| ([12]) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", re.M)
# The number of requirements of levels 1 and 2 in each chapter of ASVS 5.0.0.
CHAPTERS = {1: 27, 2: 11, 3: 19, 4: 10, 5: 9, 6: 35, 7: 18, 8: 7, 9: 7, 10: 29, 11: 14, 12: 9, 13: 13, 14: 9,
            15: 13, 16: 16, 17: 7}  # fmt: skip


def test_every_line_has_an_answer_and_a_reason() -> None:
    text = (ROOT / "docs/asvs.md").read_text()
    lines = LINE.findall(text)
    numbers = [number for number, *_ in lines]
    assert len(numbers) == len(set(numbers)) == 253
    chapters = [int(number.partition(".")[0]) for number in numbers]
    assert {chapter: chapters.count(chapter) for chapter in CHAPTERS} == CHAPTERS
    answers = [answer for _, _, _, answer, _ in lines]
    assert set(answers) == {"yes", "**no**", "n/a"}
    counts = (
        f"{answers.count('yes')} yes, {answers.count('**no**')} no, {answers.count('n/a')} not applicable."
    )
    assert counts in text
    assert [number for number, _, _, _, reason in lines if len(reason) < 2] == []
    # A no is explained: it says more than two words.
    assert all(len(reason.split()) > 2 for _, _, _, answer, reason in lines if answer == "**no**")


def test_named_tests_and_attacks_exist() -> None:
    text = (ROOT / "docs/asvs.md").read_text()
    for path in re.findall(r"`(tests/[^`]+)`", text):
        assert (ROOT / path).exists(), path
    attacks = set(re.findall(r"^\| (S\d+) \|", (ROOT / "docs/security.md").read_text(), re.M))
    # Checks of make attack without a test of their own.
    attacks |= {"S55", "S56"}
    assert set(re.findall(r"\bS\d+\b", text)) <= attacks
