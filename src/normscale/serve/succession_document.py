"""What ``GET /v1/state`` and ``/metrics`` say of a shadow, and of a switch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from normscale.guard import GuardPair


def succession_document(guards: GuardPair) -> dict[str, Any]:
    """The shadow beside the serving guard, and the switch by which that guard came to serve; None: there is none."""
    return {"shadow": _shadow_document(guards), "switched": _switched_document(guards)}


def _shadow_document(guards: GuardPair) -> dict[str, Any] | None:
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


def _switched_document(guards: GuardPair) -> dict[str, Any] | None:
    former = guards.former
    if former is None or former.state.successor is None:
        return None
    successor = former.state.successor
    return {"at": successor.at, "by": successor.by, "from": former.detector.name, "from_store": former.store.name}


def shadow_metrics(shadow: dict[str, Any] | None) -> Iterator[Metric]:
    """The same for Prometheus; nothing where there is no shadow."""
    if shadow is None:
        return
    agreement = shadow["agreement"]
    compared = CounterMetricFamily(
        "normscale_shadow_rows", "Rows scored by the shadow, too, by who flagged them.", labels=["flagged_by"]
    )
    flagged = {"both": "both", "serving": "serving_only", "shadow": "shadow_only"}
    for label, name in flagged.items():
        compared.add_metric([label], agreement[name])
    compared.add_metric(["neither"], agreement["rows"] - sum(agreement[name] for name in flagged.values()))
    alarms = GaugeMetricFamily("normscale_shadow_alarm", "1: an alarm of the shadow.", labels=["reading"])
    for alarm in shadow["alarms"]:
        alarms.add_metric([alarm["name"]], 1.0)
    yield from (compared, alarms)
    yield GaugeMetricFamily("normscale_shadow_frozen", "1 while the shadow is.", float(shadow["mode"] == "frozen"))
    yield GaugeMetricFamily("normscale_shadow_up", "0 while its store fails.", float(shadow["trouble"] is None))
    yield CounterMetricFamily("normscale_shadow_missed_rows", "Rows of this worker it missed.", value=shadow["missed"])
