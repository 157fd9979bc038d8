"""What every comparison makes: scores of both sides, and one record of a method on an OoD set in a kind of stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale._version import __version__
from normscale.bench.experiments.methods import Method, row_blocks
from normscale.errors import InvalidInput, MissingOutput
from normscale.metrics import METRICS
from normscale.metrics.ranking import evaluate, evaluate_per_class
from normscale.metrics.record import number_of
from normscale.outputs import ModelOutputs


class StreamKind(NamedTuple):
    """A kind of stream, see :mod:`normscale.bench.experiments.streams`."""

    share: float
    """Of OoD rows in the stream."""
    order: str
    balance: str


class Measurement(NamedTuple):
    """One method on one OoD set with one network: what came out, and of what."""

    ood_set: str
    method: str
    """Its name in this comparison; unique there."""
    detector: str
    """The name under which the detector can be made again."""
    title: str
    """The method's name for people."""
    setting: str
    """``frozen``, ``stream`` or ``per class``."""
    parameters: dict[str, Any]
    metrics: dict[str, float]
    """The numbers by metric, each an attribute too; means over the draws; NaN if the stream could not be made."""
    n_id: int
    n_ood: int
    seed: int | None
    """Of the network, or of the order of the stream."""
    seconds: float = 0.0
    in_set: str = ""
    version: str = ""
    commit: str | None = None
    stream: StreamKind | None = None
    """None: all rows of both sets, shuffled where the setting needs an order."""
    classes: tuple[int, ...] = ()
    """The dominant or the missing classes of the stream."""
    draws: int = 1
    """How often the stream was drawn."""
    skipped: str = ""
    """Why there are no numbers; empty when there are."""

    def __getattr__(self, name: str) -> float:
        return float(number_of(self.metrics, name, type(self).__name__))

    @classmethod
    def of(cls, method: Method, ood_set: str, metrics: Mapping[str, float] | None = None, **more: Any) -> Measurement:
        """A record of a method on an OoD set; without metrics every one is NaN."""
        return cls(
            ood_set=ood_set,
            method=method.name,
            detector=method.detector.name,
            title=method.title,
            setting=method.setting,
            parameters=method.detector.get_params(),
            metrics=dict.fromkeys(METRICS, math.nan) if metrics is None else dict(metrics),
            **{"seed": None, "version": __version__, **more},
        )

    def as_json(self) -> dict[str, Any]:
        """Every field that says something, as a line of ``results.jsonl`` and a cell's file have them."""
        return {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name, ...)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Measurement:
        """Read back what :meth:`as_json` gave, after it was JSON; a TypeError or ValueError for anything else."""
        record = cls(**values)
        return record._replace(
            parameters=dict(record.parameters),
            metrics={str(name): float(value) for name, value in dict(record.metrics).items()},
            stream=None if record.stream is None else StreamKind(*record.stream),
            classes=tuple(record.classes),
        )


class ScoredPair(NamedTuple):
    """Scores of both sides, in the order of the sets' rows, and the predicted classes where they matter."""

    id_scores: FloatArray
    ood_scores: FloatArray
    id_predicted: IntArray | None = None
    ood_predicted: IntArray | None = None

    def metrics(self) -> dict[str, float]:
        """Every metric: of one ranking or, with predicted classes, the mean over one per class."""
        if self.id_predicted is None or self.ood_predicted is None:
            return evaluate(self.id_scores, self.ood_scores).metrics
        return evaluate_per_class(self.id_scores, self.id_predicted, self.ood_scores, self.ood_predicted).metrics


def require_one_network(named: Mapping[str, ModelOutputs], reads: Iterable[str] = ("logits",)) -> None:
    """Make sure that all outputs have rows, the same columns in the arrays that are read, and only finite numbers."""
    first = next(iter(named))
    for array in reads:
        expected = None if named[first].get(array) is None else named[first].array(array).shape[1]
        for name, outputs in named.items():
            if outputs.get(array) is None:
                raise MissingOutput(
                    f"{name} has no {array}, which a detector reads; it has {', '.join(outputs.names)}."
                )
            rows = outputs.array(array)
            _validate.require_rows(rows, f"{array} of {name}")
            if rows.shape[1] != expected:
                what = "classes" if array == "logits" else f"columns of {array}"
                turned = name if rows.shape[0] == expected else first if len(named[first]) == rows.shape[1] else None
                hint = f" Did rows and columns of {turned} change places? {array}.T turns them." if turned else ""
                raise InvalidInput(
                    f"{name} has {rows.shape[1]} {what} and {first} has {expected}; "
                    f"all outputs must come from one network.{hint}"
                )
            for block in row_blocks(outputs, [array], len(rows)):  # rows may be mapped from a file
                if not _validate.finite_row_mask(rows[block]).all():
                    raise _validate.invalid_row_error(rows[block], f"{name}: {array}", first_row=block.start)


def score_shuffled(id_rows: Rows, ood_rows: Rows, score: Callable[[Rows], FloatArray], seed: int) -> ScoredPair:
    """Scores of both sides when they come in one shuffled stream."""
    mixture = np.concatenate([id_rows, ood_rows])
    order = np.random.default_rng(seed).permutation(len(mixture))
    scores = np.empty(len(mixture))
    scores[order] = score(mixture[order])
    return ScoredPair(scores[: len(id_rows)], scores[len(id_rows) :])
