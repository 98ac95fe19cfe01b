"""The sample book of the demo."""

from __future__ import annotations

from typing import Any

RUNNING_WATER: dict[str, Any] = {
    "title": "Running Water",
    "subtitle": "Sixteen short readings, from the spring to the sea",
    "chapters": [
        *("Springs", "Brooks", "Meadows", "Willows", "Otters", "Herons", "Mills", "Weirs"),
        *("Sluices", "Bridges", "Locks", "Canals", "Reservoirs", "Penstocks", "Turbines", "Harbours"),
    ],
}
