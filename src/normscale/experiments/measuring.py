"""The loop behind every comparison: methods on OoD sets, on all rows or in many kinds of streams.

A method whose statistics do not run is scored once on every row, and its scores are looked up for every stream; the
scores of the test set serve all OoD sets. A method whose statistics run starts afresh in every stream, on a copy.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import product
from typing import NamedTuple, Protocol

import numpy as np

from normscale import _validate
from normscale._provenance import commit
from normscale._validate import FloatArray, IntArray
from normscale._version import __version__
from normscale.detectors.base import Detector, Setting
from normscale.errors import InvalidInput
from normscale.experiments.measurement import METRICS, Measurement, StreamKind
from normscale.experiments.methods import Method
from normscale.experiments.scored_pair import ScoredPair, require_one_network
from normscale.experiments.streams import Sizes, Stream
from normscale.outputs import ModelOutputs

NO_NUMBERS = dict.fromkeys(METRICS, math.nan)


class Streams(Protocol):
    """Streams of one share and one class balance, in one or more orders that have their drawn rows in common."""

    orders: Sequence[str]
    classes: tuple[int, ...]

    def sizes(self, n_ood: int) -> Sizes:
        """How long a stream is, how often it is drawn, or why it cannot be made."""

    def rows(self, n_ood: int, draw: int) -> tuple[IntArray, IntArray]:
        """Which rows of the test set and of the OoD set take part."""

    def arrange(self, id_rows: IntArray, ood_rows: IntArray, order: str, draw: int) -> Stream:
        """Put the rows in order."""

    def kind(self, order: str) -> StreamKind | None:
        """What a row of the results says about the stream."""

    def called(self) -> str:
        """What a progress bar says about the streams."""


class AllRows(Streams):
    """One stream of all rows of both sets, shuffled."""

    orders: Sequence[str] = ("shuffled",)
    classes: tuple[int, ...] = ()

    def __init__(self, n_id: int, seed: int) -> None:
        self._n_id, self._seed = n_id, seed

    def sizes(self, n_ood: int) -> Sizes:
        return Sizes(self._n_id, n_ood, 1)

    def rows(self, n_ood: int, draw: int) -> tuple[IntArray, IntArray]:
        return np.arange(self._n_id), np.arange(n_ood)

    def arrange(self, id_rows: IntArray, ood_rows: IntArray, order: str, draw: int) -> Stream:
        rows = np.random.default_rng(self._seed).permutation(id_rows.size + ood_rows.size)
        return Stream(rows, rows >= id_rows.size)

    def kind(self, order: str) -> StreamKind | None:
        return None

    def called(self) -> str:
        return ""


class Measured(NamedTuple):
    """A record and, where it is of all rows, the scores behind it."""

    record: Measurement
    scores: ScoredPair | None


def measure(
    methods: Sequence[Method],
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    *,
    streams: Sequence[Streams] | None = None,
    in_set: str = "",
    seed: int = 0,
    threads: int = 1,
    tick: Callable[[str], None] = lambda _: None,
) -> Iterator[Measured]:
    """Measure methods with fitted detectors on every OoD set; no detector is changed.

    Parameters
    ----------
    methods : sequence of Method
    id_test : ModelOutputs
        In-distribution inputs the classifier was not trained on.
    ood_sets : mapping of name to ModelOutputs
    streams : sequence of Streams, optional
        What is drawn from both sets; None: all rows.
    in_set : str
        The name of the in-distribution set, for the record.
    seed : int
        Order of shuffled streams.
    threads : int
        How many threads share the streams; the numbers do not depend on it.
    tick : callable
        Told after each OoD set and each of the streams what has been done.
    """
    if not ood_sets:
        raise InvalidInput("ood_sets is empty; at least one OoD set is needed to compare.")
    if not methods:
        raise InvalidInput("methods is empty; at least one method is needed to compare.")
    reads = dict.fromkeys(name for method in methods for name in method.detector.reads)
    require_one_network({"the ID set": id_test, **ood_sets}, reads)
    groups: Sequence[Streams] = [AllRows(len(id_test), seed)] if streams is None else streams
    frozen = FrozenScores(id_test)
    pairs = [_SetPair(name, id_test, ood, methods, frozen) for name, ood in ood_sets.items()]
    tasks = list(product(pairs, groups))

    def work(task: tuple[_SetPair, Streams]) -> list[Measured]:
        pair, group = task
        return [
            Measured(one.record._replace(in_set=in_set, seed=seed), one.scores)
            for one in _measure_streams(pair, group, methods)
        ]

    with ThreadPoolExecutor(_validate.at_least(threads, "threads", 1)) as pool:
        for (pair, group), found in zip(tasks, pool.map(work, tasks), strict=True):
            yield from found
            tick(f"{pair.name}: {group.called()}" if group.called() else pair.name)


class FrozenScores:
    """Scores of the test set by detectors as fitted, each computed once for all OoD sets."""

    def __init__(self, id_test: ModelOutputs) -> None:
        self._id_test = id_test
        self._scores: dict[int, FloatArray] = {}

    def of(self, detector: Detector) -> FloatArray:
        """The scores by one detector."""
        if id(detector) not in self._scores:
            self._scores[id(detector)] = detector.score(self._id_test)
        return self._scores[id(detector)]


class _SetPair:
    """The test set and one OoD set, with the scores of the methods whose statistics do not run."""

    def __init__(
        self, name: str, id_test: ModelOutputs, ood: ModelOutputs, methods: Sequence[Method], frozen: FrozenScores
    ) -> None:
        self.name, self.id_test, self.ood = name, id_test, ood
        self.n_id, self.n_ood = len(id_test), len(ood)
        self.running = [method for method in methods if method.setting is Setting.STREAM]
        self.scores: dict[int, FloatArray] = {}
        self.seconds: dict[int, float] = {}
        for method in methods:
            key = id(method.detector)
            if method.setting is not Setting.STREAM and key not in self.scores:
                started = time.perf_counter()
                self.scores[key] = np.concatenate([frozen.of(method.detector), method.detector.score(ood)])
                self.seconds[key] = time.perf_counter() - started

    @cached_property
    def mixture(self) -> ModelOutputs:
        """Both sets below each other, with the arrays that running methods read."""
        names = dict.fromkeys(name for method in self.running for name in method.detector.reads)
        return ModelOutputs.concatenate([side.only(*names) for side in (self.id_test, self.ood)])

    @cached_property
    def predicted(self) -> IntArray:
        """The predicted classes of both sets."""
        return np.concatenate([self.id_test.predicted, self.ood.predicted])


class _Sum:
    """Metrics added up over the draws of a stream, with the time they took and the last scores."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.metrics: list[dict[str, float]] = []
        self.seconds = seconds
        self.last: ScoredPair | None = None

    def add(self, pair: ScoredPair, started: float) -> None:
        self.metrics.append(pair.metrics())
        self.last = pair
        self.seconds += time.perf_counter() - started

    def mean(self) -> dict[str, float]:
        return {metric: float(np.mean([one[metric] for one in self.metrics])) for metric in METRICS}


def _measure_streams(pair: _SetPair, group: Streams, methods: Sequence[Method]) -> Iterator[Measured]:
    """The records of one OoD set in streams that have their rows in common, order by order."""
    sizes = group.sizes(pair.n_ood)
    found = {} if sizes.skipped else _draw_and_score(pair, group, methods, sizes.draws)
    for order, (place, method) in product(group.orders, enumerate(methods)):
        total = found.get((order if method.setting is Setting.STREAM else "", place))
        record = Measurement(
            ood_set=pair.name,
            method=method.name,
            detector=method.detector.name,
            title=method.title,
            setting=method.setting,
            parameters=method.detector.get_params(),
            metrics=NO_NUMBERS if total is None else total.mean(),
            n_id=sizes.n_id,
            n_ood=sizes.n_ood,
            seed=None,
            seconds=total.seconds if total is not None and group.kind(order) is None else 0.0,
            version=__version__,
            commit=commit(),
            stream=group.kind(order),
            classes=group.classes,
            draws=sizes.draws,
            skipped=sizes.skipped,
        )
        yield Measured(record, total.last if total is not None and record.stream is None else None)


def _draw_and_score(
    pair: _SetPair, group: Streams, methods: Sequence[Method], draws: int
) -> dict[tuple[str, int], _Sum]:
    """Sums over the draws by order and place of the method; a method that does not run has the order ""."""
    found: dict[tuple[str, int], _Sum] = {}
    for draw in range(draws):
        id_rows, ood_rows = group.rows(pair.n_ood, draw)
        sides = id_rows, pair.n_id + ood_rows
        for place, method in enumerate(methods):
            if method.setting is not Setting.STREAM:
                started, key = time.perf_counter(), id(method.detector)
                inside, outside = (pair.scores[key][rows] for rows in sides)
                scored = ScoredPair(inside, outside)
                if method.setting is Setting.PER_CLASS:
                    scored = ScoredPair(inside, outside, pair.predicted[sides[0]], pair.predicted[sides[1]])
                found.setdefault(("", place), _Sum(pair.seconds[key])).add(scored, started)
        for order in group.orders if pair.running else ():
            stream = group.arrange(id_rows, ood_rows, order, draw)
            outputs = pair.mixture[stream.rows]  # gathered once for all methods
            for place, method in enumerate(methods):
                if method.setting is Setting.STREAM:
                    started, scores = time.perf_counter(), np.empty(pair.n_id + pair.n_ood)
                    scores[stream.rows] = copy.copy(method.detector).stream(outputs)
                    scored = ScoredPair(scores[sides[0]], scores[sides[1]])
                    found.setdefault((order, place), _Sum()).add(scored, started)
    return found
