"""The recent past of a guard, for people: what the page shows. A fold over entries, kept in memory only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from normscale.guard.display_sample import displayed_rows
from normscale.guard.entries import Entry, Event

SECONDS = 5
"""One step of the timeline."""
STEPS = 120
"""Ten minutes."""
SCORES = 1000
"""Latest scores that are kept."""
MOST_FLAGGED = 20
"""Latest flagged rows that are kept."""


class FlaggedRow(NamedTuple):
    """A flagged row as the page lists it."""

    at: float
    score: float
    predicted: int
    client: str
    row: int
    """Its place in its request."""


class View:
    """Timeline, latest scores and latest flagged rows. Feeding an entry costs next to nothing, looking more."""

    def __init__(self) -> None:
        self._steps: dict[int, list[int]] = {}
        self._newest = 0
        self._latest: deque[tuple[float, str, bytes]] = deque(maxlen=SCORES)

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take new entries in."""
        for entry in entries:
            if entry.event not in (Event.ROWS, Event.QUARANTINE):
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
            if entry.event == Event.QUARANTINE:
                step[2] += entry.rows
            self._latest.append((entry.at, entry.client, entry.display_sample))

    def timeline(self, now: float) -> dict[str, Any]:
        """Rows, flagged rows and quarantined rows in each step of the last ten minutes, oldest first."""
        first = int(now // SECONDS) - STEPS + 1
        steps = [self._steps.get(number, (0, 0, 0)) for number in range(first, first + STEPS)]
        rows, flagged, quarantined = (list(column) for column in zip(*steps, strict=True))
        return {
            "seconds": SECONDS,
            "start": first * SECONDS,
            "rows": rows,
            "flagged": flagged,
            "quarantined": quarantined,
        }

    def recent(self) -> dict[str, list[Any]]:
        """The latest scores, oldest first, and the classes they were predicted as."""
        scores: list[float] = []
        classes: list[int] = []
        for _, _, sample in reversed(self._latest):
            shown = displayed_rows(sample)
            shown = shown[shown["sampled"]][::-1]
            scores += shown["score"].tolist()
            classes += shown["predicted"].tolist()
            if len(scores) >= SCORES:
                break
        return {"score": scores[:SCORES][::-1], "predicted": classes[:SCORES][::-1]}

    def latest_flagged(self) -> list[dict[str, Any]]:
        """The latest flagged rows, latest first."""
        found: list[dict[str, Any]] = []
        for at, client, sample in reversed(self._latest):
            shown = displayed_rows(sample)
            for score, predicted, row, *_ in reversed(shown[shown["flagged"]].tolist()):
                found.append(FlaggedRow(at, score, predicted, client, row)._asdict())
            if len(found) >= MOST_FLAGGED:
                break
        return found[:MOST_FLAGGED]
