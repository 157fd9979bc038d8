"""Scores by running moments as ONNX nodes: a batch in, the scores and the moved moments out.

A graph has no memory, so the moments come in as inputs and go out as outputs, and whoever calls the model carries them
from call to call (:class:`normscale.export.onnx.DetectorSession` does). Row i of a batch is scored by the moments of
the state and of the rows 0 to i, as if the rows had come one by one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from normscale._kernels import BlockState
from normscale._kernels.kinds import TINY_VARIANCE
from normscale._validate import FloatArray
from normscale.detectors.formula import MomentFormula
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError, InvalidInput
from normscale.export.onnx.nodes import Nodes
from normscale.export.onnx.scores import flag_finite_rows, nan_unless, not_below_zero, reduce_rows
from normscale.moments import RunningMoments

if TYPE_CHECKING:
    from onnx import ModelProto

STATE = ("detector_weight", "detector_mean", "detector_m2")
"""The inputs that hold the moments."""
NEXT = tuple(f"{name}_next" for name in STATE)
"""The outputs that hold them after the batch."""
KEY = "normscale.initial_state"
"""Where in the model's metadata the first values stand."""


class Streamed(NamedTuple):
    """Values of the graph: scores (n,), and the state after the batch."""

    scores: str
    weight: str
    mean: str
    m2: str


def stream_scores(nodes: Nodes, rows: str, formula: MomentFormula) -> Streamed:
    """Scores of float64 logits ``rows`` (n, C), each by the moments that include it.

    A row with NaN or infinity scores NaN and is not taken in. Where a number is too large to be squared, nothing is:
    all scores are NaN, the state stays.
    """
    prefix = _prefix(nodes, rows)
    variance = nodes("Max", nodes("Div", prefix.squares, prefix.counts), TINY_VARIANCE)
    scaled = nodes("Div", nodes("Sub", prefix.deviation, prefix.moved), nodes("Sqrt", variance))
    if formula.temperature != 1.0:
        scaled = nodes("Mul", scaled, 1.0 / formula.temperature)
    scaled = nodes("Slice", scaled, np.array([1]), np.array([np.iinfo(np.int64).max]))
    scores = reduce_rows(nodes, scaled, formula.kind)
    if formula.weight != 1.0:
        scores = nodes("Mul", scores, formula.weight)

    def last(value: str) -> str:
        return nodes("Reshape", nodes("Gather", value, np.array([-1])), np.array([-1]))

    weight = nodes("Add", last(prefix.taken), STATE[0])
    mean, m2 = last(nodes("Add", prefix.moved, prefix.start)), last(prefix.squares)
    fine = nodes("Mul", _all_finite(nodes, mean), _all_finite(nodes, m2))  # (1,)
    may_move = nodes("Greater", fine, 0.5)
    kept = (nodes("Where", may_move, new, old) for new, old in zip((weight, mean, m2), STATE, strict=True))
    may_score = nodes("Mul", flag_finite_rows(nodes, rows), fine)
    return Streamed(nan_unless(nodes, may_score, scores), *kept)


class _Prefix(NamedTuple):
    """Moments after every line; line 0 is the state's mean, with no weight, line i + 1 is row i."""

    taken: str
    """(n + 1, 1) good rows so far."""
    counts: str
    """(n + 1, 1) their weight and the state's."""
    start: str
    """(1, C) the mean after the first good row."""
    deviation: str
    """(n + 1, C) from it."""
    moved: str
    """(n + 1, C) how far the mean has gone from it."""
    squares: str
    """(n + 1, C) sums of squared deviations from the mean."""


def _prefix(nodes: Nodes, rows: str) -> _Prefix:
    """The moments after every row, bad rows not counted.

    As in :mod:`normscale._kernels.reference` the first row is taken in by Welford's step; from then on the weight is at
    least 1, and running sums of deviations from the mean, and of their squares, lose no digits that matter. Thanks to
    line 0 there is a first line to begin with even when no row is good, or no row is there.
    """
    weight, mean, m2 = STATE
    good = nodes("Reshape", flag_finite_rows(nodes, rows), np.array([-1, 1]))
    state_line = nodes("Reshape", mean, np.array([1, -1]))
    finite = nodes("Where", nodes("Greater", good, 0.5), rows, 0.0)  # what stands in a bad row is never counted
    lines = nodes("Concat", state_line, finite, axis=0)
    counted = nodes("Concat", np.zeros((1, 1)), good, axis=0)
    taken = nodes("CumSum", counted, 0)
    counts = nodes("Add", taken, weight)

    place = nodes("ArgMax", counted, axis=0, keepdims=0)  # (1,); 0 when no row is good
    first, first_weight = nodes("Gather", lines, place), nodes("Gather", counted, place)
    ahead = nodes("Sub", first, state_line)
    share = nodes("Div", first_weight, nodes("Add", first_weight, weight))
    start = nodes("Add", state_line, nodes("Mul", ahead, share))
    start_squares = nodes("Add", m2, nodes("Mul", ahead, nodes("Sub", first, start)))

    is_later = nodes("Mul", counted, nodes.cast(nodes("Greater", taken, 1.5), np.float64))
    deviation = nodes("Sub", lines, start)
    later = nodes("Mul", deviation, is_later)
    moved = nodes("Div", nodes("CumSum", later, 0), counts)
    squares = nodes("Add", nodes("CumSum", nodes("Mul", later, later), 0), start_squares)
    squares = nodes("Sub", squares, nodes("Mul", counts, nodes("Mul", moved, moved)))
    return _Prefix(taken, counts, start, deviation, moved, not_below_zero(nodes, squares))


def _all_finite(nodes: Nodes, vector: str) -> str:
    """1.0 when every number of a vector is finite, else 0.0; shape (1,)."""
    finite = nodes.cast(nodes("Less", nodes("Abs", vector), math.inf), np.float64)
    return nodes.reduce("ReduceMin", finite, 0, keepdims=True)


def state_document(state: BlockState) -> str:
    """The moments as text, every digit of them."""
    weight, mean, m2 = state
    values = ([weight], mean.tolist(), m2.tolist())
    return write_json(dict(zip(STATE, values, strict=True)))


def read_state(model: ModelProto) -> dict[str, FloatArray]:
    """What :func:`state_document` wrote into a model's metadata."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), None)
    if text is None:
        raise InvalidInput(
            "the model carries no running statistics. Make it with `normscale export --stateful`, or "
            "export_with_detector(..., stateful=True)."
        )
    try:
        document = read_json(text)
        state = RunningMoments.from_state(document[STATE[0]][0], document[STATE[1]], document[STATE[2]]).state
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise FileFormatError(f"the state in the model's metadata is damaged ({error}); export it again.") from error
    return dict(zip(STATE, (np.array([state.weight]), state.mean, state.m2), strict=True))
