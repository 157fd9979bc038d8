"""The JSON of ``/v1/state`` and ``/v1/live``: a guard in words and numbers."""

from __future__ import annotations

import math
from typing import Any

from normscale._version import __version__
from normscale.detectors.threshold import Threshold
from normscale.encoding.json_text import number_for_json
from normscale.guard import Guard
from normscale.guard.drift import LABELS


def threshold_document(threshold: Threshold, own: Threshold) -> dict[str, Any]:
    """The threshold in force, and the detector file's own."""
    return {
        "value": threshold.value,
        "per_class": None if threshold.per_class is None else list(threshold.per_class),
        "keep": threshold.keep,
        "own": own.value,
    }


def state_document(guard: Guard) -> dict[str, Any]:
    """What a guard knows, without the past."""
    state = guard.state
    running = None if state.frozen is not None else state.statistics.moments  # as the guard itself reads them
    values = {reading.name: reading.value for reading in guard.drift.readings(state.recent, running)}
    return {
        "detector": guard.detector.name,
        "parameters": {name: _for_json(value) for name, value in guard.detector.get_params().items()},
        "version": __version__,
        "threshold": threshold_document(state.threshold, guard.start.threshold),
        "rows": state.rows,
        "scored": state.scored,
        "quarantined": state.quarantined,
        "mode": guard.mode,
        "on_drift": guard.policy.on_drift,
        "frozen_since": None if state.frozen is None else state.frozen.since,
        "frozen_because": None if state.frozen is None else state.frozen.because,
        "frozen_by": [] if state.frozen is None else [alarm._asdict() for alarm in state.frozen.alarms],
        "thaw": thaw_document(guard),
        "alarms": [alarm._asdict() for alarm in state.alarms],
        "readings": [
            {"name": name, "label": LABELS[name], "value": values.get(name), "limit": number_for_json(limit)}
            for name, limit in guard.drift.limits().items()
        ],
        "classes": class_profiles(guard),
        "entry": state.seq,
        "store": guard.store.name,
        "now": guard.now,
    }


def thaw_document(guard: Guard) -> dict[str, Any] | None:
    """When a frozen guard goes on by itself; None if it is not frozen, or only a person ends it."""
    state = guard.state
    if state.frozen is None or state.frozen.by_person or not math.isfinite(guard.judge.thaws_after(state)):
        return None
    needed = math.ceil(guard.judge.thaws_after(state))
    return {"calm_rows": state.calm_rows, "needed": needed, "to_come": max(0, needed - state.calm_rows)}


def class_profiles(guard: Guard) -> dict[str, Any]:
    """The classes, column by column: running against training. A column that does not exist is None."""
    baseline, recent = guard.detector.baseline_, guard.state.recent
    running = guard.state.statistics.moments
    names = guard.detector.class_names or tuple(str(index) for index in range(guard.n_classes))
    return {
        "name": list(names),
        "training_share": None if baseline is None else baseline.share.tolist(),
        "recent_share": (recent.predicted / recent.weight).tolist() if recent.weight else None,
        "training_mean": None if baseline is None else baseline.moments.mean.tolist(),
        "running_mean": None if running is None else running.mean.tolist(),
        "training_std": None if baseline is None else baseline.moments.std.tolist(),
        "running_std": None if running is None else running.std.tolist(),
        "weight": None if running is None else running.weight,
    }


def live_document(guard: Guard) -> dict[str, Any]:
    """What the page shows: the state, and the recent past."""
    now = guard.now
    return {
        **state_document(guard),
        "timeline": guard.view.timeline(now),
        "recent": guard.view.recent(),
        "flagged": guard.view.latest_flagged(),
    }


def _for_json(value: Any) -> Any:
    """A parameter, which may be the specification of another detector."""
    if isinstance(value, dict):
        return {key: _for_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    return number_for_json(value) if isinstance(value, float) else value
