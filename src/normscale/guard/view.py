"""The recent past of a guard, for people: what the page shows. A fold over entries, kept in memory only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from normscale.guard.entries import ASIDE, ROWS, Entry, seen_in

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
    """Timeline, latest scores and latest flagged rows. Hearing of an entry costs next to nothing, looking more."""

    def __init__(self) -> None:
        """Nothing seen."""
        self._steps: dict[int, list[int]] = {}
        self._newest = 0
        self._latest: deque[tuple[float, str, bytes]] = deque(maxlen=SCORES)

    def feed(self, entries: Iterable[Entry]) -> None:
        """Hear of entries."""
        for entry in entries:
            if entry.kind not in (ROWS, ASIDE):
                continue
            number = int(entry.at // SECONDS)
            step = self._steps.get(number)
            if step is None:
                step = self._steps[number] = [0, 0, 0]
                self._newest = max(self._newest, number)
                for old in [known for known in self._steps if known <= self._newest - STEPS]:
                    del self._steps[old]
            step[0] += entry.rows
            step[1] += entry.flagged
            if entry.kind == ASIDE:
                step[2] += entry.rows
            self._latest.append((entry.at, entry.client, entry.glimpse))

    def timeline(self, now: float) -> dict[str, Any]:
        """Rows, flagged rows and rows set aside in each step of the last ten minutes, oldest first."""
        first = int(now // SECONDS) - STEPS + 1
        steps = [self._steps.get(number, (0, 0, 0)) for number in range(first, first + STEPS)]
        rows, flagged, aside = (list(column) for column in zip(*steps, strict=True))
        return {"seconds": SECONDS, "start": first * SECONDS, "rows": rows, "flagged": flagged, "aside": aside}

    def recent(self) -> dict[str, list[Any]]:
        """The latest scores, oldest first, and the classes they were predicted as."""
        scores: list[float] = []
        classes: list[int] = []
        for _, _, glimpse in reversed(self._latest):
            seen = seen_in(glimpse)
            seen = seen[seen["sampled"]][::-1]
            scores += seen["score"].tolist()
            classes += seen["predicted"].tolist()
            if len(scores) >= SCORES:
                break
        return {"score": scores[:SCORES][::-1], "predicted": classes[:SCORES][::-1]}

    def latest_flagged(self) -> list[dict[str, Any]]:
        """The latest flagged rows, latest first."""
        found: list[dict[str, Any]] = []
        for at, client, glimpse in reversed(self._latest):
            seen = seen_in(glimpse)
            for score, predicted, row, *_ in reversed(seen[seen["flagged"]].tolist()):
                found.append(Flagged(at, score, predicted, client, row)._asdict())
            if len(found) >= FLAGGED:
                break
        return found[:FLAGGED]
