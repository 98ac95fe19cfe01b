"""Formats values for people: numbers, money, durations, sizes, JSON without secrets, stack traces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

COUNT_LIMIT = 100_000
"""Live counts stop here and are shown as "100,000+"."""

SHOWN_IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif", "image/avif"})
"""Pictures that every browser draws, and that cannot run anything."""

HIDDEN = "•••••"
_SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token$|api_?key|authorization|credential|private_?key|cookie|^auth$", re.I
)
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
# The reason that the database stores when a job is canceled without one.
_CANCELED_BY = re.compile(r"(?<=canceled by )(?:user|service):[\w-]+")
# Library frames are folded away, so that the app's own frames stand out.
_LIBRARY = re.compile(r"(site-packages|dist-packages|lib/python\d|/penstock/|<frozen)")

STATUS_STYLES: Mapping[str, tuple[str, str]] = {
    "queued": ("○", "idle"),
    "blocked": ("◌", "idle"),
    "waiting": ("◔", "idle"),
    "running": ("●", "busy"),
    "paused": ("‖", "warn"),
    "draining": ("‖", "warn"),
    "completed": ("✓", "good"),
    "succeeded": ("✓", "good"),
    "failed": ("✗", "bad"),
    "canceled": ("⊘", "idle"),
    "late": ("!", "warn"),
    "gone": ("✗", "bad"),
    "stopped": ("⊘", "idle"),
    "active": ("✓", "good"),
    "full": ("●", "busy"),
    "closed": ("‖", "warn"),
    "maintenance": ("‖", "warn"),
    "exhausted": ("✗", "bad"),
    "disabled": ("⊘", "idle"),
    "lost": ("✗", "bad"),
    "open": ("○", "warn"),
    "applied": ("✓", "good"),
    "stale": ("⊘", "idle"),
    "ignored": ("⊘", "idle"),
    "unmatched": ("!", "warn"),
    "answered": ("✓", "good"),
    "pending": ("○", "idle"),
    "processing": ("●", "busy"),
    "timeout": ("✗", "bad"),
    "held": ("○", "idle"),
}
"""An icon and a color tone for each status. The word is always shown next to them."""


def number(value: Decimal | float | None, limit: int | None = None) -> str:
    """Format a number as 12,345, or as 10,000+ if it is above the limit at which counting stopped."""
    if value is None:
        return "–"
    if limit is not None and value > limit:
        return f"{limit:,}+"
    if isinstance(value, Decimal):
        value = value.normalize()
        return f"{value:,f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def plural(count: Decimal | float | None, one: str, many: str | None = None) -> str:
    """Return the singular for exactly one, otherwise the plural (by default with an "s")."""
    return one if count == 1 else many or f"{one}s"


def counted(
    count: Decimal | float | None, one: str, many: str | None = None, limit: int | None = None
) -> str:
    """Format a count with its noun: 1 task, 12,345 tasks."""
    return f"{number(count, limit)} {plural(count, one, many)}"


def sentence(text: str) -> str:
    """Start the text with a capital letter and end it with a period. The rest keeps its case."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) or not text else ".")


def brief(params: Mapping[str, Any], most: int = 60) -> str:
    """Format a job's params in a few words, without secrets: its texts, or its numbers if there are none."""
    shown = {name: value for name, value in params.items() if not _SECRET.search(name)}
    lists = [cast("list[Any]", each)[:10] if isinstance(each, list) else [each] for each in shown.values()]
    words = [each for some in lists for each in some if isinstance(each, str) and each]
    numbers = [f"{name} {value}" for name, value in shown.items() if isinstance(value, int | float)]
    text = " ".join(", ".join(words or numbers).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def browser(user_agent: str | None) -> str:
    """Name the browser and the system of a User-Agent header: Firefox 140 on Linux."""
    found = re.search(r"(Edg|OPR|Chrome|Firefox|Version)/(\d+)", user_agent or "")
    if user_agent is None or found is None:
        return user_agent or "unknown"
    # Other browsers name themselves after the one that they are built on.
    own = re.search(r"(Edg|OPR)/(\d+)", user_agent) or found
    name = {"Edg": "Edge", "OPR": "Opera", "Version": "Safari"}.get(own[1], own[1])
    system = re.search(r"iPhone|iPad|Android|Windows|Macintosh|Linux", user_agent)
    return f"{name} {own[2]}" + (f" on {system[0].replace('Macintosh', 'macOS')}" if system else "")


def money(value: Decimal | None, currency: str = "") -> str:
    """Format an amount with two decimals, or with more if a small amount would otherwise read as zero."""
    if value is None:
        return "–"
    places = 2
    while places < 8 and value and abs(value) < Decimal(10) ** (1 - places):
        places += 1
    text = f"{value:,.{places}f}".replace("-", "−")
    if places > 2:
        # 0.05 rather than 0.050.
        whole, _, part = text.partition(".")
        text = f"{whole}.{part.rstrip('0').ljust(2, '0')}"
    return f"{text} {currency}" if currency else text


def duration(seconds: float | None) -> str:
    """Format a duration: 850 ms, 1.2 s, 4 min, 2 h 10 min, 3 d."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{round(seconds)} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    if seconds < 172_800:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes} min" if minutes and hours < 10 else f"{hours} h"
    return f"{round(seconds / 86400)} d"


def ago(moment: datetime, now: datetime) -> str:
    """Format a time relative to now: 3 min ago, in 2 h."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    whole = abs(seconds) if abs(seconds) >= 10 else float(round(abs(seconds)))
    text = duration(whole).replace(".0 s", " s")
    return f"{text} ago" if seconds > 0 else f"in {text}"


def absolute(moment: datetime) -> str:
    """Format a time in full: 2026-11-15 14:03:22 UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(count: int | None) -> str:
    """Format a file size: 1.4 MB."""
    if count is None:
        return "–"
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def redacted(value: Any) -> Any:
    """Return the JSON value with every value hidden whose name says that it is a secret."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if _SECRET.search(str(name)) and item not in (None, "", {}, []) else redacted(item)
            for name, item in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [redacted(item) for item in cast("list[Any]", value)]
    return value


def is_secret(name: str) -> bool:
    """Whether the name of a value says that it is a secret."""
    return _SECRET.search(name) is not None


def restored(value: Any, original: Any) -> Any:
    """Return a value that was shown redacted, with its hidden parts filled in from the original."""
    match value, original:
        case str(), _ if value == HIDDEN:
            return original
        case dict(), dict():
            known = cast("dict[str, Any]", original)
            values = cast("dict[str, Any]", value)
            return {name: restored(item, known.get(name)) for name, item in values.items()}
        case list(), list():
            items, old = cast("list[Any]", value), cast("list[Any]", original)
            return [restored(item, old[n] if n < len(old) else None) for n, item in enumerate(items)]
        case _:
            return value


def document(value: Any) -> str:
    """Format a value as indented JSON without its secrets."""
    return json.dumps(redacted(value), indent=2, ensure_ascii=False, default=str)


def canceling_actors(texts: Iterable[str | None]) -> list[str]:
    """Return the actors in texts such as "canceled by user:ID"."""
    return [actor for text in texts if text for actor in _CANCELED_BY.findall(text)]


def with_actor_names(text: str, names: Mapping[str, str]) -> str:
    """Replace the actor in "canceled by user:ID" with the actor's name."""
    return _CANCELED_BY.sub(lambda found: names.get(found[0], found[0]), text)


def details(values: Mapping[str, Any]) -> str:
    """Format a flat JSON object as text: name: value, name: value."""
    return ", ".join(f"{name}: {_plain(value)}" for name, value in redacted(dict(values)).items())


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{Decimal(repr(value)).normalize():f}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def meter_amount(value: Decimal | None, meter: str) -> str:
    """Format an amount of a meter: money for cost, a file size for bytes, otherwise a number."""
    if meter == "cost":
        return money(value)
    return size(int(value)) if meter == "bytes" and value is not None else number(value)


def frames(stack: str) -> list[tuple[bool, str]]:
    """Split a stack trace into blocks of app frames (True) and library frames (False), in order."""
    parts: list[tuple[bool, str]] = []
    is_own = True
    for line in stack.splitlines():
        if line.startswith("  File "):
            is_own = not _LIBRARY.search(line)
        elif not line.startswith("    "):
            is_own = True
        if parts and parts[-1][0] == is_own:
            parts[-1] = (is_own, parts[-1][1] + "\n" + line)
        else:
            parts.append((is_own, line))
    return parts


def is_id(text: str) -> bool:
    """Whether the text is a UUID."""
    return _ID.fullmatch(text) is not None


def percent(part: Decimal | float | None, whole: Decimal | float | None) -> float:
    """Return the share of the whole, from 0 to 100."""
    if not whole or part is None:
        return 0.0
    return min(100.0, max(0.0, 100 * float(part) / float(whole)))
