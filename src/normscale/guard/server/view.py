"""What ``/v1/state``, ``/v1/live`` and the page show of a guard: its state in words and numbers, its recent past."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from normscale._version import __version__
from normscale.encoding.json_text import number_for_json, read_json, write_json
from normscale.guard import Guard
from normscale.guard.judge import SHOWN
from normscale.guard.stores import Entry, Event, Standing

SECONDS, STEPS = 5, 120
"""The timeline has steps of five seconds over ten minutes."""
SCORES, MOST_FLAGGED, MOST_EVENTS, MOST_SOURCES = 1000, 20, 30, 20
"""Latest scores, flagged rows, other events and sources that a view shows."""


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
        sources: dict[str, list[float]] = {}
        for entry in self._latest:
            rows, some, _ = sources.get(entry.client, (0, 0, 0))
            sources[entry.client] = [rows + entry.rows, some + entry.flagged, entry.at]
        most = sorted(sources.items(), key=lambda item: -item[1][0])[:MOST_SOURCES]
        recent = scores[:SCORES][::-1]
        return {
            "timeline": {"seconds": SECONDS, "start": first * SECONDS, **{name: list(one) for name, one in columns}},
            "recent": {"score": [score for score, _ in recent], "predicted": [index for _, index in recent]},
            "flagged": flagged[:MOST_FLAGGED],
            "sources": [dict(zip(("source", "rows", "flagged", "at"), (name, *of), strict=True)) for name, of in most],
            "events": [
                {"at": one.at, "event": one.event, "by": one.by, "source": one.client, "note": one.details}
                for one in reversed(self._events)
            ],
        }


def state_document(guard: Guard) -> dict[str, Any]:
    """What a guard knows, without the past."""
    state, threshold, stream = guard.state, guard.state.threshold, guard.state.stream
    frozen = stream.frozen
    values = {reading.name: reading.value for reading in guard.readings()}
    return {
        "detector": guard.detector.name,
        "parameters": read_json(write_json(guard.detector.get_params()), words=False),
        "version": __version__,
        "threshold": {
            "value": threshold.value,
            "per_class": None if threshold.per_class is None else list(threshold.per_class),
            "keep": threshold.keep,
            "own": guard.start.threshold.value,
        },
        "rows": stream.rows,
        "scored": state.scored,
        "kept_out": state.kept_out,
        "mode": guard.mode,
        "notes": guard.notes,
        "probation": 0 if guard.by_client else guard.judge.probation_left(stream),
        "on_drift": guard.policy.on_drift,
        "streams": _streams(guard),
        "frozen_since": frozen and frozen.since,
        "frozen_because": frozen and frozen.because,
        "frozen_by": [alarm._asdict() for alarm in frozen.alarms] if frozen else [],
        "thaw": _thaw(guard),
        "alarms": [alarm._asdict() for alarm in stream.alarms],
        "readings": [
            {"name": name, "label": name.replace("_", " "), "value": values.get(name), "limit": number_for_json(limit)}
            for name, limit in guard.drift.limits.items()
        ],
        "classes": _classes(guard),
        "entry": state.seq,
        "store": guard.store.name,
        "now": guard.now,
    }


def _thaw(guard: Guard) -> dict[str, Any] | None:
    """When a frozen guard goes on by itself; None if it is not frozen, or only a person ends it."""
    stream, needed = guard.state.stream, guard.policy.calm
    if stream.frozen is None or stream.frozen.by_person or not math.isfinite(needed):
        return None
    calm_rows = guard.judge.calm_rows(stream)
    return {"calm_rows": calm_rows, "needed": math.ceil(needed), "to_come": max(0, math.ceil(needed - calm_rows))}


def _streams(guard: Guard) -> dict[str, Any]:
    """The streams of clients, where each has its own: how many, and those that are worst off."""
    counts, worst = guard.sources
    standing = {one.name.lower(): counts.get(one, 0) for one in Standing}
    streams = [
        {"source": one.source, "standing": Standing(one.standing).name.lower(), "part": one.part, **read_json(one.note)}
        for one in worst
    ]
    return {"by": guard.policy.stream_by, "most": guard.most_streams, "standing": standing, "worst": streams}


def _classes(guard: Guard) -> dict[str, Any]:
    baseline, stream = guard.detector._baseline, guard.state.stream
    recent, weight = stream.recent, stream.recent.moments.weight
    running = None if guard.by_client else stream.statistics.moments
    of_both = {"training": baseline and baseline.moments, "running": running}
    moments = {
        f"{when}_{name}": None if found is None else getattr(found, name).tolist()
        for when, found in of_both.items()
        for name in ("mean", "std")
    }
    return {
        "name": list(guard.detector.class_names or map(str, range(guard.n_classes))),
        "training_share": None if baseline is None else baseline.share.tolist(),
        "recent_share": (recent.predicted / weight).tolist() if weight else None,
        **moments,
        "weight": running and running.weight,
    }
