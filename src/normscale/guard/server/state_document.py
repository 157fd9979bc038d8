"""The JSON of ``/v1/state`` and ``/v1/live``: a guard in words and numbers."""

from __future__ import annotations

import math
from typing import Any

from normscale._version import __version__
from normscale.encoding.json_text import number_for_json
from normscale.guard import Guard, GuardPair
from normscale.guard.drift import LABELS


def state_document(guards: GuardPair) -> dict[str, Any]:
    """What the guard in use knows, without the past, and what stands beside it."""
    guard = guards.serving
    state = guard.state
    values = {reading.name: reading.value for reading in guard.readings()}
    threshold = state.threshold
    return {
        "detector": guard.detector.name,
        "parameters": {name: _for_json(value) for name, value in guard.detector.get_params().items()},
        "version": __version__,
        "threshold": {
            "value": threshold.value,
            "per_class": None if threshold.per_class is None else list(threshold.per_class),
            "keep": threshold.keep,
            "own": guard.start.threshold.value,
        },
        "rows": state.rows,
        "scored": state.scored,
        "quarantined": state.quarantined,
        "mode": guard.mode,
        "probation": guard.judge.probation_left(state),
        "on_drift": guard.policy.on_drift,
        "frozen_since": None if state.frozen is None else state.frozen.since,
        "frozen_because": None if state.frozen is None else state.frozen.because,
        "frozen_by": [] if state.frozen is None else [alarm._asdict() for alarm in state.frozen.alarms],
        "thaw": _thaw(guard),
        "alarms": [alarm._asdict() for alarm in state.alarms],
        "readings": [
            {"name": name, "label": LABELS[name], "value": values.get(name), "limit": number_for_json(limit)}
            for name, limit in guard.drift.limits.items()
        ],
        "classes": _classes(guard),
        "entry": state.seq,
        "store": guard.store.name,
        "now": guard.now,
        "shadow": _shadow(guards),
        "switched": _switched(guards),
    }


def _thaw(guard: Guard) -> dict[str, Any] | None:
    """When a frozen guard goes on by itself; None if it is not frozen, or only a person ends it."""
    state, needed = guard.state, guard.policy.calm
    if state.frozen is None or state.frozen.by_person or not math.isfinite(needed):
        return None
    calm_rows = guard.judge.calm_rows(state)
    return {"calm_rows": calm_rows, "needed": math.ceil(needed), "to_come": max(0, math.ceil(needed - calm_rows))}


def _classes(guard: Guard) -> dict[str, Any]:
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


def _shadow(guards: GuardPair) -> dict[str, Any] | None:
    """The shadow beside the serving guard, if there is one."""
    shadow = guards.shadow
    if shadow is None:
        return None
    state, agreement = shadow.state, shadow.state.agreement
    rows = max(agreement.rows, 1)
    return {
        "detector": shadow.detector.name,
        "store": shadow.store.name,
        "mode": shadow.mode,
        "rows": state.rows,
        "threshold": state.threshold.value,
        "alarms": [alarm._asdict() for alarm in state.alarms],
        "agreement": agreement._asdict(),
        "flagged_share": (agreement.both + agreement.shadow_only) / rows,
        "serving_flagged_share": (agreement.both + agreement.serving_only) / rows,
        "missed": guards.missed,
        "trouble": guards.trouble,
    }


def _switched(guards: GuardPair) -> dict[str, Any] | None:
    """The switch by which the guard came to serve, if there was one."""
    former = guards.former
    if former is None or former.state.successor is None:
        return None
    successor = former.state.successor
    return {"at": successor.at, "by": successor.by, "from": former.detector.name, "from_store": former.store.name}


def live_document(guards: GuardPair) -> dict[str, Any]:
    """What the page shows: the state, and the recent past."""
    guard = guards.serving
    past = {"recent": guard.view.recent(), "flagged": guard.view.latest_flagged(), "events": guard.view.events()}
    return {**state_document(guards), "timeline": guard.view.timeline(guard.now), **past}


def _for_json(value: Any) -> Any:
    """A parameter, which may be the specification of another detector."""
    if isinstance(value, dict):
        return {key: _for_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    return number_for_json(value) if isinstance(value, float) else value
