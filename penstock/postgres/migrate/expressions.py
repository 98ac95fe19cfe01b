"""Brings SQL that PostgreSQL printed into one form.

PostgreSQL keeps `(a AND b) AND c` apart from `a AND b AND c`, but prints a text that it reads back as the
latter: a restored dump differs from its original by parentheses alone.
"""

from __future__ import annotations

import re
from typing import TypeAlias

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[()]|[^'"()]+""")
_CONNECTIVE = re.compile(r"\s+(AND|OR)\s+")

Node: TypeAlias = "str | list[Node]"
"""A piece of text, or what is between two parentheses."""


def flatten(text: str) -> str:
    """Remove the parentheses around an AND within an AND, and around an OR within an OR."""
    if " AND " not in text and " OR " not in text:
        return text
    stack: list[list[Node]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":  # noqa: S105 a parenthesis
            stack.append([])
        elif token == ")" and len(stack) > 1:  # noqa: S105 a parenthesis
            inner = stack.pop()
            stack[-1].append(_spliced(inner))
        else:
            stack[-1].append(token)
    return _printed(stack[0]) if len(stack) == 1 else text


def _spliced(nodes: list[Node]) -> list[Node]:
    connective = _connective(nodes)
    if not connective:
        return nodes
    found: list[Node] = []
    for place, node in enumerate(nodes):
        # Only an operand of the connective itself: f(a AND b) keeps its parentheses.
        is_operand = not isinstance(node, str) and _ends(nodes, place - 1) and _begins(nodes, place + 1)
        if is_operand and _connective(node) == connective:
            found += node
        else:
            found.append(node)
    return found


def _connective(nodes: Node) -> str | None:
    """AND or OR, if it is the only one that joins these nodes."""
    found = {match for node in nodes if _is_code(node) for match in _CONNECTIVE.findall(f" {node} ")}
    return found.pop() if len(found) == 1 else None


def _is_code(node: Node) -> bool:
    return isinstance(node, str) and node[:1] not in ("'", '"')


def _ends(nodes: list[Node], place: int) -> bool:
    return place < 0 or (_is_code(nodes[place]) and bool(re.search(r"\b(AND|OR)\s+$", str(nodes[place]))))


def _begins(nodes: list[Node], place: int) -> bool:
    return place >= len(nodes) or (
        _is_code(nodes[place]) and bool(re.match(r"\s+(AND|OR)\b", str(nodes[place])))
    )


def _printed(nodes: list[Node]) -> str:
    return "".join(node if isinstance(node, str) else f"({_printed(node)})" for node in nodes)
