"""The pictures of docs/concepts.md, as SVG. `make docs` writes them to docs/images/concept-*.svg."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

# A browser in dark mode shows the dark colors, also inside an <img>.
_STYLE = """
.panel { fill: #f7f8fb; } .box { fill: #ffffff; stroke: #8793ad; stroke-width: 1.5; }
.strong { fill: #e3e9ff; stroke: #4059c7; } .good { fill: #dff3e4; stroke: #2b7a44; } .bad { fill: #fbe3e1; stroke: #b3372c; }
.line { fill: none; stroke: #55607a; stroke-width: 1.6; } .head { fill: #55607a; }
text { font: 14px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1d2433; } .small { font-size: 12px; fill: #4a546b; }
.name { font-weight: 600; }
@media (prefers-color-scheme: dark) {
.panel { fill: #161a24; } .box { fill: #1f2533; stroke: #7683a0; }
.strong { fill: #263056; stroke: #8fa3ff; } .good { fill: #1d3a28; stroke: #6cc389; } .bad { fill: #45221f; stroke: #ef8f86; }
.line { stroke: #a3aec6; } .head { fill: #a3aec6; } text { fill: #e8ecf5; } .small { fill: #b6c0d6; }
}
"""


@dataclass
class Picture:
    """Shapes on a panel."""

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list[str])

    def box(self, x: int, y: int, width: int, height: int, *lines: str, look: str = "") -> None:
        """A box with a name and smaller lines below it, all centered."""
        self.parts.append(
            f'<rect class="box {look}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        )
        top = y + height // 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width // 2, top + 18 * number, line, "small" if number else "name", anchor="middle")

    def text(self, x: int, y: int, text: str, look: str = "small", anchor: str = "start") -> None:
        """A line of text."""
        self.parts.append(
            f'<text class="{look}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def arrow(self, path: str, label: str = "", at: tuple[int, int] = (0, 0), anchor: str = "middle") -> None:
        """A line with a head at its end."""
        self.parts.append(f'<path class="line" d="{path}" marker-end="url(#head)"/>')
        if label:
            self.text(*at, label, anchor=anchor)

    def svg(self) -> str:
        """The whole file."""
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" aria-labelledby="title">',
            f'<title id="title">{escape(self.title)}</title>',
            f"<style>{_STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path class="head" d="M0 0L10 5L0 10z"/></marker></defs>',
            f'<rect class="panel" width="{self.width}" height="{self.height}" rx="12"/>',
            *self.parts,
            "</svg>",
            "",
        ])  # fmt: skip


def architecture() -> Picture:
    """Clients, the contract in the database, workers, the world."""
    made = Picture("Clients and workers call SQL functions in one PostgreSQL database", 800, 400)
    for x, name, more in (
        (20, "Dashboard", "in a browser"), (176, "HTTP API", "any language"), (332, "Python SDK", "penstock"),
        (488, "Command line", "penstock"), (644, "Supabase client", "unmodified"),
    ):  # fmt: skip
        made.box(x, 20, 136, 56, name, more)
        made.arrow(f"M{x + 68} 76V116")
    made.box(20, 120, 760, 56, "SQL functions: every rule and every change of state",
             "row-level security · roles · one clock · one transaction per call", look="strong")  # fmt: skip
    made.box(20, 188, 366, 56, "jobs → tasks → leases", "who runs what, in which order")
    made.box(414, 188, 366, 56, "limits · quotas · costs · audit", "what may run now, and what it cost")
    made.text(400, 268, "PostgreSQL 15 to 18, without extensions", anchor="middle")
    made.box(120, 320, 200, 60, "Workers", "stateless, any number")
    made.arrow("M196 320V250", "claim, heartbeat", (188, 296), "end")
    made.arrow("M244 320V250", "complete, fail", (252, 296), "start")
    made.box(480, 320, 200, 60, "Providers, files", "models, speech, storage")
    made.arrow("M320 350H474", "your handlers call", (397, 342))
    return made


def task() -> Picture:
    """The states of a task, as the tables that hold its row."""
    made = Picture("A task is in one table at a time: parked, ready, leases or results", 800, 330)
    made.box(20, 40, 130, 60, "Your call", "start_job, add_tasks")
    made.box(230, 40, 130, 60, "Ready", "in its lane", look="strong")
    made.box(450, 40, 130, 60, "Leased", "a worker runs it", look="strong")
    made.box(660, 40, 120, 60, "Results", "succeeded", look="good")
    made.box(230, 200, 350, 70, "Parked",
             "waits for dependencies, a time, a retry, an answer,", "a resume, a quota or a limit")  # fmt: skip
    made.box(660, 200, 120, 70, "Dead letters", "failed", "permanently", look="bad")
    made.arrow("M150 70H224")
    made.arrow("M360 70H444", "claim", (402, 62))
    made.arrow("M580 70H654", "complete", (617, 62))
    made.arrow("M85 100V235H224", "has dependencies", (92, 226), "start")
    made.arrow("M290 200V106", "due", (282, 156), "end")
    made.arrow("M500 100V194", "retry, wait", (508, 150), "start")
    made.arrow("M570 100C600 130 620 160 654 214", "no attempts left", (625, 150), "start")
    made.arrow("M470 100C440 140 380 140 345 106", "lease expired", (408, 148))
    made.arrow("M720 270V300H190V88H224", "replay", (450, 294))
    return made


def fairness() -> Picture:
    """A long and a short queue, and the order of claims."""
    made = Picture("The claim takes turns between tenants by weight, not by queue length", 800, 300)
    lanes = (
        (50, "Acme", "1,000,000 tasks · weight 1", "strong", 11),
        (120, "Bolt", "3 tasks · weight 1", "good", 3),
        (190, "Cato", "6 tasks · weight 2", "bad", 6),
    )
    for y, name, about, look, count in lanes:
        made.text(20, y + 14, name, "name")
        made.text(20, y + 32, about)
        for number in range(count):
            made.parts.append(
                f'<rect class="box {look}" x="{230 + 18 * number}" y="{y}" width="14" height="34" rx="3"/>'
            )
        end = 236 + 18 * count
        if count == 11:
            made.text(end, y + 22, "…")
        made.arrow(f"M{end + (14 if count == 11 else 0)} {y + 17}C500 {y + 17} 470 137 506 137")
    made.box(512, 105, 90, 64, "Claim", "by weight")
    made.arrow("M602 137H632")
    order = ["bad", "strong", "bad", "good"] * 2
    for number, look in enumerate(order):
        x, y = 640 + 34 * (number % 4), 106 + 34 * (number // 4)
        made.parts.append(f'<rect class="box {look}" x="{x}" y="{y}" width="28" height="28" rx="4"/>')
    made.text(708, 92, "next 8 slots", anchor="middle")
    made.text(400, 272, "Of four slots Cato gets two, Acme one, Bolt one. A slot that a tenant does not use "
              "goes to the others.", anchor="middle")  # fmt: skip
    return made


def money() -> Picture:
    """Estimate, reservation, actual use, ledger."""
    made = Picture("A claim reserves the estimate; the report replaces it by the actual cost", 800, 330)
    made.box(20, 40, 160, 64, "Estimate", "units of the task", "× dated prices")
    made.box(240, 40, 180, 64, "Claim reserves", "in one transaction", look="strong")
    made.box(480, 40, 130, 64, "Provider call", "in your handler")
    made.box(670, 40, 110, 64, "Ledger", "append-only", look="good")
    made.arrow("M180 72H234")
    made.arrow("M420 72H474")
    made.arrow("M610 72H664", "actual", (637, 64))
    for x, name, about in (
        (120, "Limits", "requests and tokens per minute"),
        (330, "Quotas", "meters of the tenant's plan"),
        (540, "Budget", "money of this job"),
    ):
        made.box(x, 170, 200, 56, name, about)
        made.arrow(f"M{x + 100} 170C{x + 100} 140 330 140 330 110")
    made.text(
        400,
        262,
        "All three have room: the task runs, and its estimate is held with the lease.",
        anchor="middle",
    )
    made.text(
        400, 282, "One has no room: the task waits, and the command jobs why names it.", anchor="middle"
    )
    made.text(400, 302, "The report or a lost lease ends the hold, so nothing leaks.", anchor="middle")
    return made


def files() -> dict[str, str]:
    """The text of each file by its name."""
    return {f"concept-{draw.__name__}.svg": draw().svg() for draw in (architecture, task, fairness, money)}
