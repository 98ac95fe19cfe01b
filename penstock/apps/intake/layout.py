"""Arranges the words of a page: lines, blocks in reading order, and tables. Boxes are parts of the page.

A page is cut recursively: first between columns, where a white strip runs through from top to bottom, then
between blocks, where one runs from left to right. A strip between the cells of a table is no gutter: the
cells stand side by side in rows and do not fill their column, so a table is read row by row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

Box = tuple[float, float, float, float]

_WORD_GAP = 1.2
"""Words nearer than this many line heights are in one segment of a line."""
_GUTTER = 1.2
_BLOCK_GAP = 0.7
_LEAST_ROWS = 3
_TABLE_FILL = 0.62
"""The cells of a table fill less of their column than lines of prose do."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Words side by side on a line."""

    text: str
    box: Box
    score: float

    @property
    def middle(self) -> float:
        return (self.box[1] + self.box[3]) / 2

    @property
    def height(self) -> float:
        return self.box[3] - self.box[1]


def arrange(pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document: pages with blocks in reading order, and all lines numbered from 1."""
    arranged: list[dict[str, Any]] = []
    number = 0
    for page in sorted(pages, key=lambda page: page["number"]):
        blocks = _blocks(page["words"])
        for block in blocks:
            for line in block["lines"]:
                number += 1
                line["number"] = number
        facts = {name: page[name] for name in ("number", "method", "score", "rotation")}
        arranged.append({**facts, "blocks": blocks})
    return {"pages": arranged, "lines": number}


def text_of(document: dict[str, Any]) -> str:
    """The text of a document in reading order, with an empty line between blocks."""
    blocks = [block for page in document["pages"] for block in page["blocks"]]
    return "\n\n".join("\n".join(line["text"] for line in block["lines"]) for block in blocks)


def lines_of(document: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """All lines by number, with their page."""
    return {
        line["number"]: {**line, "page": page["number"]}
        for page in document["pages"]
        for block in page["blocks"]
        for line in block["lines"]
    }


def _blocks(words: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    segments = _segments(words)
    if not segments:
        return []
    unit = statistics.median(segment.height for segment in segments) or 0.01
    return [_block(found) for found in _cut(segments, unit, 0)]


def _segments(words: Sequence[dict[str, Any]]) -> list[Segment]:
    """Words joined to segments: neighbors on one line without a wide gap."""
    given = [Segment(word["text"], cast("Box", tuple(word["box"])), word["score"]) for word in words]
    found: list[Segment] = []
    for line in _rows(given):
        open_words: list[Segment] = []
        for word in sorted(line, key=lambda word: word.box[0]):
            height = max(word.height, open_words[-1].height if open_words else 0)
            # Boxes are parts of the page, which is higher than wide: a gap is compared in its own unit.
            if open_words and word.box[0] - open_words[-1].box[2] > _WORD_GAP * height * _ASPECT:
                found.append(_joined(open_words))
                open_words = []
            open_words.append(word)
        if open_words:
            found.append(_joined(open_words))
    return found


_ASPECT = 1.41


def _joined(words: Sequence[Segment]) -> Segment:
    score = statistics.fmean(word.score for word in words)
    return Segment(" ".join(word.text for word in words), _around(words), round(score, 4))


def _rows(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Segments grouped by line, from top to bottom."""
    rows: list[list[Segment]] = []
    for segment in sorted(segments, key=lambda segment: segment.middle):
        if rows:
            anchor = rows[-1]
            middle = statistics.fmean(other.middle for other in anchor)
            height = statistics.fmean(other.height for other in anchor)
            if abs(segment.middle - middle) <= 0.5 * min(height, max(segment.height, 1e-6)) + 1e-9:
                anchor.append(segment)
                continue
        rows.append([segment])
    return rows


def _cut(segments: Sequence[Segment], unit: float, depth: int) -> list[list[Segment]]:
    """Segments grouped by block, in reading order."""
    if len(segments) <= 1 or depth > 40:
        return [list(segments)]
    if parts := _around_tables(segments):
        return [
            block
            for part, is_table in parts
            for block in ([part] if is_table else _cut(part, unit, depth + 1))
        ]
    columns = _split(segments, 0, _GUTTER * unit * _ASPECT)
    if len(columns) > 1 and all(len(_rows(column)) >= 2 for column in columns):
        return [block for column in columns for block in _cut(column, unit, depth + 1)]
    bands = _split(segments, 1, _BLOCK_GAP * unit)
    if len(bands) > 1:
        return [block for band in _merged(bands) for block in _cut(band, unit, depth + 1)]
    return [list(segments)]


def _around_tables(segments: Sequence[Segment]) -> list[tuple[list[Segment], bool]]:
    """Tables and what is above, between and below them, each with whether it is a table. Empty: no table."""
    runs: list[tuple[list[list[Segment]], bool]] = []
    for row in _rows(segments):
        has_cells = len(row) > 1
        if not runs or runs[-1][1] != has_cells:
            runs.append(([], has_cells))
        runs[-1][0].append(row)
    found: list[tuple[list[Segment], bool]] = []
    for rows, has_cells in runs:
        part = [segment for row in rows for segment in row]
        is_table = has_cells and _is_table(part)
        if found and not is_table and not found[-1][1]:
            found[-1][0].extend(part)
        else:
            found.append((part, is_table))
    return found if any(is_table for _, is_table in found) else []


def _merged(bands: list[list[Segment]]) -> list[list[Segment]]:
    """Bands joined with the next while the two have the same columns, so that a gap between paragraphs of
    two columns that happens to be at the same height does not end the columns."""
    found: list[list[Segment]] = []
    for band in bands:
        if found and _columns_of(found[-1]) == _columns_of(band) == 2 and not _is_table([*found[-1], *band]):
            joined = [*found[-1], *band]
            if _columns_of(joined) == 2:
                found[-1] = joined
                continue
        found.append(band)
    return found


def _columns_of(segments: Sequence[Segment]) -> int:
    unit = statistics.median(segment.height for segment in segments)
    return len(_split(segments, 0, _GUTTER * unit * _ASPECT))


def _split(segments: Sequence[Segment], axis: int, gap: float) -> list[list[Segment]]:
    """Segments grouped at white strips of at least this width, along x (0) or y (1)."""
    start: Callable[[Segment], float] = lambda segment: segment.box[axis]  # noqa: E731
    groups: list[list[Segment]] = []
    reach = 0.0
    for segment in sorted(segments, key=start):
        if groups and segment.box[axis] - reach < gap:
            groups[-1].append(segment)
        else:
            groups.append([segment])
        reach = max(reach, segment.box[axis + 2]) if len(groups[-1]) > 1 else segment.box[axis + 2]
    return groups


def _is_table(segments: Sequence[Segment]) -> bool:
    """Whether these are rows of short cells that stand side by side."""
    rows = _rows(segments)
    if len(rows) < _LEAST_ROWS:
        return False
    several = [row for row in rows if len(row) > 1]
    if len(several) < 0.7 * len(rows):
        return False
    columns = _split(segments, 0, 0.004)
    if len(columns) < 2:
        return False
    fills: list[float] = []
    for column in columns:
        width = max(s.box[2] for s in column) - min(s.box[0] for s in column)
        fills += [(s.box[2] - s.box[0]) / width for s in column] if width > 0 else [1.0]
    widest = max(max(s.box[2] for s in column) - min(s.box[0] for s in column) for column in columns)
    # Lines of prose fill their column; a column of numbers is narrow even where its cells fill it.
    fill = statistics.fmean(fills)
    return fill < _TABLE_FILL or widest < 0.2 or (len(columns) >= 3 and fill < 0.8)


def _block(segments: Sequence[Segment]) -> dict[str, Any]:
    is_table = _is_table(segments)
    lines: list[dict[str, Any]] = []
    for row in _rows(segments):
        cells = sorted(row, key=lambda segment: segment.box[0])
        line: dict[str, Any] = {
            "text": (" | " if is_table else " ").join(cell.text for cell in cells),
            "box": list(_around(cells)),
            "score": round(statistics.fmean(cell.score for cell in cells), 4),
        }
        if is_table:
            line["cells"] = [{"text": cell.text, "box": list(cell.box)} for cell in cells]
        lines.append(line)
    return {"kind": "table" if is_table else "text", "box": list(_around(segments)), "lines": lines}


def _around(segments: Sequence[Segment]) -> Box:
    return (
        min(segment.box[0] for segment in segments),
        min(segment.box[1] for segment in segments),
        max(segment.box[2] for segment in segments),
        max(segment.box[3] for segment in segments),
    )
