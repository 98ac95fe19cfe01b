"""A job's tasks as pictures: a graph for a few, a grid of documents and steps for many, a timeline.

Only places are computed here; the templates draw them as SVG, which needs no script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from penstock.types import Attempt, GraphTask

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
    """Boxes from left to right, and the curves between them."""

    boxes: list[Box]
    curves: list[str]
    width: int
    height: int


def graph(tasks: Sequence[GraphTask]) -> Graph:
    """Each task right of all it comes after, and about as high as they are."""
    columns = _columns(tasks)
    boxes: dict[int, Box] = {}
    tallest = max((len(column) for column in columns), default=0)
    for number, column in enumerate(columns):
        # A shorter column is put in the middle.
        top = (tallest - len(column)) * (BOX_HEIGHT + _GAP_Y) // 2
        for place, task in enumerate(column):
            x = _EDGE + number * (BOX_WIDTH + _GAP_X)
            boxes[task.id] = Box(task, x, _EDGE + top + place * (BOX_HEIGHT + _GAP_Y))
    curves = [
        _curve(boxes[parent], boxes[task.id]) for task in tasks for parent in task.parents if parent in boxes
    ]
    width = 2 * _EDGE + max(len(columns) * (BOX_WIDTH + _GAP_X) - _GAP_X, 0)
    height = 2 * _EDGE + max(tallest * (BOX_HEIGHT + _GAP_Y) - _GAP_Y, 0)
    return Graph(list(boxes.values()), curves, width, height)


def _columns(tasks: Sequence[GraphTask]) -> list[list[GraphTask]]:
    levels: dict[int, int] = {}
    # Parents have smaller numbers than their children.
    for task in sorted(tasks, key=lambda task: task.id):
        levels[task.id] = 1 + max((levels.get(parent, -1) for parent in task.parents), default=-1)
    columns: list[list[GraphTask]] = [[] for _ in range(max(levels.values(), default=-1) + 1)]
    for task in tasks:
        columns[levels[task.id]].append(task)
    places: dict[int, float] = {}
    for column in columns:
        column.sort(key=lambda task: (_middle(places, task), task.id))
        places |= {task.id: float(place) for place, task in enumerate(column)}
    return columns


def _middle(places: Mapping[int, float], task: GraphTask) -> float:
    known = [places[parent] for parent in task.parents if parent in places]
    return sum(known) / len(known) if known else float(task.id)


def _curve(start: Box, end: Box) -> str:
    x1, y1 = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    x2, y2 = end.x, end.y + BOX_HEIGHT // 2
    middle = (x1 + x2) // 2
    return f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"


@dataclass(slots=True)
class Row:
    """A document, with its tasks in each step."""

    name: str
    cells: dict[str, list[GraphTask]] = field(default_factory=dict[str, list[GraphTask]])


@dataclass(frozen=True, slots=True)
class Grid:
    """Documents by steps."""

    steps: list[str]
    rows: list[Row]


def grid(tasks: Sequence[GraphTask]) -> Grid:
    """A row for each task that comes after none, with all that follows from it alone."""
    steps = list(dict.fromkeys(task.kind for task in tasks))
    rows: dict[int, Row] = {}
    for task in sorted(tasks, key=lambda task: task.id):
        above = {id(rows[parent]): rows[parent] for parent in task.parents if parent in rows}
        # What comes after several documents is none of them.
        row = next(iter(above.values())) if len(above) == 1 else Row(task.key or f"task {task.id}")
        row.cells.setdefault(task.kind, []).append(task)
        rows[task.id] = row
    return Grid(steps, list({id(row): row for row in rows.values()}.values()))


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a line in a timeline, in percent of its width."""

    what: str
    x: float
    width: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """A task in a timeline."""

    task: GraphTask
    bars: list[Bar]

    def seconds(self, what: str) -> float:
        """How long it did this."""
        return sum(bar.seconds for bar in self.bars if bar.what == what)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Tasks below each other: when each waited, and when it ran."""

    lines: list[Line]
    start: datetime
    end: datetime
    marks: list[tuple[float, float]]
    """Where a line is drawn from top to bottom, in percent, and how many seconds after the start that is."""


def timeline(tasks: Sequence[GraphTask], attempts: Iterable[Attempt], now: datetime) -> Timeline | None:
    """Waiting apart from running, because they call for different cures."""
    if not tasks:
        return None
    start = min(task.ready_at for task in tasks)
    end = max([task.finished_at or now for task in tasks if task.started_at] or [now])
    if any(task.finished_at is None and task.status in ("queued", "running") for task in tasks):
        end = max(end, now)
    total = max((end - start).total_seconds(), 0.001)
    tries: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        tries.setdefault(attempt.task_id, []).append(attempt)

    def bar(what: str, begin: datetime, stop: datetime) -> Bar:
        seconds = max((stop - begin).total_seconds(), 0)
        x = 100 * max((begin - start).total_seconds(), 0) / total
        return Bar(what, round(x, 3), round(min(100 * seconds / total, 100 - x), 3), seconds)

    lines = [Line(task, _bars(task, tries.get(task.id, []), bar, end)) for task in tasks]
    return Timeline(lines, start, end, _marks(total))


def _bars(
    task: GraphTask, tries: list[Attempt], make: Callable[[str, datetime, datetime], Bar], end: datetime
) -> list[Bar]:
    runs = [(attempt.started_at, attempt.ended_at, "failed") for attempt in tries]
    if task.started_at and task.status != "failed":
        what = "running" if task.status == "running" else "ran"
        runs.append((task.started_at, task.finished_at or end, what))
    if task.status == "blocked" or (task.status == "canceled" and not runs):
        return []
    bars: list[Bar] = []
    since = task.ready_at
    for begin, stop, what in runs:
        bars += [make("waited", since, begin), make(what, begin, stop)]
        since = stop
    if task.status in ("queued", "waiting"):
        bars.append(make("waited", since, max(end, since)))
    return bars


def _marks(total: float) -> list[tuple[float, float]]:
    """Four to eight places at round numbers of seconds."""
    steps = [
        0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
        3600, 7200, 14400, 28800, 86400, 172800, 604800,
    ]  # fmt: skip
    step = next((step for step in steps if total / step <= 8), steps[-1])
    count = min(int(total / step), 8)
    return [(100 * n * step / total, n * step) for n in range(count + 1)]
