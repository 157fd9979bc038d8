"""The stress grid: detectors on streams of many kinds, to know when running statistics may be trusted.

Every kind of stream (:mod:`normscale.bench.experiments.streams`) is a share of OoD rows, an order, and a class balance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

from normscale.bench.experiments.alarms import false_alarms
from normscale.bench.experiments.measuring import measure
from normscale.bench.experiments.methods import Method, main_setting, title_of
from normscale.bench.experiments.streams import BALANCES, ORDERS, ClassBalance, Streams, stream_classes
from normscale.bench.experiments.stress_result import StressResult
from normscale.detectors.base import Detector, Setting
from normscale.outputs import ModelOutputs

SHARES = (0.001, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75)


class Grid(NamedTuple):
    """The kinds of streams: every combination."""

    shares: tuple[float, ...] = SHARES
    orders: tuple[str, ...] = ORDERS
    balances: tuple[str, ...] = BALANCES[:3]


OWN_GRID = Grid(shares=(0.01, 0.05, 0.10, 0.25, 0.50))
"""Fewer shares: advice within a minute."""


def stress(
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    methods: Mapping[str, Detector],
    *,
    grid: Grid = Grid(),  # noqa: B008 - a tuple
    notes: Mapping[str, Any] | None = None,
    seed: int = 0,
    threads: int = 1,
    tick: Callable[[str], None] = lambda _: None,
) -> StressResult:
    """Measure detectors on every kind of stream.

    There is a row for every OoD set, kind of stream and method. A stream that the sets have too few rows for has rows
    without numbers and with the reason.

    ``methods`` are fitted detectors by name; none of them is changed.
    ``notes`` are kept in the result's settings. ``tick`` is called after each of the :func:`steps` of the grid.

    Examples
    --------
    >>> import normscale as ns
    >>> from normscale.bench.experiments.measurement import StreamKind
    >>> sample = ns.load_sample()
    >>> result = stress(sample.test, {"noise": sample.ood["uniform_noise"]}, {"energy": ns.Energy()})
    >>> round(result.means()[StreamKind(0.5, "shuffled", "balanced")]["energy"].auroc, 2)
    0.89
    """
    balances = {balance: ClassBalance(stream_classes(id_test), balance, seed) for balance in grid.balances}
    streams = [
        Streams(len(id_test), share, balances[balance], grid.orders, seed)
        for share, balance in product(grid.shares, grid.balances)
    ]
    named = [Method(name, one, main_setting(one), title_of(name)) for name, one in methods.items()]
    found = measure(named, id_test, ood_sets, streams=streams, seed=seed, threads=threads, quiet=True, tick=tick)
    rows = [one.record._replace(version="", commit=None) for one in found]  # the file says it once
    settings = {
        "seed": seed,
        "n_id": len(id_test),
        "ood_sets": {name: len(ood) for name, ood in ood_sets.items()},
        "id_classes": "predicted" if id_test.labels is None else "labels",
        **(notes or {}),
    }
    return StressResult(rows, settings)


def stress_with_alarms(
    methods: Mapping[str, Detector],
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    changed: Mapping[str, ModelOutputs],
    **options: Any,
) -> StressResult:
    """:func:`stress` on ``OWN_GRID``, and the false alarms of the methods that run.

    Streams without OoD rows are those of the test set, and of inputs that have ``changed``.
    """
    result = stress(id_test, ood_sets, methods, **{"grid": OWN_GRID, **options})
    running = {name: one for name, one in methods.items() if main_setting(one) is Setting.STREAM}
    return result._replace(alarms=false_alarms(running, id_test, changed, seed=options.get("seed", 0)))


def steps(grid: Grid, n_sets: int) -> int:
    """How often ``tick`` will be called."""
    return n_sets * len(grid.shares) * len(grid.balances)
