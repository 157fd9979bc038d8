"""The stress grid: detectors on streams of many kinds, to know when running statistics may be trusted.

Every cell is one kind of stream (:mod:`normscale.experiments.streams`): a share of OoD rows, an order, a class balance.
A detector with running statistics starts afresh in every cell; one without is scored once on every row, and its scores
are looked up.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.logit_scores import MSP, Energy, MaxLogit
from normscale.detectors.norm_scaling import NormScaling
from normscale.detectors.robust_norm_scaling import RobustNormScaling
from normscale.errors import InvalidInput
from normscale.experiments.protocol import require_one_network
from normscale.experiments.streams import ORDERS, ClassBalance, arrange, draw_rows, stream_classes, stream_sizes
from normscale.experiments.stress_result import StressResult, StressRow
from normscale.metrics.ranking import evaluate
from normscale.outputs import ModelOutputs


class Grid(NamedTuple):
    """The kinds of streams: every combination."""

    shares: tuple[float, ...]
    orders: tuple[str, ...]
    balances: tuple[str, ...]


SHARES = (0.001, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75)
PRESETS = {
    "paper": Grid(SHARES, ORDERS, ("balanced", "one class 80 %", "one class missing")),
    "robust": Grid(SHARES, ORDERS, ("balanced", "one class 80 %", "two classes missing")),
}
"""``paper``: what the paper leaves open. ``robust``: the harder grid that detectors are compared on."""

PRIORS = ("w=1", "w=100", "w=1000", "w=train", "frozen")
"""How many rows the training statistics count as; ``w=train``: as many as they were made from."""
SCORES = ("msp", "max", "energy")


def norm_scaling_name(score: str = "msp", prior: str = "w=1") -> str:
    """What a setting of norm-scaling is called in the grid's rows.

    Examples
    --------
    >>> norm_scaling_name("max", "frozen")
    'norm_scaling max frozen'
    """
    return f"norm_scaling {score} {prior}"


RUNNING = norm_scaling_name()
"""The paper's method."""
FROZEN = norm_scaling_name(prior="frozen")
RIVALS = (MSP.name, MaxLogit.name, Energy.name)
"""One formula on raw logits; nothing is fitted and nothing runs."""


def stress_methods(train: ModelOutputs, preset: str = "paper") -> dict[str, Detector]:
    """The detectors of a preset, fitted, by name.

    Parameters
    ----------
    train : ModelOutputs
        Outputs on the training set.
    preset : {"paper", "robust"}
        ``paper``: norm-scaling with every prior weight and every score, and the rivals. ``robust``: the paper's
        setting, robust norm-scaling, and what both must not lose against: frozen norm-scaling and the rivals.
    """
    if _validate.one_of(preset, "preset", PRESETS) == "paper":
        wanted = list(product(SCORES, PRIORS))
    else:
        wanted = [("msp", "w=1"), ("msp", "frozen"), ("max", "frozen")]
    weights = dict(zip(PRIORS, (1.0, 100.0, 1000.0, float(len(train)), math.inf), strict=True))
    methods: dict[str, Detector] = {
        norm_scaling_name(score, prior): NormScaling(score, weights[prior]).fit(train) for score, prior in wanted
    }
    if preset == "robust":
        methods[RobustNormScaling.name] = RobustNormScaling().fit(train)
    return methods | {rival.name: rival.fit(train) for rival in (MSP(), MaxLogit(), Energy())}


class _Set(NamedTuple):
    """One OoD set below the ID set, with the scores of the detectors that do not run."""

    name: str
    mixture: ModelOutputs
    static: dict[str, FloatArray]
    n_id: int
    n_ood: int


def stress(
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    methods: Mapping[str, Detector],
    *,
    grid: Grid = PRESETS["paper"],
    seed: int = 0,
    threads: int = 1,
    tick: Callable[[str], None] = lambda _: None,
) -> StressResult:
    """Measure detectors on every kind of stream.

    Parameters
    ----------
    id_test : ModelOutputs
        In-distribution inputs the classifier was not trained on. Their classes are the labels where known, else the
        predicted classes.
    ood_sets : mapping of name to ModelOutputs
    methods : mapping of name to fitted Detector
        None of them is changed: what runs is streamed on a copy (``copy.copy`` must give it a state of its own).
    grid : Grid
    seed : int
        Draws the rows, the orders, and the dominant or missing classes.
    threads : int
        How many threads share the cells; the numbers do not depend on it.
    tick : callable
        Told what has been done after each of the :func:`steps` of the grid.

    Returns
    -------
    StressResult
        A row for every OoD set, cell and method. A cell that the sets have too few rows for has rows without numbers
        and with the reason.

    Examples
    --------
    >>> from normscale.sample import load_sample
    >>> sample = load_sample()
    >>> methods = stress_methods(sample.train, "robust")
    >>> grid = Grid((0.1, 0.5), ("shuffled", "OoD first"), ("balanced",))
    >>> result = stress(sample.test, {"digits": sample.ood["unseen_digits"]}, methods, grid=grid)
    >>> [(row.share, row.order, round(row.auroc, 2)) for row in result.rows if row.method == RUNNING]
    [(0.1, 'shuffled', 0.95), (0.1, 'OoD first', 0.93), (0.5, 'shuffled', 0.96), (0.5, 'OoD first', 0.94)]
    """
    _check(id_test, ood_sets, methods)
    running = {name: detector for name, detector in methods.items() if detector.has_running_statistics}
    classes = stream_classes(id_test)
    balances = [ClassBalance(classes, balance, seed) for balance in grid.balances]
    tasks = list(product(_sets(id_test, ood_sets, methods, running), grid.shares, balances))

    def measure(task: tuple[_Set, float, ClassBalance]) -> list[StressRow]:
        return list(_rows_of(*task, grid.orders, methods, running, seed))

    rows: list[StressRow] = []
    with ThreadPoolExecutor(_validate.at_least(threads, "threads", 1)) as pool:
        for (here, share, balance), found in zip(tasks, pool.map(measure, tasks), strict=True):
            rows += found
            tick(f"{here.name}: {100 * share:g} % OoD, {balance.balance}")
    settings = {
        "seed": seed,
        "n_id": len(id_test),
        "ood_sets": {name: len(ood) for name, ood in ood_sets.items()},
        "id_classes": "predicted" if id_test.labels is None else "labels",
    }
    return StressResult(rows, settings)


def steps(grid: Grid, n_sets: int) -> int:
    """How often ``tick`` will be called."""
    return n_sets * len(grid.shares) * len(grid.balances)


def _check(id_test: ModelOutputs, ood_sets: Mapping[str, ModelOutputs], methods: Mapping[str, Detector]) -> None:
    if not ood_sets:
        raise InvalidInput("ood_sets is empty; at least one OoD set is needed.")
    if not methods:
        raise InvalidInput("methods is empty; stress_methods(train) gives the detectors of a preset.")
    require_one_network({"the ID set": id_test, **ood_sets})


def _sets(
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    methods: Mapping[str, Detector],
    running: Mapping[str, Detector],
) -> list[_Set]:
    static = {name: detector for name, detector in methods.items() if name not in running}
    id_scores = {name: detector.score(id_test) for name, detector in static.items()}
    needs_features = any(detector.reads == "features" for detector in running.values())
    sets = []
    for name, ood in ood_sets.items():
        scores = {key: np.concatenate([id_scores[key], detector.score(ood)]) for key, detector in static.items()}
        sides = [ModelOutputs(side.logits, side.features if needs_features else None) for side in (id_test, ood)]
        sets.append(_Set(name, ModelOutputs.concatenate(sides), scores, len(id_test), len(ood)))
    return sets


def _rows_of(
    here: _Set,
    share: float,
    balance: ClassBalance,
    orders: tuple[str, ...],
    methods: Mapping[str, Detector],
    running: Mapping[str, Detector],
    seed: int,
) -> Iterator[StressRow]:
    """The rows of one share and one balance, in every order: the orders have their drawn rows in common."""
    sizes = stream_sizes(balance, here.n_ood, share)
    numbers = _measure(here, share, balance, sizes.draws, orders, running, seed)
    for order, (name, detector) in product(orders, methods.items()):
        auroc, fpr95_out = numbers.get((order if name in running else None, name), (math.nan, math.nan))
        yield StressRow(
            ood_set=here.name,
            share=share,
            order=order,
            balance=balance.balance,
            classes=balance.chosen,
            method=name,
            parameters=detector.get_params(),
            auroc=float(auroc),
            fpr95_out=float(fpr95_out),
            n_id=sizes.n_id,
            n_ood=sizes.n_ood,
            draws=sizes.draws,
            seed=seed,
            skipped=sizes.skipped,
        )


def _measure(
    here: _Set,
    share: float,
    balance: ClassBalance,
    draws: int,
    orders: tuple[str, ...],
    running: Mapping[str, Detector],
    seed: int,
) -> dict[tuple[str | None, str], FloatArray]:
    """Mean AUROC and FPR95 over the draws, by order and method; a method that does not run has the order None."""
    found: dict[tuple[str | None, str], list[tuple[float, float]]] = {}

    def add(order: str | None, name: str, id_scores: FloatArray, ood_scores: FloatArray) -> None:
        result = evaluate(id_scores, ood_scores)
        found.setdefault((order, name), []).append((result.auroc, result.fpr95_out))

    for draw in range(draws):
        id_rows, ood_rows = draw_rows(balance, here.n_ood, share, seed=seed, draw=draw)
        for name, scores in here.static.items():
            add(None, name, scores[id_rows], scores[here.n_id + ood_rows])
        for order in orders:
            stream = arrange(id_rows, ood_rows, order, n_id=here.n_id, seed=seed, draw=draw)
            outputs = here.mixture[stream.rows]  # gathered once for all detectors
            for name, detector in running.items():
                scores = copy.copy(detector).stream(outputs)
                add(order, name, scores[~stream.is_ood], scores[stream.is_ood])
    return {key: np.mean(pairs, axis=0) for key, pairs in found.items()}
