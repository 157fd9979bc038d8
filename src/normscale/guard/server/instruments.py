"""Throughput and latency of this process, and the metrics for Prometheus."""

from __future__ import annotations

import glob
import math
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from normscale._version import __version__

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_RECENT_SECONDS = 10.0
_NOBODYS = ("other", "demo")
_JOINED: dict[str, Callable[[Iterable[float]], float]] = {"process_start_time_seconds": min, "process_max_fds": min}
"""How such a metric of several workers becomes one; all others are added."""
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class Instruments:
    """What a worker counts by itself."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        self._requests = counter("normscale_requests", "Requests by path and status.", ["path", "status"])
        self._seconds = Histogram(
            "normscale_score_seconds",
            "From a request's arrival to its answer.",
            ["path"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.alarms = counter("normscale_alarms", "Alarms that were raised.", ["guard", "reading"])
        self.freezes = counter("normscale_freezes", "Times it was frozen.", ["guard"])
        self.store_errors = counter("normscale_store_errors", "Requests that the store failed.", ["guard"])
        self._recent: deque[tuple[float, int, float]] = deque(maxlen=4096)

    def request(self, path: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()

    def answered(self, path: str, rows: int, seconds: float) -> None:
        """Count rows that were answered."""
        self._seconds.labels(path).observe(seconds)
        self._recent.append((time.monotonic(), rows, seconds))

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

    def exposition(self, state: dict[str, Any], guard: str, *, store_is_up: bool) -> bytes:
        """All metrics of a guard in Prometheus' text format; ``state`` is that of ``/v1/state``."""
        counted = self._registry
        if MULTIPROCESS in os.environ:
            from prometheus_client.multiprocess import MultiProcessCollector

            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        about = {"version": __version__, "python": platform.python_version()}
        build = InfoMetricFamily("normscale_build", "What is running.", value=about)
        families = [build, *_process_metrics(), *_state_metrics(state, store_is_up), *_metrics_of(counted, guard)]
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


def _metrics_of(registry: CollectorRegistry, guard: str) -> Iterator[Metric]:
    """What was counted for one guard; of paths that are nobody's, everything."""
    prefix = f"/{guard}/" if guard else "/"
    for family in registry.collect():
        family.samples = [
            sample
            for sample in family.samples
            if sample.labels.get("guard", guard) == guard
            and sample.labels.get("path", prefix).startswith((prefix, *_NOBODYS))
        ]
        yield family


def _state_metrics(state: dict[str, Any], store_is_up: bool) -> Iterator[Metric]:
    """The guard's state as metrics; every worker gives the same."""
    store_up = "0 while the store cannot be read; then the rest is old."
    yield GaugeMetricFamily("normscale_store_up", store_up, store_is_up)
    yield GaugeMetricFamily("normscale_rows", "Rows in the statistics.", state["rows"])
    yield CounterMetricFamily("normscale_scored_rows", "Rows answered.", value=state["scored"])
    yield GaugeMetricFamily("normscale_quarantined_rows", "Rows answered but not taken in.", state["quarantined"])
    yield GaugeMetricFamily("normscale_frozen", "1 while nothing is taken in.", float(state["mode"] == "frozen"))
    yield GaugeMetricFamily("normscale_threshold", "Scores above are flagged.", state["threshold"]["value"])
    readings = GaugeMetricFamily(
        "normscale_drift",
        "How far recent rows, and running statistics, are from training; NaN: not known.",
        labels=["reading"],
    )
    alarms = GaugeMetricFamily("normscale_alarm", "1 while a reading is beyond its limit.", labels=["reading"])
    alarming = {alarm["name"] for alarm in state["alarms"]}
    for reading in state["readings"]:
        name, value = reading["name"], reading["value"]
        readings.add_metric([name], math.nan if value is None else value)
        alarms.add_metric([name], float(name in alarming))
    yield from (readings, alarms)
    yield from _shadow_metrics(state["shadow"])


def _shadow_metrics(shadow: dict[str, Any] | None) -> Iterator[Metric]:
    """Those of a shadow; none where there is none."""
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


def _quantile(times: list[float], share: float) -> float | None:
    """In milliseconds."""
    if not times:
        return None
    return 1e3 * times[min(len(times) - 1, int(share * len(times)))]
