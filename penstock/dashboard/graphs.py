"""Layouts of a job's tasks: a graph for small jobs, a grid of documents by steps for large ones, a timeline.

This module only computes positions. The templates draw them as SVG, without scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from penstock.types import Artifact, Attempt, GraphTask

BOX_WIDTH, BOX_HEIGHT = 168, 44
_GAP_X, _GAP_Y, _EDGE = 56, 14, 8


@dataclass(frozen=True, slots=True)
class Box:
    """A task in a graph."""

    task: GraphTask
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Graph:
    """Tasks as boxes from left to right, and dependencies as curves between them."""

    boxes: list[Box]
    curves: list[str]
    width: int
    height: int


def graph(tasks: Sequence[GraphTask]) -> Graph:
    """Place each task to the right of its dependencies, near their average height."""
    columns = _columns(tasks)
    boxes: dict[int, Box] = {}
    tallest = max((len(column) for column in columns), default=0)
    for number, column in enumerate(columns):
        # Center shorter columns vertically.
        top = (tallest - len(column)) * (BOX_HEIGHT + _GAP_Y) // 2
        for position, task in enumerate(column):
            x = _EDGE + number * (BOX_WIDTH + _GAP_X)
            boxes[task.id] = Box(task, x, _EDGE + top + position * (BOX_HEIGHT + _GAP_Y))
    curves = [
        _curve(boxes[parent], boxes[task.id]) for task in tasks for parent in task.parents if parent in boxes
    ]
    width = 2 * _EDGE + max(len(columns) * (BOX_WIDTH + _GAP_X) - _GAP_X, 0)
    height = 2 * _EDGE + max(tallest * (BOX_HEIGHT + _GAP_Y) - _GAP_Y, 0)
    return Graph(list(boxes.values()), curves, width, height)


def _columns(tasks: Sequence[GraphTask]) -> list[list[GraphTask]]:
    levels: dict[int, int] = {}
    # Parents have smaller ids than their children.
    for task in sorted(tasks, key=lambda task: task.id):
        levels[task.id] = 1 + max((levels.get(parent, -1) for parent in task.parents), default=-1)
    columns: list[list[GraphTask]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for task in tasks:
        columns[levels[task.id]].append(task)
    positions: dict[int, float] = {}
    for column in columns:
        column.sort(key=lambda task: (_average_parent_position(positions, task), task.id))
        positions |= {task.id: float(position) for position, task in enumerate(column)}
    return columns


def _average_parent_position(positions: Mapping[int, float], task: GraphTask) -> float:
    known = [positions[parent] for parent in task.parents if parent in positions]
    return sum(known) / len(known) if known else float(task.id)


def _curve(start: Box, end: Box) -> str:
    x1, y1 = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    x2, y2 = end.x, end.y + BOX_HEIGHT // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"


@dataclass(slots=True)
class GridRow:
    """A document and its tasks in each step."""

    name: str
    cells: dict[str, list[GraphTask]] = field(default_factory=dict[str, list[GraphTask]])


@dataclass(frozen=True, slots=True)
class Grid:
    """Documents as rows, steps as columns."""

    steps: list[str]
    rows: list[GridRow]


def grid(tasks: Sequence[GraphTask]) -> Grid:
    """Make one row per task without dependencies, with all tasks that depend on it alone.

    A task that all others depend on, such as a plan, belongs to no document.
    """
    steps = list(dict.fromkeys(task.kind for task in tasks))
    common = _common(tasks)
    rows: dict[int, GridRow] = {}
    for task in sorted(tasks, key=lambda task: task.id):
        above = {
            id(rows[parent]): rows[parent]
            for parent in task.parents
            if parent in rows and parent not in common
        }
        # A task that depends on several documents gets a row of its own.
        row = next(iter(above.values())) if len(above) == 1 else GridRow(task.key or f"task {task.id}")
        row.cells.setdefault(task.kind, []).append(task)
        rows[task.id] = row
    return Grid(steps, list({id(row): row for row in rows.values()}.values()))


def _common(tasks: Sequence[GraphTask]) -> set[int]:
    """The ids of the first tasks that come before all others, if several tasks follow them side by side."""
    known = {task.id for task in tasks}
    rest = {task.id: set(task.parents) & known for task in tasks}
    common: set[int] = set()
    while True:
        roots = [id for id, parents in rest.items() if not parents]
        if len(roots) != 1:
            return common if roots else set()
        common.add(roots[0])
        del rest[roots[0]]
        for parents in rest.values():
            parents.discard(roots[0])


@dataclass(frozen=True, slots=True)
class Shelf:
    """The files of one document. The name is empty for files of no known document."""

    name: str
    files: list[Artifact]


def shelves(files: Sequence[Artifact], tasks: Sequence[GraphTask]) -> list[Shelf]:
    """Group files by the document of their task, both sorted as people count: chapter 2 before chapter 10."""
    documents = {
        task.id: row.name for row in grid(tasks).rows for cell in row.cells.values() for task in cell
    }
    found: dict[str, list[Artifact]] = {}
    for file in files:
        found.setdefault(documents.get(file.task_id or 0, ""), []).append(file)
    for name in found:
        found[name].sort(key=lambda file: _counted(file.name))
    # Files of no document come last.
    return [Shelf(name, found[name]) for name in sorted(found, key=lambda name: (not name, _counted(name)))]


def _counted(name: str) -> list[tuple[int, str]]:
    """The parts of a name, so that its numbers compare as numbers."""
    parts = re.split(r"([0-9]{1,18})", name.lower())
    return [(int(part), "") if part.isdecimal() and part.isascii() else (-1, part) for part in parts]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a timeline, in percent of its width."""

    state: str
    x: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """One task in a timeline."""

    task: GraphTask
    bars: list[Bar]

    def seconds(self, state: str) -> float:
        """Return how long the task was in this state."""
        return sum(bar.seconds for bar in self.bars if bar.state == state)


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each task waited and when it ran, one line per task."""

    lines: list[Line]
    start: datetime
    end: datetime
    marks: list[tuple[float, float]]
    """Grid lines: position in percent, and seconds since the start."""


def timeline(tasks: Sequence[GraphTask], attempts: Iterable[Attempt], now: datetime) -> Timeline | None:
    """Separate waiting from running: long waits need more capacity, long runs need faster handlers."""
    if not tasks:
        return None
    start = min(task.ready_at for task in tasks)
    end = max([task.finished_at or now for task in tasks if task.started_at] or [now])
    if any(task.finished_at is None and task.status in ("queued", "running", "waiting") for task in tasks):
        end = max(end, now)
    total = max((end - start).total_seconds(), 0.001)
    failed: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        failed.setdefault(attempt.task_id, []).append(attempt)

    def bar(state: str, begin: datetime, stop: datetime) -> Bar:
        seconds = max((stop - begin).total_seconds(), 0)
        x = 100 * max((begin - start).total_seconds(), 0) / total
        return Bar(state, round(x, 3), round(min(100 * seconds / total, 100 - x), 3), seconds)

    lines = [Line(task, _bars(task, failed.get(task.id, []), bar, end)) for task in tasks]
    return Timeline(lines, start, end, _marks(total))


def _bars(
    task: GraphTask, failed: list[Attempt], make_bar: Callable[[str, datetime, datetime], Bar], end: datetime
) -> list[Bar]:
    runs = [(attempt.started_at, attempt.ended_at, "failed") for attempt in failed]
    if task.started_at and task.status != "failed":
        state = "running" if task.status == "running" else "ran"
        runs.append((task.started_at, task.finished_at or end, state))
    if task.status == "blocked" or (task.status == "canceled" and not runs):
        return []
    bars: list[Bar] = []
    since = task.ready_at
    for begin, stop, state in runs:
        bars += [make_bar("waited", since, begin), make_bar(state, begin, stop)]
        since = stop
    if task.status in ("queued", "waiting"):
        bars.append(make_bar("waited", since, max(end, since)))
    return bars


def _marks(total: float) -> list[tuple[float, float]]:
    """Return up to nine grid lines at round numbers of seconds."""
    steps = [
        0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
        3600, 7200, 14400, 28800, 86400, 172800, 604800,
    ]  # fmt: skip
    step = next((step for step in steps if total / step <= 8), steps[-1])
    count = min(int(total / step), 8)
    return [(100 * n * step / total, n * step) for n in range(count + 1)]
