"""Splits a file of SQL into statements, and names the object that each of them defines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["function", "view", "trigger", "policy", "grants", "statement"]

_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<quoted> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$ )
    | (?P<word> "(?:[^"]|"")*" | [^\W\d][\w$]* )
    | (?P<open> \( ) | (?P<close> \) ) | (?P<end> ; )
    | (?P<other> \S )
    """,
    re.X | re.S,
)
_NAME = r'(?:"[^"]+"|[\w$]+)'
_PATH = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_MAKES = r"(?:create(?:\s+or\s+replace)?|alter|drop|comment\s+on)"
_IF = r"(?:if\s+exists\s+)?"
_PATTERNS: dict[Kind, str] = {
    "function": rf"{_MAKES}\s+(?:function|procedure|routine)\s+{_IF}(?P<name>{_PATH})",
    "view": rf"{_MAKES}\s+view\s+{_IF}(?P<name>{_PATH})",
    "trigger": rf"{_MAKES}\s+trigger\s+{_IF}(?P<part>{_NAME})\s.*?\bon\s+(?P<name>{_PATH})",
    "policy": rf"{_MAKES}\s+policy\s+{_IF}(?P<part>{_NAME})\s+on\s+(?P<name>{_PATH})",
    "grants": r"(?:grant|revoke)\b.*\son\s",
}
_DEFINES: dict[Kind, re.Pattern[str]] = {
    kind: re.compile(pattern, re.I | re.S) for kind, pattern in _PATTERNS.items()
}
_ROUTINE = re.compile(r"create (or replace )?(function|procedure)\b", re.I)


@dataclass(frozen=True)
class Statement:
    """One statement of a file. `start` is its place in the file's text."""

    file: str
    start: int
    text: str


@dataclass(frozen=True)
class Unit:
    """The statements that define one object, in order. All statements about privileges are one unit."""

    kind: Kind
    key: str
    table: str
    statements: tuple[Statement, ...]

    @property
    def file(self) -> str:
        """The file that records the unit."""
        return self.statements[0].file

    @property
    def sha256(self) -> str:
        return hashlib.sha256("\n".join(s.text for s in self.statements).encode()).hexdigest()


def split(file: str, text: str) -> Iterator[Statement]:
    """The statements of a file, without the comments between them."""
    start, parentheses, blocks = -1, 0, 0
    is_routine = False
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "comment":
            continue
        if start < 0 and kind != "end":
            start, parentheses, blocks = token.start(), 0, 0
            is_routine = bool(_ROUTINE.match(" ".join(text[start : start + 60].split())))
        if kind in ("open", "close"):
            parentheses += 1 if kind == "open" else -1
        elif kind == "word" and is_routine:
            # Only a body that begins with "begin atomic" has semicolons outside quotes.
            word = token[0].lower()
            if word == "begin" or (blocks and word == "case"):
                blocks += 1
            elif blocks and word == "end":
                blocks -= 1
        elif kind == "end" and start >= 0 and not parentheses and not blocks:
            yield Statement(file, start, text[start : token.end()])
            start = -1
    if start >= 0:
        yield Statement(file, start, text[start:].rstrip())


def units(statements: Iterable[Statement]) -> tuple[Unit, ...]:
    """The statements grouped by the object that they define, in the order of their first statements."""
    found: dict[str, tuple[Kind, str, list[Statement]]] = {}
    for statement in statements:
        kind, key, table = _defines(statement)
        found.setdefault(key, (kind, table, []))[2].append(statement)
    return tuple(Unit(kind, key, table, tuple(of)) for key, (kind, table, of) in found.items())


def _defines(statement: Statement) -> tuple[Kind, str, str]:
    for kind, pattern in _DEFINES.items():
        if match := pattern.match(statement.text):
            if kind == "grants":
                return kind, kind, ""
            name, part = _plain(match["name"]), match.groupdict().get("part")
            return (kind, f"{kind} {_plain(part)} on {name}", name) if part else (kind, f"{kind} {name}", "")
    digest = hashlib.sha256(statement.text.encode()).hexdigest()[:16]
    return "statement", f"statement {statement.file} {digest}", ""


def _plain(name: str) -> str:
    """A name as the catalogue has it: without quotes, in lower case where it had none."""
    parts = re.findall(_NAME, name)
    return ".".join(part.strip('"') if part.startswith('"') else part.lower() for part in parts)


def repeatable(unit: Unit) -> list[Statement]:
    """The unit's statements so that they can run again: PostgreSQL cannot replace a policy."""
    first = unit.statements[0]
    if unit.kind != "policy" or not first.text.lower().startswith("create"):
        return list(unit.statements)
    match = _DEFINES["policy"].match(first.text)
    assert match
    drop = f"drop policy if exists {match['part']} on {match['name']};"
    return [Statement(first.file, first.start, drop), *unit.statements]
