"""The JSON of ``/v1/state`` and ``/v1/live``: a guard in words and numbers."""

from __future__ import annotations

import math
from typing import Any

from normscale._version import __version__
from normscale.encoding.json_text import number_for_json
from normscale.guard import Guard


def state_document(guard: Guard) -> dict[str, Any]:
    """What a guard knows, without the past."""
    state, threshold, frozen = guard.state, guard.state.threshold, guard.state.frozen
    values = {reading.name: reading.value for reading in guard.readings()}
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
        "kept_out": state.kept_out,
        "mode": guard.mode,
        "probation": guard.judge.probation_left(state),
        "on_drift": guard.policy.on_drift,
        "frozen_since": frozen and frozen.since,
        "frozen_because": frozen and frozen.because,
        "frozen_by": [alarm._asdict() for alarm in frozen.alarms] if frozen else [],
        "thaw": _thaw(guard),
        "alarms": [alarm._asdict() for alarm in state.alarms],
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
    state, needed = guard.state, guard.policy.calm
    if state.frozen is None or state.frozen.by_person or not math.isfinite(needed):
        return None
    calm_rows = guard.judge.calm_rows(state)
    return {"calm_rows": calm_rows, "needed": math.ceil(needed), "to_come": max(0, math.ceil(needed - calm_rows))}


def _classes(guard: Guard) -> dict[str, Any]:
    baseline, recent = guard.detector.baseline_, guard.state.recent
    of_both = {"training": baseline and baseline.moments, "running": guard.state.statistics.moments}
    moments = {
        f"{when}_{name}": None if found is None else getattr(found, name).tolist()
        for when, found in of_both.items()
        for name in ("mean", "std")
    }
    return {
        "name": list(guard.detector.class_names or map(str, range(guard.n_classes))),
        "training_share": None if baseline is None else baseline.share.tolist(),
        "recent_share": (recent.predicted / recent.weight).tolist() if recent.weight else None,
        **moments,
        "weight": of_both["running"] and of_both["running"].weight,
    }


def _for_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _for_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    return number_for_json(value) if isinstance(value, float) else value
