"""The log of a guard, for people, and the view of its recent past that the page shows.

An entry tells of a block of rows that was answered, an alarm or a decision. Of a block it keeps a few rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from normscale._validate import BoolArray, FloatArray, IntArray
from normscale.encoding.json_text import read_json

SHOWN = np.dtype([("score", "<f4"), ("predicted", "<i4"), ("row", "<i4"), ("flagged", "?"), ("sampled", "?")])
"""What the log keeps of a row: ``sampled`` says whether it was chosen without regard to whether it was flagged."""
_MOST_SHOWN, _MOST_FLAGGED_SHOWN = 48, 8  # rows of a block that the log keeps, and how many flagged ones besides
_LARGEST_SINGLE = 3e38
SECONDS, STEPS = 5, 120
"""The timeline has steps of five seconds over ten minutes."""
SCORES, MOST_FLAGGED, MOST_EVENTS = 1000, 20, 30
"""Latest scores, flagged rows, and other events that a view shows."""


class Event(StrEnum):
    """What an entry tells of."""

    ROWS = "rows"
    KEPT_OUT = "kept_out"
    ALARM = "alarm"
    CALM = "calm"
    FREEZE = "freeze"
    THAW = "thaw"
    THRESHOLD = "threshold"
    RESET = "reset"
    ADOPT = "adopt"


class Entry(NamedTuple):
    """One line of the log."""

    seq: int
    at: float
    """Seconds since 1970, never going back."""
    event: str
    client: str = ""
    rows: int = 0
    flagged: int = 0
    display_sample: bytes = b""
    by: str = ""
    """Who decided; empty for what the guard does by itself."""
    note: str = ""
    """JSON: why rows were kept out, what an alarm says, the reason of a decision."""

    @property
    def details(self) -> dict[str, Any]:
        """The note, read."""
        return read_json(self.note) if self.note else {}


def sample_for_display(
    scores: FloatArray, predicted: IntArray, flagged: BoolArray, request_starts: IntArray, places: IntArray
) -> bytes:
    """Choose evenly spread rows and the first flagged ones; all rows of a small block.

    ``request_starts`` says where in the block each request begins, ``places`` which of the block's rows these are.
    """
    n, even = scores.size, min(scores.size, _MOST_SHOWN)
    chosen = np.arange(even)
    if n > even:
        chosen = np.concatenate([chosen * (n - 1) // (even - 1), np.flatnonzero(flagged)[:_MOST_FLAGGED_SHOWN]])
    records, place = np.zeros(chosen.size, SHOWN), places[chosen]
    records["score"] = np.clip(scores[chosen], -_LARGEST_SINGLE, _LARGEST_SINGLE)
    records["predicted"], records["flagged"] = predicted[chosen], flagged[chosen]
    records["row"] = place - request_starts[np.searchsorted(request_starts, place, side="right") - 1]
    records["sampled"][:even] = True
    return records.tobytes()


class View:
    """Timeline, latest scores and latest flagged rows. Feeding an entry costs next to nothing, looking more."""

    def __init__(self) -> None:
        self._steps: dict[int, list[int]] = {}
        self._latest: deque[Entry] = deque(maxlen=SCORES)
        self._events: deque[Entry] = deque(maxlen=MOST_EVENTS)

    def feed(self, entries: Iterable[Entry]) -> None:
        """Add new entries."""
        for entry in entries:
            if entry.event not in (Event.ROWS, Event.KEPT_OUT):
                self._events.append(entry)
                continue
            step = self._steps.setdefault(int(entry.at // SECONDS), [0, 0, 0])
            if len(self._steps) > STEPS:
                del self._steps[min(self._steps)]
            for place, rows in enumerate((entry.rows, entry.flagged, entry.rows * (entry.event != Event.ROWS))):
                step[place] += rows
            self._latest.append(entry)

    def document(self, now: float) -> dict[str, Any]:
        """The timeline and latest scores, oldest first; latest flagged rows and other events, latest first."""
        first = int(now // SECONDS) - STEPS + 1
        steps = [self._steps.get(number, (0, 0, 0)) for number in range(first, first + STEPS)]
        columns = zip(("rows", "flagged", "kept_out"), zip(*steps, strict=True), strict=True)
        scores: list[tuple[float, int]] = []
        flagged: list[dict[str, Any]] = []
        for entry in reversed(self._latest):
            shown = np.frombuffer(entry.display_sample, SHOWN)[::-1]
            scores += shown[shown["sampled"]][["score", "predicted"]].tolist()
            for score, predicted, row, *_ in shown[shown["flagged"]].tolist():
                place = {"client": entry.client, "row": row}  # the row's place in its request
                flagged.append({"at": entry.at, "score": score, "predicted": predicted, **place})
            if len(scores) >= SCORES and len(flagged) >= MOST_FLAGGED:
                break
        recent = scores[:SCORES][::-1]
        return {
            "timeline": {"seconds": SECONDS, "start": first * SECONDS, **{name: list(one) for name, one in columns}},
            "recent": {"score": [score for score, _ in recent], "predicted": [index for _, index in recent]},
            "flagged": flagged[:MOST_FLAGGED],
            "events": [
                {"at": one.at, "event": str(one.event), "by": one.by, "rows": one.rows, "note": one.details}
                for one in reversed(self._events)
            ],
        }
