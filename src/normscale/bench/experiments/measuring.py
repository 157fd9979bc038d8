"""The loop behind every comparison: methods on OoD sets, on all rows or in many kinds of streams.

A method whose statistics do not run is scored once on every row, and its scores are looked up for every stream; the
scores of the test set serve all OoD sets. A method whose statistics run starts afresh in every stream, on a copy.
Rows are taken block by block, so outputs that are mapped from a file stay there; scores take 8 bytes a row and method.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._provenance import commit
from normscale._validate import FloatArray, IntArray
from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.methods import Method, blocks_of_width, row_blocks
from normscale.bench.experiments.scored_pair import ScoredPair, require_one_network
from normscale.bench.experiments.streams import Stream, Streams
from normscale.detectors.base import Detector, Setting
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.state import copied

Gathered = dict[tuple[int, int], NDArray[Any]]
"""Arrays of a stream's rows, by the arrays of both sets that they come from."""
Advance = Callable[[int, str], None]
"""Told how many rows were scored by one method, and on which OoD set."""


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
    quiet: bool = False,
    tick: Callable[[str], None] = lambda _: None,
    advance: Advance = lambda rows, what: None,
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
    quiet : bool
        Do not warn of rows far outside of training: noise is meant to be there.
    tick : callable
        Called after each OoD set and each of the streams with what has been done.
    advance : callable
        Told after each block of rows; :func:`rows_to_score` says how many there will be.

    Yields
    ------
    Measured
        A method that cannot be measured on a set, such as one ranking per class where no class is shared, has no
        numbers, and ``skipped`` says why.
    """
    if not ood_sets:
        raise InvalidInput("ood_sets is empty; at least one OoD set is needed to compare.")
    if not methods:
        raise InvalidInput("methods is empty; at least one method is needed to compare.")
    reads = dict.fromkeys(name for method in methods for name in method.detector.reads)
    require_one_network({"the ID set": id_test, **ood_sets}, reads)
    if quiet:
        silent = {id(method.detector): _silenced(method.detector) for method in methods}
        methods = [method._replace(detector=silent[id(method.detector)]) for method in methods]
    groups: Sequence[Streams] = [Streams(len(id_test), seed=seed)] if streams is None else streams
    frozen = FrozenScores(id_test, advance)
    with ThreadPoolExecutor(_validate.at_least(threads, "threads", 1)) as pool:
        for name, ood in ood_sets.items():
            pair = _SetPair(name, id_test, ood, methods, frozen, advance)  # one at a time: its scores are many

            def work(group: Streams, pair: _SetPair = pair) -> list[Measured]:
                return [
                    Measured(one.record._replace(in_set=in_set, seed=seed), one.scores)
                    for one in _measure_streams(pair, group, methods)
                ]

            for group, found in zip(groups, pool.map(work, groups), strict=True):
                yield from found
                tick(f"{name}: {group}" if str(group) else name)


def _silenced(detector: Detector) -> Detector:
    twin = copy.copy(detector)
    twin.warns_of_far_rows = False
    return twin


def rows_to_score(methods: Sequence[Method], n_id: int, n_ood: Sequence[int]) -> int:
    """How many rows :func:`measure` will score on all rows of a test set and some OoD sets.

    Examples
    --------
    >>> rows_to_score([], 100, [50, 50])
    0
    """
    still = len({id(method.detector) for method in methods if method.setting is not Setting.STREAM})
    running = sum(method.setting is Setting.STREAM for method in methods)
    return still * (n_id + sum(n_ood)) + running * sum(n_id + n for n in n_ood)


def _frozen_scores(detector: Detector, outputs: ModelOutputs, advance: Advance, what: str) -> FloatArray:
    scores = np.empty(len(outputs))
    for block in row_blocks(outputs, detector.reads, len(outputs)):
        scores[block] = detector.score(outputs[block])
        advance(scores[block].size, what)
    return scores


def _prepared(detector: Detector, outputs: ModelOutputs) -> ModelOutputs:
    """Rows as a stream needs them; an array that is passed on as it is stays where it is."""
    parts: dict[str, list[Any]] = {}
    for block in row_blocks(outputs, detector.reads, len(outputs)):
        rows = outputs[block]
        found = detector._prepare(detector._read(rows), 1)
        for name in found.names:
            same = next((own for own in rows.names if rows.array(own) is found.array(name)), None)
            parts.setdefault(name, []).append(found.array(name) if same is None else same)
    return ModelOutputs._trusted(
        {
            name: outputs.array(pieces[0]) if isinstance(pieces[0], str) else np.concatenate(pieces)
            for name, pieces in parts.items()
        }
    )


class FrozenScores:
    """Scores of the test set by detectors as fitted, each computed once for all OoD sets."""

    def __init__(self, id_test: ModelOutputs, advance: Advance = lambda rows, what: None) -> None:
        self._id_test, self._advance = id_test, advance
        self._scores: dict[int, FloatArray] = {}
        self._prepared: dict[int, ModelOutputs] = {}

    def prepared(self, detector: Detector) -> ModelOutputs:
        """The test set as streams of one detector need it."""
        if id(detector) not in self._prepared:
            self._prepared[id(detector)] = _prepared(detector, self._id_test)
        return self._prepared[id(detector)]

    def of(self, detector: Detector) -> FloatArray:
        """The scores by one detector."""
        if id(detector) not in self._scores:
            self._scores[id(detector)] = _frozen_scores(detector, self._id_test, self._advance, "the ID set")
        return self._scores[id(detector)]


class _SetPair:
    """The test set and one OoD set, with the scores of the methods whose statistics do not run."""

    def __init__(
        self,
        name: str,
        id_test: ModelOutputs,
        ood: ModelOutputs,
        methods: Sequence[Method],
        frozen: FrozenScores,
        advance: Advance,
    ) -> None:
        self.name, self.id_test, self.ood, self.advance = name, id_test, ood, advance
        self.n_id, self.n_ood = len(id_test), len(ood)
        self.running = [method for method in methods if method.setting is Setting.STREAM]
        self.prepared = {
            id(one.detector): (frozen.prepared(one.detector), _prepared(one.detector, ood)) for one in self.running
        }
        self.scores: dict[int, FloatArray] = {}
        self.seconds: dict[int, float] = {}
        for method in methods:
            key = id(method.detector)
            if method.setting is not Setting.STREAM and key not in self.scores:
                started = time.perf_counter()
                outside = _frozen_scores(method.detector, ood, advance, name)
                self.scores[key] = np.concatenate([frozen.of(method.detector), outside])
                self.seconds[key] = time.perf_counter() - started

    def rows(self, detector: Detector, places: IntArray, gathered: Gathered) -> ModelOutputs:
        """Prepared rows of both sets; places count through the test set and on. ``gathered`` is shared by detectors."""
        inside = places < self.n_id
        id_rows, ood_rows = self.prepared[id(detector)]
        arrays = {}
        for name in id_rows.names:
            sides = id_rows.array(name), ood_rows.array(name)
            key = id(sides[0]), id(sides[1])
            if key not in gathered:
                rows = np.empty((places.size, sides[0].shape[1]), np.result_type(*sides))
                rows[inside] = sides[0][places[inside]]
                rows[~inside] = sides[1][places[~inside] - self.n_id]
                gathered[key] = rows
            arrays[name] = gathered[key]
        return ModelOutputs._trusted(arrays)

    def blocks(self, n_rows: int) -> Iterator[slice]:
        """Blocks of a stream's rows: all arrays that a method reads fit into memory."""
        arrays = {id(rows.array(name)): rows.array(name) for rows, _ in self.prepared.values() for name in rows.names}
        return blocks_of_width(sum(array.shape[1] for array in arrays.values()), n_rows)

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
        self.why_not = ""

    def add(self, pair: ScoredPair, seconds: float) -> None:
        """Add a draw; one that cannot be evaluated says why."""
        started, self.last = time.perf_counter(), pair
        try:
            self.metrics.append(pair.metrics())
        except InvalidInput as error:
            self.why_not = str(error)
        self.seconds += seconds + time.perf_counter() - started

    def mean(self) -> dict[str, float] | None:
        """Over the draws that could be evaluated; None if none could."""
        if not self.metrics:
            return None
        return {metric: float(np.mean([one[metric] for one in self.metrics])) for metric in self.metrics[0]}


def _measure_streams(pair: _SetPair, group: Streams, methods: Sequence[Method]) -> Iterator[Measured]:
    """The records of one OoD set in streams that have their rows in common, order by order."""
    sizes = group.sizes(pair.n_ood)
    found = {} if sizes.skipped else _draw_and_score(pair, group, methods, sizes.draws)
    for order, (place, method) in product(group.orders, enumerate(methods)):
        total = found.get((order if method.setting is Setting.STREAM else "", place))
        record = Measurement.of(
            method,
            pair.name,
            None if total is None else total.mean(),
            n_id=sizes.n_id,
            n_ood=sizes.n_ood,
            seconds=total.seconds if total is not None and group.kind(order) is None else 0.0,
            commit=commit(),
            stream=group.kind(order),
            classes=group.classes,
            draws=sizes.draws,
            skipped=sizes.skipped or ("" if total is None or total.metrics else total.why_not),
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
                key = id(method.detector)
                inside, outside = (pair.scores[key][rows] for rows in sides)
                scored = ScoredPair(inside, outside)
                if method.setting is Setting.PER_CLASS:
                    scored = ScoredPair(inside, outside, pair.predicted[sides[0]], pair.predicted[sides[1]])
                found.setdefault(("", place), _Sum(pair.seconds[key])).add(scored, 0.0)
        for order in group.orders if pair.running else ():
            stream = group.arrange(id_rows, ood_rows, order, draw)
            for place, (scores, seconds) in _running_scores(pair, methods, stream).items():
                scored = ScoredPair(scores[sides[0]], scores[sides[1]])
                found.setdefault((order, place), _Sum()).add(scored, seconds)
    return found


def _running_scores(pair: _SetPair, methods: Sequence[Method], stream: Stream) -> dict[int, tuple[FloatArray, float]]:
    """Scores of a stream, in the order of the sets, and the seconds they took, by the place of the running method."""
    running = {place: method.detector for place, method in enumerate(methods) if method.setting is Setting.STREAM}
    states = {place: copied(detector.state_) for place, detector in running.items()}
    scores = {place: np.empty(pair.n_id + pair.n_ood) for place in running}
    seconds = dict.fromkeys(running, 0.0)
    for block in pair.blocks(stream.rows.size) if running else ():
        rows = stream.rows[block]
        gathered: Gathered = {}  # once for all methods
        for place, detector in running.items():
            outputs = pair.rows(detector, rows, gathered)
            started = time.perf_counter()
            scores[place][rows], states[place] = detector._step(states[place], outputs, 1)
            seconds[place] += time.perf_counter() - started
            pair.advance(rows.size, pair.name)
    return {place: (scores[place], seconds[place]) for place in running}
