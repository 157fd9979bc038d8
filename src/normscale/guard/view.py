"""The recent past of a guard, for people: what the page shows. A fold over entries, kept in memory only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from normscale.guard.entries import ASIDE, ROWS, Entry

SECONDS = 5
"""One step of the timeline."""
STEPS = 120
"""Ten minutes."""
SCORES = 1000
"""Latest scores that are kept."""
FLAGGED = 20
"""Latest flagged rows that are kept."""


class Flagged(NamedTuple):
    """A flagged row."""

    at: float
    score: float
    predicted: int
    client: str
    row: int
    """Its place in its request."""


class View:
    """Timeline, latest scores and latest flagged rows."""

    def __init__(self) -> None:
        """Nothing seen."""
        self.scores: deque[tuple[float, int]] = deque(maxlen=SCORES)
        self.flagged: deque[Flagged] = deque(maxlen=FLAGGED)
        self._steps: dict[int, list[int]] = {}
        self._pending: list[Entry] = []

    def feed(self, entries: Iterable[Entry]) -> None:
        """Hear of entries; they are looked at when somebody looks."""
        self._pending.extend(entries)
        if len(self._pending) >= 1000:
            self._digest()

    def _digest(self) -> None:
        pending, self._pending = self._pending, []
        for entry in pending:
            if entry.kind not in (ROWS, ASIDE):
                continue
            step = self._steps.setdefault(int(entry.at // SECONDS), [0, 0, 0])
            step[0] += entry.rows
            step[1] += entry.flagged
            if entry.kind == ASIDE:
                step[2] += entry.rows
            for score, predicted, row, flagged, sampled in entry.seen.tolist():
                if sampled:
                    self.scores.append((score, predicted))
                if flagged:
                    self.flagged.append(Flagged(entry.at, score, predicted, entry.client, row))
        if self._steps:
            newest = max(self._steps)
            for old in [number for number in self._steps if number <= newest - STEPS]:
                del self._steps[old]

    def timeline(self, now: float) -> dict[str, Any]:
        """Rows, flagged rows and rows set aside in each step of the last ten minutes, oldest first."""
        self._digest()
        first = int(now // SECONDS) - STEPS + 1
        steps = [self._steps.get(number, (0, 0, 0)) for number in range(first, first + STEPS)]
        rows, flagged, aside = (list(column) for column in zip(*steps, strict=True))
        return {"seconds": SECONDS, "start": first * SECONDS, "rows": rows, "flagged": flagged, "aside": aside}

    def recent(self) -> dict[str, list[Any]]:
        """The latest scores, oldest first, and the classes they were predicted as."""
        self._digest()
        return {"score": [score for score, _ in self.scores], "predicted": [predicted for _, predicted in self.scores]}

    def latest_flagged(self) -> list[dict[str, Any]]:
        """The latest flagged rows, latest first."""
        self._digest()
        return [row._asdict() for row in reversed(self.flagged)]
