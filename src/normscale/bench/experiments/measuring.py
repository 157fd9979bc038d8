"""The loop behind every comparison: methods on OoD sets, on all rows or in many kinds of streams.

A method whose statistics do not run is scored once on every row, and its scores are looked up for every stream; the
scores of the test set serve all OoD sets. A method whose statistics run starts afresh in every stream, on a copy.
Rows are taken block by block, so outputs that are mapped from a file stay there; scores take 8 bytes a row and method.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._progress import bar
from normscale._provenance import commit
from normscale._validate import FloatArray, IntArray
from normscale.bench.experiments.measurement import Measurement, ScoredPair, require_one_network
from normscale.bench.experiments.methods import Method, row_blocks
from normscale.bench.experiments.streams import Streams
from normscale.detectors.base import Detector, Setting
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.state import copied


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
) -> Iterator[Measured]:
    """Measure methods with fitted detectors on every OoD set; no detector is changed.

    A method that cannot be measured on a set, such as one ranking per class where no class is shared, has no numbers,
    and ``skipped`` says why.

    ``streams`` are drawn from both sets, by default one of all rows. ``quiet``: no warning of rows far outside of
    training, where noise is meant to be.
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
    with (
        ThreadPoolExecutor(_validate.at_least(threads, "threads", 1)) as pool,
        bar("streams", len(ood_sets) * len(groups), quiet_seconds=1.0) as line,
    ):
        id_side = _Side("the ID set", id_test, methods)
        for name, ood in ood_sets.items():
            pair = _Pair(id_side, _Side(name, ood, methods), methods)
            for group, measured in zip(groups, pool.map(pair.measured, groups), strict=True):
                for one in measured:
                    yield one._replace(record=one.record._replace(in_set=in_set, seed=seed))
                line.advance(doing=f"{name}: {group}" if str(group) else name)


def _silenced(detector: Detector) -> Detector:
    twin = copy.copy(detector)
    twin._marks_far_rows = False
    return twin


def _prepared(detector: Detector, outputs: ModelOutputs) -> ModelOutputs:
    """Rows as a stream needs them; an array that is passed on as it is stays where it is."""
    parts: dict[str, list[Any]] = {}
    for block in row_blocks(outputs, detector.reads, len(outputs)):
        rows = outputs[block]
        prepared = detector._prepare(detector._read(rows), 1)
        for name in prepared.names:
            same = next((own for own in rows.names if rows.array(own) is prepared.array(name)), None)
            parts.setdefault(name, []).append(prepared.array(name) if same is None else same)
    return ModelOutputs._trusted(
        {
            name: outputs.array(pieces[0]) if isinstance(pieces[0], str) else np.concatenate(pieces)
            for name, pieces in parts.items()
        }
    )


class _Side:
    """One set: scores of the detectors whose statistics do not run, prepared rows of those whose statistics do."""

    def __init__(self, name: str, outputs: ModelOutputs, methods: Sequence[Method]) -> None:
        self.name, self.outputs = name, outputs
        self.scores: dict[int, FloatArray] = {}
        self.prepared: dict[int, ModelOutputs] = {}
        self.seconds: dict[int, float] = {}
        for detector, setting in {(id(one.detector), one.setting): one[1:3] for one in methods}.values():
            key = id(detector)
            if setting is Setting.STREAM:
                self.prepared[key] = _prepared(detector, outputs)
            elif key not in self.scores:
                started = time.perf_counter()
                self.scores[key] = np.empty(len(outputs))
                with bar(f"{detector.name} ({detector.about.cost}) on {name}", len(outputs), quiet_seconds=1.0) as line:
                    for block in row_blocks(outputs, detector.reads, len(outputs)):
                        self.scores[key][block] = scores = detector.score(outputs[block])
                        line.advance(len(scores))
                self.seconds[key] = time.perf_counter() - started

    @cached_property
    def predicted(self) -> IntArray:
        """The predicted classes, once for all draws."""
        return self.outputs.predicted


class _Sum:
    """Metrics added up over the draws of a stream, with the time they took and the last scores."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.metrics: list[dict[str, float]] = []
        self.seconds = seconds
        self.last: ScoredPair | None = None
        self.why_not = ""

    def add(self, pair: ScoredPair, seconds: float) -> None:
        started, self.last = time.perf_counter(), pair
        try:
            self.metrics.append(pair.metrics())
        except InvalidInput as error:
            self.why_not = str(error)
        self.seconds += seconds + time.perf_counter() - started

    def mean(self) -> dict[str, float] | None:
        if not self.metrics:
            return None
        return {metric: float(np.mean([one[metric] for one in self.metrics])) for metric in self.metrics[0]}


class _Pair:
    """The test set and one OoD set; rows count through the test set and on."""

    def __init__(self, inside: _Side, outside: _Side, methods: Sequence[Method]) -> None:
        self.inside, self.outside, self.methods = inside, outside, methods
        self.n_id = len(inside.outputs)
        self.running = {at: one.detector for at, one in enumerate(methods) if one.setting is Setting.STREAM}

    def measured(self, group: Streams) -> list[Measured]:
        """The records of streams that have their rows in common, order by order."""
        sizes = group.sizes(len(self.outside.outputs))
        sums = {} if sizes.skipped else self._draw_and_score(group, sizes.draws)
        made = []
        for order, (place, method) in product(group.orders, enumerate(self.methods)):
            total = sums.get((order if place in self.running else "", place), _Sum())
            kind = group.kind(order)
            record = Measurement.of(
                method,
                self.outside.name,
                total.mean(),
                n_id=sizes.n_id,
                n_ood=sizes.n_ood,
                seconds=total.seconds if kind is None else 0.0,
                commit=commit(),
                stream=kind,
                classes=group.classes,
                draws=sizes.draws,
                skipped=sizes.skipped or ("" if total.metrics else total.why_not),
            )
            made.append(Measured(record, total.last if kind is None else None))
        return made

    def _draw_and_score(self, group: Streams, draws: int) -> dict[tuple[str, int], _Sum]:
        """Sums over the draws by order and place of the method; a method that does not run has the order ""."""
        sums: dict[tuple[str, int], _Sum] = {}
        for draw in range(draws):
            id_rows, ood_rows = group.rows(len(self.outside.outputs), draw)
            for place, method in enumerate(self.methods):
                if place not in self.running:
                    key = id(method.detector)
                    scored = ScoredPair(self.inside.scores[key][id_rows], self.outside.scores[key][ood_rows])
                    if method.setting is Setting.PER_CLASS:
                        predicted = self.inside.predicted[id_rows], self.outside.predicted[ood_rows]
                        scored = ScoredPair(*scored[:2], *predicted)
                    seconds = self.inside.seconds[key] + self.outside.seconds[key]
                    sums.setdefault(("", place), _Sum(seconds)).add(scored, 0.0)
            for order in group.orders if self.running else ():
                rows = group.arrange(id_rows, ood_rows, order, draw)
                for place, detector in self.running.items():
                    scores, seconds = self._running_scores(detector, rows)
                    scored = ScoredPair(scores[id_rows], scores[self.n_id + ood_rows])
                    sums.setdefault((order, place), _Sum()).add(scored, seconds)
        return sums

    def _running_scores(self, detector: Detector, stream: IntArray) -> tuple[FloatArray, float]:
        """Scores of a stream, in the order of the sets, and the seconds they took."""
        state, scores, seconds = copied(detector.state_), np.empty(self.n_id + len(self.outside.outputs)), 0.0
        sides = self.inside.prepared[id(detector)], self.outside.prepared[id(detector)]
        with bar(f"{detector.name} in a stream with {self.outside.name}", stream.size, quiet_seconds=1.0) as line:
            for block in row_blocks(sides[0], sides[0].names, stream.size):
                rows = stream[block]
                is_id = rows < self.n_id
                arrays = {}
                for name in sides[0].names:
                    a, b = (side.array(name) for side in sides)
                    arrays[name] = together = np.empty((rows.size, a.shape[1]), np.result_type(a, b))
                    together[is_id], together[~is_id] = a[rows[is_id]], b[rows[~is_id] - self.n_id]
                started = time.perf_counter()
                scores[rows], state = detector._step(state, ModelOutputs._trusted(arrays), 1)
                seconds += time.perf_counter() - started
                line.advance(rows.size)
        return scores, seconds
