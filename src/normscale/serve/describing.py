"""A guard in words and numbers: the JSON of ``/v1/state`` and ``/v1/live``."""

from __future__ import annotations

import math
from typing import Any

from normscale._version import __version__
from normscale.detectors.decision import Threshold
from normscale.guard import Guard
from normscale.guard.monitor import BALANCE, FLAGGED, LABELS, SHIFT, SPREAD


def describe_threshold(threshold: Threshold, own: Threshold) -> dict[str, Any]:
    """The threshold in force, and the guard file's own."""
    return {
        "value": threshold.value,
        "per_class": None if threshold.per_class is None else list(threshold.per_class),
        "keep": threshold.keep,
        "own": own.value,
    }


def describe_state(guard: Guard) -> dict[str, Any]:
    """What a guard knows, without the past."""
    state = guard.state
    readings = {reading.kind: reading for reading in guard.yardstick.readings(state.monitor)}
    policy = guard.policy
    limits = {BALANCE: policy.balance, SHIFT: policy.shift, SPREAD: policy.spread, FLAGGED: policy.flagged}
    return {
        "detector": guard.detector.name,
        "parameters": {name: _plain(value) for name, value in guard.detector.get_params().items()},
        "version": __version__,
        "threshold": describe_threshold(state.threshold, guard.start.threshold),
        "rows": state.rows,
        "scored": state.scored,
        "aside": state.aside,
        "mode": guard.mode,
        "on_drift": guard.policy.on_drift,
        "frozen_since": None if state.frozen is None else state.frozen.since,
        "frozen_because": None if state.frozen is None else state.frozen.because,
        "alarms": [alarm._asdict() for alarm in state.alarms],
        "monitors": [
            {
                "kind": kind,
                "label": LABELS[kind],
                "value": readings[kind].value if kind in readings else None,
                "limit": _plain(limit),
            }
            for kind, limit in limits.items()
        ],
        "classes": describe_classes(guard),
        "entry": state.seq,
        "store": guard.store.name,
        "now": guard.now,
    }


def describe_classes(guard: Guard) -> dict[str, Any]:
    """The classes, column by column: running against training. A column that does not exist is None."""
    reference, monitor = guard.detector.reference_, guard.state.monitor
    running = guard.state.statistics.moments
    names = guard.detector.class_names or tuple(str(index) for index in range(guard.n_classes))
    return {
        "name": list(names),
        "training_share": None if reference is None else reference.share.tolist(),
        "recent_share": (monitor.predicted / monitor.weight).tolist() if monitor.weight else None,
        "training_mean": None if reference is None else reference.moments.mean.tolist(),
        "running_mean": None if running is None else running.mean.tolist(),
        "training_std": None if reference is None else reference.moments.std.tolist(),
        "running_std": None if running is None else running.std.tolist(),
        "weight": None if running is None else running.weight,
    }


def describe_view(guard: Guard) -> dict[str, Any]:
    """What the page shows: the state, and the recent past."""
    now = guard.now
    return {
        **describe_state(guard),
        "timeline": guard.view.timeline(now),
        "recent": guard.view.recent(),
        "flagged": guard.view.latest_flagged(),
    }


def _plain(value: Any) -> Any:
    """JSON has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
