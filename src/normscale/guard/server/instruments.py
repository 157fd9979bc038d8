"""What the workers count, and the metrics for Prometheus.

Labels take few values: paths are those of routes, classes beyond the first hundred share one, readings are a fixed
list. Clients are no label.
"""

from __future__ import annotations

import glob
import math
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from normscale._version import __version__
from normscale.guard import Verdict

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_MARGINS = (*(-step for step in reversed(_STEPS)), 0.0, *_STEPS)
"""Scores have the scale of their detector, so these are fine near the threshold and coarse far from it."""
_MOST_CLASSES = 100
_RECENT_SECONDS = 10.0
_JOINED: dict[str, Callable[[Iterable[float]], float]] = {"process_start_time_seconds": min, "process_max_fds": min}
"""How such a metric of several workers becomes one; all others are added."""
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class Instruments:
    """What a worker counts by itself."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry)
        self._requests = counter("normscale_requests", "Requests by path and status.", ["path", "status"])
        self._rows = counter("normscale_rows", "Rows answered, by what became of them.", ["guard", "fate"])
        self._flagged = counter("normscale_flagged_rows", "Rows flagged, by class.", ["guard", "predicted"])
        self._margins = histogram(
            "normscale_score_margin", "Scores less the threshold; above 0 is flagged.", ["guard"], buckets=_MARGINS
        )
        self._seconds = histogram(
            "normscale_infer_seconds", "From a request's arrival to its answer.", ["guard"], buckets=_SECONDS
        )
        self.alarms = counter("normscale_alarms", "Alarms that were raised.", ["guard", "reading"])
        self.freezes = counter("normscale_freezes", "Times it was frozen.", ["guard"])
        self.store_errors = counter("normscale_store_errors", "Requests that the store failed.", ["guard"])
        self._recent: deque[tuple[float, int, float]] = deque(maxlen=4096)

    def begin(self, guard: str, readings: Iterable[str]) -> None:
        """Let counters of a guard begin at 0, so that their first increase is seen."""
        for fate in ("taken_in", "quarantined"):
            self._rows.labels(guard, fate)
        for reading in readings:
            self.alarms.labels(guard, reading)
        for counter in (self.freezes, self.store_errors):
            counter.labels(guard)

    def request(self, path: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()

    def answered(
        self, guard: str, verdict: Verdict, margins: NDArray[Any], names: Sequence[str] | None, seconds: float
    ) -> None:
        """Count rows that were answered; ``margins`` are their scores less their thresholds."""
        rows = len(verdict.scores)
        self._seconds.labels(guard).observe(seconds)
        self._recent.append((time.monotonic(), rows, seconds))
        if verdict.repeated:
            return
        self._rows.labels(guard, "taken_in").inc(verdict.taken_in)
        self._rows.labels(guard, "quarantined").inc(rows - verdict.taken_in)
        margin = self._margins.labels(guard)
        if rows == 1:
            margin.observe(float(margins[0]))
        else:  # all at once: observing ten thousand of them one by one takes longer than scoring them
            places = np.bincount(np.searchsorted(_MARGINS, margins), minlength=len(_MARGINS) + 1)
            for place in np.flatnonzero(places):
                margin._buckets[place].inc(int(places[place]))
        classes, counts = np.unique(verdict.predicted[verdict.is_ood], return_counts=True)
        for index, count in zip(classes.tolist(), counts.tolist(), strict=True):
            name = "other" if index >= _MOST_CLASSES else str(index) if names is None else names[index]
            self._flagged.labels(guard, name).inc(count)

    def summary(self) -> dict[str, Any]:
        """Rows and requests per second, and latencies, of this worker in the last ten seconds."""
        since = time.monotonic() - _RECENT_SECONDS
        recent = [item for item in self._recent if item[0] >= since]
        span = _RECENT_SECONDS
        if len(self._recent) == self._recent.maxlen and recent and recent[0] == self._recent[0]:
            span = max(1e-3, time.monotonic() - recent[0][0])  # the memory is shorter than ten seconds
        times = sorted(seconds for *_, seconds in recent)
        return {
            "throughput": {"rows": sum(rows for _, rows, _ in recent) / span, "requests": len(recent) / span},
            "latency": {"p50_ms": _quantile(times, 0.5), "p99_ms": _quantile(times, 0.99)},
        }

    def exposition(self, states: Mapping[str, tuple[dict[str, Any], bool]]) -> bytes:
        """All metrics of guards in Prometheus' text format: of each its ``/v1/state``, and whether its store is up."""
        counted = self._registry
        if MULTIPROCESS in os.environ:
            from prometheus_client.multiprocess import MultiProcessCollector

            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        about = {"version": __version__, "python": platform.python_version()}
        build = InfoMetricFamily("normscale_build", "What is running.", value=about)
        families = [build, *_process_metrics(), *_state_metrics(states)]
        for family in counted.collect():  # a token of one guard sees nothing of another
            family.samples = [one for one in family.samples if one.labels.get("guard") in (None, *states)]
            families.append(family)
        return generate_latest(_Families(families))


class _Families(CollectorRegistry):
    """Metrics that are there already."""

    def __init__(self, families: list[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _process_metrics() -> list[Metric]:
    """Memory, processor time and open files, of all workers together; none where there is no ``/proc``."""
    pids = {os.getpid()}
    if MULTIPROCESS in os.environ:  # a file of each worker's counters is there, also of one that has died
        names = glob.glob(os.path.join(os.environ[MULTIPROCESS], "counter_*.db"))
        pids |= {int(name.rpartition("_")[2].removesuffix(".db")) for name in names}
    families: dict[str, Metric] = {}
    for pid in sorted(pids):
        for family in ProcessCollector(pid=partial(int, pid), registry=None).collect():
            known = families.setdefault(family.name, family)
            if known is not family:
                (one,), (other,) = known.samples, family.samples
                join = _JOINED.get(family.name, sum)
                known.samples = [one._replace(value=join((one.value, other.value)))]
    return list(families.values())


_GAUGES: tuple[tuple[str, str, Callable[[dict[str, Any]], float]], ...] = (
    ("statistics_rows", "Rows in the statistics.", lambda state: state["rows"]),
    ("quarantined_rows", "Rows in quarantine.", lambda state: state["quarantined"]),
    ("frozen", "1 while nothing is taken in.", lambda state: state["mode"] == "frozen"),
    ("threshold", "Scores above are flagged.", lambda state: state["threshold"]["value"]),
)
_SHADOW_GAUGES: tuple[tuple[str, str, Callable[[dict[str, Any]], float]], ...] = (
    ("shadow_frozen", "1 while the shadow is.", lambda shadow: shadow["mode"] == "frozen"),
    ("shadow_up", "0 while the shadow's store fails.", lambda shadow: shadow["trouble"] is None),
    ("shadow_alarms", "Alarms of the shadow that stand.", lambda shadow: len(shadow["alarms"])),
)


def _state_metrics(states: Mapping[str, tuple[dict[str, Any], bool]]) -> Iterator[Metric]:
    """The guards' states as metrics; every worker gives the same."""

    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"normscale_{name}", text, labels=["guard", *labels])

    up = gauge("store_up", "0 while the store cannot be read; then the rest is old.")
    drift = gauge("drift", "How far recent rows, and running statistics, are from training; NaN: not known.", "reading")
    limits = gauge("drift_limit", "An alarm is raised above it.", "reading")
    alarms = gauge("alarm", "1 while an alarm stands.", "reading")
    plain = [(gauge(name, text), value) for name, text, value in _GAUGES]
    of_shadow = [(gauge(name, text), value) for name, text, value in _SHADOW_GAUGES]
    compared = CounterMetricFamily(
        "normscale_shadow_rows", "Rows scored by the shadow, too, by who flagged them.", labels=["guard", "flagged_by"]
    )
    missed = CounterMetricFamily("normscale_shadow_missed_rows", "Rows of this worker it missed.", labels=["guard"])
    for guard, (state, store_is_up) in states.items():
        up.add_metric([guard], store_is_up)
        for family, value in plain:
            family.add_metric([guard], float(value(state)))
        standing = {alarm["name"] for alarm in state["alarms"]}
        for reading in state["readings"]:
            name, value_now = reading["name"], reading["value"]
            drift.add_metric([guard, name], math.nan if value_now is None else value_now)
            limits.add_metric([guard, name], float(reading["limit"]))
            alarms.add_metric([guard, name], float(name in standing))
        shadow = state["shadow"]
        if shadow is not None:
            agreement, flagged = (
                shadow["agreement"],
                {"serving": "serving_only", "shadow": "shadow_only", "both": "both"},
            )
            for label, name in flagged.items():
                compared.add_metric([guard, label], agreement[name])
            neither = agreement["rows"] - sum(agreement[name] for name in flagged.values())
            compared.add_metric([guard, "neither"], neither)
            missed.add_metric([guard], shadow["missed"])
            for family, value in of_shadow:
                family.add_metric([guard], float(value(shadow)))
    yield from (up, drift, limits, alarms, *(family for family, _ in plain))
    if compared.samples:
        yield from (compared, missed, *(family for family, _ in of_shadow))


def _quantile(times: list[float], share: float) -> float | None:
    """In milliseconds."""
    if not times:
        return None
    return 1e3 * times[min(len(times) - 1, int(share * len(times)))]
