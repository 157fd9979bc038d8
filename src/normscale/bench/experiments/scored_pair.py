"""Scores of both sides of a comparison, and what must hold before two sides may be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.bench.experiments.methods import row_blocks
from normscale.errors import InvalidInput, MissingOutput
from normscale.metrics.ranking import evaluate, evaluate_per_class
from normscale.outputs import ModelOutputs


class ScoredPair(NamedTuple):
    """Scores of both sides, in the order of the sets' rows, and the predicted classes where they matter."""

    id_scores: FloatArray
    ood_scores: FloatArray
    id_predicted: IntArray | None = None
    ood_predicted: IntArray | None = None

    def metrics(self) -> dict[str, float]:
        """Every metric: of one ranking or, with predicted classes, the mean over one per class.

        Examples
        --------
        >>> ScoredPair(np.array([0.1, 0.5]), np.array([0.5, 0.7])).metrics()["auroc"]
        0.875
        """
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
