"""The stress grid: detectors on streams of many kinds, to know when running statistics may be trusted.

Every kind of stream (:mod:`normscale.bench.experiments.streams`) is a share of OoD rows, an order, and a class balance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

from normscale.bench.experiments.measuring import measure
from normscale.bench.experiments.methods import Method, main_setting
from normscale.bench.experiments.streams import BALANCES, ORDERS, ClassBalance, Streams, stream_classes
from normscale.bench.experiments.stress_result import StressResult
from normscale.detectors.base import Detector
from normscale.outputs import ModelOutputs

SHARES = (0.001, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75)


class Grid(NamedTuple):
    """The kinds of streams: every combination."""

    shares: tuple[float, ...] = SHARES
    orders: tuple[str, ...] = ORDERS
    balances: tuple[str, ...] = BALANCES[:3]


class StressPreset(NamedTuple):
    """A grid, and the detectors that are measured on it."""

    grid: Grid
    fit: Callable[[ModelOutputs], dict[str, Detector]]
    """Makes the detectors, fitted on the training outputs, by the name of the method."""
    titles: Callable[[Mapping[str, Detector]], dict[str, str]]
    """The methods' names for people."""
    preferred: str | None = None
    """Which method without running statistics is advised where several are as good."""


def stress(
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    methods: Mapping[str, Detector],
    *,
    grid: Grid = Grid(),  # noqa: B008 - a tuple
    titles: Mapping[str, str] | None = None,
    notes: Mapping[str, Any] | None = None,
    seed: int = 0,
    threads: int = 1,
    tick: Callable[[str], None] = lambda _: None,
) -> StressResult:
    """Measure detectors on every kind of stream.

    There is a row for every OoD set, kind of stream and method. A stream that the sets have too few rows for has rows
    without numbers and with the reason.

    ``methods`` are fitted detectors by name; none of them is changed. ``titles`` are their names in sentences.
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
    named = [Method(name, one, main_setting(one), (titles or {}).get(name, name)) for name, one in methods.items()]
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


def stress_preset(
    preset: StressPreset,
    train: ModelOutputs,
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    *,
    detectors: Mapping[str, Detector] | None = None,
    **options: Any,
) -> StressResult:
    """Fit a preset's detectors on the training outputs and measure them on its grid, as :func:`stress` does.

    ``detectors`` are further ones, already fitted; ``options`` are its ``seed``, ``threads`` and ``tick``.
    """
    methods = {**(detectors or {}), **preset.fit(train)}
    notes = {"preferred": preset.preferred, "n_train": len(train)}
    titles = preset.titles(methods)
    return stress(id_test, ood_sets, methods, grid=preset.grid, titles=titles, notes=notes, **options)


def steps(grid: Grid, n_sets: int) -> int:
    """How often ``tick`` will be called."""
    return n_sets * len(grid.shares) * len(grid.balances)
