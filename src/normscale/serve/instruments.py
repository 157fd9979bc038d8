"""Throughput and latency of this process, and the metrics for Prometheus."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from normscale.serve.limits import App, Message, Receive, Scope, Send

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_RECENT_SECONDS = 10.0
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class Instruments:
    """What a worker counts by itself."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "normscale_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "normscale_score_seconds",
            "From a request's arrival to its answer.",
            ["path"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._children: dict[tuple[str, int], Any] = {}
        self._timers: dict[str, Any] = {}
        self._recent: deque[tuple[float, int, float]] = deque(maxlen=4096)

    def request(self, path: str, status: int) -> None:
        """Count a request."""
        child = self._children.get((path, status))
        if child is None:
            child = self._children[path, status] = self._requests.labels(path, str(status))
        child.inc()

    def answered(self, path: str, rows: int, seconds: float) -> None:
        """Count rows that were answered."""
        child = self._timers.get(path)
        if child is None:
            child = self._timers[path] = self._seconds.labels(path)
        child.observe(seconds)
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

    def exposition(self, state: dict[str, Any]) -> bytes:
        """All metrics in Prometheus' text format; ``state`` is that of ``/v1/state``."""
        registry = CollectorRegistry()
        registry.register(_StateCollector(state))
        if MULTIPROCESS in os.environ:
            from prometheus_client.multiprocess import MultiProcessCollector

            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            return generate_latest(registry)
        return generate_latest(registry) + generate_latest(self.registry)


class _StateCollector:
    """The guard's state as metrics; every worker gives the same."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state
        yield GaugeMetricFamily("normscale_rows", "Rows in the statistics.", state["rows"])
        yield CounterMetricFamily("normscale_scored_rows", "Rows answered.", value=state["scored"])
        yield GaugeMetricFamily("normscale_quarantined_rows", "Rows answered but not taken in.", state["quarantined"])
        yield GaugeMetricFamily("normscale_frozen", "1 while nothing is taken in.", float(state["mode"] == "frozen"))
        yield GaugeMetricFamily("normscale_threshold", "Scores above are flagged.", state["threshold"]["value"])
        readings = GaugeMetricFamily(
            "normscale_drift", "How far the recent rows are from training.", labels=["reading"]
        )
        alarms = GaugeMetricFamily("normscale_alarm", "1 while a reading is beyond its limit.", labels=["reading"])
        alarming = {alarm["name"] for alarm in state["alarms"]}
        for reading in state["readings"]:
            name, value = reading["name"], reading["value"]
            readings.add_metric([name], math.nan if value is None else value)
            alarms.add_metric([name], float(name in alarming))
        yield readings
        yield alarms


class CountRequests:
    """ASGI middleware: count every request by its route and status, whoever answered it."""

    def __init__(self, app: App, instruments: Instruments, paths: frozenset[str]) -> None:
        """Paths that are not known share one name, or strangers could fill the memory."""
        self._app = app
        self._instruments = instruments
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        name = path if path in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._instruments.request(name, message["status"])
            await send(message)

        await self._app(scope, receive, counted)


def _quantile(times: list[float], share: float) -> float | None:
    """In milliseconds."""
    if not times:
        return None
    return 1e3 * times[min(len(times) - 1, int(share * len(times)))]
