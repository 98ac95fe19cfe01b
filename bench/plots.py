"""Bar charts as SVG files, readable on light and dark backgrounds, without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, LABEL, BAR, GAP, TOP = 760, 190, 13, 10, 54
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-size: 14px; font-weight: 600 }
.s0 { fill: #2b6cb0 } .s1 { fill: #90b4d8 } .s2 { fill: #c05621 } .s3 { fill: #e6a577 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd }
  .s0 { fill: #63a4e8 } .s1 { fill: #3f6690 } .s2 { fill: #ed8936 } .s3 { fill: #92603a }
}
"""


def bars(
    title: str,
    series: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float | None]]],
    logarithmic: bool = False,
) -> str:
    """One group of bars for each row, one bar for each series, each with its value."""
    values = [value for _, cells in rows for value in cells if value]
    high, low = max(values), min(values)
    floor = 10 ** math.floor(math.log10(low)) if logarithmic else 0.0
    room = WIDTH - LABEL - 90

    def length(value: float) -> float:
        if not logarithmic:
            return room * value / high
        return room * math.log10(value / floor) / (math.log10(high / floor) or 1)

    parts = [f'<text class="title" x="8" y="20">{escape(title)}</text>']
    for index, name in enumerate(series):
        x = LABEL + index * (WIDTH - LABEL) // 4
        parts += [
            f'<rect class="s{index}" x="{x}" y="30" width="10" height="10"/>',
            f'<text x="{x + 15}" y="39">{escape(name)}</text>',
        ]
    y = TOP
    for label, cells in rows:
        middle = y + len(cells) * BAR / 2 + 4
        parts.append(f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(label)}</text>')
        for index, value in enumerate(cells):
            wide = max(1.0, length(value)) if value else 0.0
            parts += [
                f'<rect class="s{index}" x="{LABEL}" y="{y}" width="{wide:.1f}" height="{BAR - 2}"/>',
                f'<text x="{LABEL + wide + 5:.1f}" y="{y + 10}">{number(value)}</text>',
            ]
            y += BAR
        y += GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
