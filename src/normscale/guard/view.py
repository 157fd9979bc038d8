"""The recent past of a guard, for people: what the page shows.

Of every block a few rows are kept in its entry of the log. A view is a fold over entries, in memory only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from normscale.encoding.json_text import read_json
from normscale.guard.entries import Entry, Event
from normscale.guard.judge import SHOWN

SECONDS = 5
"""One step of the timeline."""
STEPS = 120
"""Ten minutes."""
SCORES = 1000
"""Latest scores that are kept."""
MOST_FLAGGED = 20
"""Latest flagged rows that are kept."""
MOST_EVENTS = 30
"""Latest alarms, freezes and decisions that are kept."""


class View:
    """Timeline, latest scores and latest flagged rows. Feeding an entry costs next to nothing, looking more."""

    def __init__(self) -> None:
        self._steps: dict[int, list[int]] = {}
        self._latest: deque[tuple[float, str, bytes]] = deque(maxlen=SCORES)
        self._events: deque[Entry] = deque(maxlen=MOST_EVENTS)

    def feed(self, entries: Iterable[Entry]) -> None:
        """Add new entries."""
        for entry in entries:
            if entry.event not in (Event.ROWS, Event.QUARANTINE):
                if entry.event != Event.COMPARED:
                    self._events.append(entry)
                continue
            number = int(entry.at // SECONDS)
            step = self._steps.setdefault(number, [0, 0, 0])
            if len(self._steps) > STEPS:
                del self._steps[min(self._steps)]
            step[0] += entry.rows
            step[1] += entry.flagged
            if entry.event == Event.QUARANTINE:
                step[2] += entry.rows
            self._latest.append((entry.at, entry.client, entry.display_sample))

    def timeline(self, now: float) -> dict[str, Any]:
        """Rows, flagged rows and quarantined rows in each step of the last ten minutes, oldest first."""
        first = int(now // SECONDS) - STEPS + 1
        steps = [self._steps.get(number, (0, 0, 0)) for number in range(first, first + STEPS)]
        columns = zip(("rows", "flagged", "quarantined"), zip(*steps, strict=True), strict=True)
        return {"seconds": SECONDS, "start": first * SECONDS, **{name: list(column) for name, column in columns}}

    def recent(self) -> dict[str, list[Any]]:
        """The latest scores, oldest first, and the classes they were predicted as."""
        scores: list[float] = []
        classes: list[int] = []
        for _, _, sample in reversed(self._latest):
            shown = np.frombuffer(sample, SHOWN)
            shown = shown[shown["sampled"]][::-1]
            scores += shown["score"].tolist()
            classes += shown["predicted"].tolist()
            if len(scores) >= SCORES:
                break
        return {"score": scores[:SCORES][::-1], "predicted": classes[:SCORES][::-1]}

    def latest_flagged(self) -> list[dict[str, Any]]:
        """The latest flagged rows, latest first; ``row`` is a row's place in its request."""
        found: list[dict[str, Any]] = []
        for at, client, sample in reversed(self._latest):
            shown = np.frombuffer(sample, SHOWN)
            for score, predicted, row, *_ in reversed(shown[shown["flagged"]].tolist()):
                found.append({"at": at, "score": score, "predicted": predicted, "client": client, "row": row})
            if len(found) >= MOST_FLAGGED:
                break
        return found[:MOST_FLAGGED]

    def events(self) -> list[dict[str, Any]]:
        """The latest alarms, freezes and decisions, latest first."""
        return [
            {
                "at": entry.at,
                "event": str(entry.event),
                "by": entry.by,
                "rows": entry.rows,
                "note": read_json(entry.note) if entry.note else {},
            }
            for entry in reversed(self._events)
        ]
