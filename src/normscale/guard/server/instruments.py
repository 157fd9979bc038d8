"""What the workers count, and the metrics for Prometheus.

Labels take few values: paths are those of routes, classes beyond the first hundred share one, readings are a fixed
list. Clients are no label.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from normscale._version import __version__
from normscale.guard import Verdict
from normscale.guard.stores import Entry, Event

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STEPS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_MARGINS = (*(-step for step in reversed(_STEPS)), 0.0, *_STEPS)
"""Scores have the scale of their detector, so these are fine near the threshold and coarse far from it."""
_MOST_CLASSES = 100
_RECENT_SECONDS = 10.0
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
        self._alarms = counter("normscale_alarms", "Alarms that were raised.", ["guard", "reading"])
        self._freezes = counter("normscale_freezes", "Times it was frozen.", ["guard"])
        self.store_errors = counter("normscale_store_errors", "Requests that the store failed.", ["guard"])
        self._recent: deque[tuple[float, int, float]] = deque(maxlen=4096)

    def begin(self, guard: str, readings: Iterable[str]) -> None:
        """Let counters of a guard begin at 0, so that their first increase is seen."""
        for fate in ("taken_in", "kept_out"):
            self._rows.labels(guard, fate)
        for reading in readings:
            self._alarms.labels(guard, reading)
        for counter in (self._freezes, self.store_errors):
            counter.labels(guard)

    def request(self, path: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()

    def happened(self, guard: str, entry: Entry) -> None:
        """Count alarms and freezes."""
        if entry.event == Event.ALARM:
            for alarm in entry.details["alarms"]:
                self._alarms.labels(guard, alarm["name"]).inc()
        elif entry.event == Event.FREEZE:
            self._freezes.labels(guard).inc()

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
        self._rows.labels(guard, "kept_out").inc(rows - verdict.taken_in)
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
        now = time.monotonic()
        recent = [item for item in self._recent if item[0] >= now - _RECENT_SECONDS]
        # Where the memory is shorter than ten seconds, they are those that it covers.
        span = max(1e-3, now - recent[0][0]) if len(recent) == self._recent.maxlen else _RECENT_SECONDS
        times = sorted(1e3 * seconds for *_, seconds in recent)
        p50, p99 = (times[int(share * len(times))] if times else None for share in (0.5, 0.99))
        return {
            "throughput": {"rows": sum(rows for _, rows, _ in recent) / span, "requests": len(recent) / span},
            "latency": {"p50_ms": p50, "p99_ms": p99},
        }

    def exposition(self, states: Mapping[str, tuple[dict[str, Any], bool]]) -> bytes:
        """All metrics of guards in Prometheus' text format: of each its ``/v1/state``, and whether its store is up."""
        about = {"version": __version__, "python": platform.python_version()}
        families: list[Metric] = [InfoMetricFamily("normscale_build", "What is running.", value=about)]
        counted = self._registry
        if MULTIPROCESS in os.environ:
            from prometheus_client.multiprocess import MultiProcessCollector

            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        else:
            families += ProcessCollector(registry=None).collect()
        families += _state_metrics(states)
        for family in counted.collect():  # a token of one guard sees nothing of another
            family.samples = [one for one in family.samples if one.labels.get("guard") in (None, *states)]
            families.append(family)
        return generate_latest(SimpleNamespace(collect=lambda: families))


def _state_metrics(states: Mapping[str, tuple[dict[str, Any], bool]]) -> list[Metric]:
    families: dict[str, GaugeMetricFamily] = {}

    def put(name: str, text: str, value: Any, **labels: str) -> None:
        family = families.setdefault(name, GaugeMetricFamily(f"normscale_{name}", text, labels=list(labels)))
        family.add_metric(list(labels.values()), math.nan if value is None else float(value))

    for guard, (state, is_up) in states.items():
        put("store_up", "0 while the store cannot be read; then the rest is old.", is_up, guard=guard)
        put("statistics_rows", "Rows in the statistics.", state["rows"], guard=guard)
        put("frozen", "1 while nothing is taken in.", state["mode"] == "frozen", guard=guard)
        put("threshold", "Scores above are flagged.", state["threshold"]["value"], guard=guard)
        standing = {alarm["name"] for alarm in state["alarms"]}
        for reading in state["readings"]:
            labels = {"guard": guard, "reading": reading["name"]}
            put("drift", "How far the stream is from training; NaN: not known.", reading["value"], **labels)
            put("drift_limit", "An alarm is raised above it.", reading["limit"], **labels)
            put("alarm", "1 while an alarm stands.", reading["name"] in standing, **labels)
        for one, count in state["streams"]["standing"].items():
            put("streams", "Streams of clients that have their own, by standing.", count, guard=guard, standing=one)
        worst = max((stream["part"] for stream in state["streams"]["worst"]), default=0.0)
        put("worst_stream", "Largest reading of a client's stream, as a part of its limit.", worst, guard=guard)
    return list(families.values())
