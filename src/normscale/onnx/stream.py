"""Running norm-scaling as ONNX nodes: a batch in, the scores and the moved moments out.

A graph has no memory, so the moments come in as inputs and go out as outputs, and whoever calls the model carries them
from call to call (:class:`normscale.onnx.GuardedSession` does). Row i of a batch is scored by the moments of the state
and of the rows 0 to i, as if the rows had come one by one.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from normscale._kernels.kinds import TINY_VARIANCE
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.norm_scaling import NormScaling
from normscale.errors import FileFormatError, InvalidInput
from normscale.moments import RunningMoments
from normscale.onnx.nodes import Nodes
from normscale.onnx.scores import finite_rows, nan_unless, not_below_zero, reduce_rows

if TYPE_CHECKING:
    from onnx import ModelProto

STATE = ("guard_weight", "guard_mean", "guard_m2")
"""The inputs that hold the moments."""
NEXT = tuple(f"{name}_next" for name in STATE)
"""The outputs that hold them after the batch."""
KEY = "normscale.initial_state"
"""Where in the model's metadata the first values stand."""
_TINY = 1e-300


class Streamed(NamedTuple):
    """Values of the graph: scores (n,), and the state after the batch."""

    scores: str
    weight: str
    mean: str
    m2: str


def running_detector(detector: Detector) -> NormScaling:
    """The detector, if a graph can carry its running statistics; else an error that says what to do."""
    if type(detector) is not NormScaling:
        why = (
            "it learns and forgets row by row, which no fixed graph does for a batch"
            if detector.name == "robust_norm_scaling"
            else "it has no running statistics"
        )
        raise InvalidInput(
            f"stateful works for norm_scaling; got {detector.name}: {why}. "
            "Export it without stateful (its statistics are then frozen as they are), or stream in Python."
        )
    if math.isinf(detector.prior_weight):
        raise InvalidInput(
            "stateful needs statistics that move; this norm_scaling has prior_weight=inf and never does. "
            "Export it without stateful, or fit with a finite prior_weight."
        )
    return detector


def stream_scores(nodes: Nodes, rows: str, kind: str, inverse_tau: float) -> Streamed:
    """Scores of float64 logits ``rows`` (n, C), each by the moments that include it.

    A row with NaN or infinity scores NaN and is not taken in. Where a number is too large to be squared, nothing is:
    all scores are NaN, the state stays. As in :mod:`normscale._kernels.reference` the first row is taken in by
    Welford's step; from then on the weight is at least 1, and running sums of deviations from the mean, and of their
    squares, lose no digits that matter. One line more than there are rows, the mean itself with no weight, stands
    before them, so that "the first good row" is there even when no row is.
    """
    weight, mean, m2 = STATE
    good = nodes("Reshape", finite_rows(nodes, rows), np.array([-1, 1]))
    is_good = nodes("Greater", good, 0.5)
    mean_line = nodes("Reshape", mean, np.array([1, -1]))
    lines = nodes("Concat", mean_line, nodes("Where", is_good, rows, mean_line), axis=0)
    counted = nodes("Concat", np.zeros((1, 1)), good, axis=0)
    taken = nodes("CumSum", counted, 0)
    counts = nodes("Max", nodes("Add", taken, weight), _TINY)

    first = nodes("ArgMax", counted, axis=0, keepdims=0)  # (1,); the line of the mean when no row is good
    first_weight = nodes("Gather", counted, first)
    ahead = nodes("Sub", nodes("Gather", lines, first), mean_line)
    share = nodes("Div", first_weight, nodes("Max", nodes("Add", first_weight, weight), _TINY))
    mean1 = nodes("Add", mean_line, nodes("Mul", ahead, share))
    m2_1 = nodes("Add", m2, nodes("Mul", ahead, nodes("Sub", nodes("Gather", lines, first), mean1)))

    later = nodes("Mul", counted, nodes.cast(nodes("Greater", taken, 1.5), np.float64))
    deviation = nodes("Sub", lines, mean1)
    counting = nodes("Mul", deviation, later)
    moved = nodes("Div", nodes("CumSum", counting, 0), counts)
    squares = nodes("Add", nodes("CumSum", nodes("Mul", counting, counting), 0), m2_1)
    squares = nodes("Sub", squares, nodes("Mul", counts, nodes("Mul", moved, moved)))
    squares = not_below_zero(nodes, squares)

    variance = nodes("Max", nodes("Div", squares, counts), TINY_VARIANCE)
    scaled = nodes("Div", nodes("Sub", deviation, moved), nodes("Sqrt", variance))
    if inverse_tau != 1.0:
        scaled = nodes("Mul", scaled, inverse_tau)
    scores = reduce_rows(nodes, nodes("Slice", scaled, np.array([1]), np.array([np.iinfo(np.int64).max])), kind)

    def last(value: str) -> str:
        end = nodes("Gather", value, np.array([-1]))
        return nodes("Reshape", end, np.array([-1]))

    after = (last(taken), last(nodes("Add", moved, mean1)), last(squares))
    after = (nodes("Add", after[0], weight), *after[1:])
    fine = nodes("Mul", *(_all_finite(nodes, value) for value in after[1:]))  # (1,)
    kept = (nodes("Where", nodes("Greater", fine, 0.5), new, old) for new, old in zip(after, STATE, strict=True))
    may_score = nodes("Mul", finite_rows(nodes, rows), fine)
    return Streamed(nan_unless(nodes, may_score, scores), *kept)


def _all_finite(nodes: Nodes, vector: str) -> str:
    """1.0 when every number of a vector is finite, else 0.0; shape (1,)."""
    finite = nodes.cast(nodes("Less", nodes("Abs", vector), math.inf), np.float64)
    return nodes.reduce("ReduceMin", finite, 0, keepdims=True)


def state_document(moments: RunningMoments) -> str:
    """The moments as text, every digit of them."""
    weight, mean, m2 = moments.state
    values = ([weight], mean.tolist(), m2.tolist())
    return json.dumps(dict(zip(STATE, values, strict=True)), allow_nan=False)


def read_state(model: ModelProto) -> dict[str, FloatArray]:
    """What :func:`state_document` wrote into a model's metadata."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), None)
    if text is None:
        raise InvalidInput(
            "the model carries no state of a guard. Make it with `normscale export --stateful`, or "
            "export_guarded(..., stateful=True)."
        )
    try:
        document = json.loads(text)
        state = RunningMoments.from_state(document[STATE[0]][0], document[STATE[1]], document[STATE[2]]).state
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise FileFormatError(f"the state in the model's metadata is damaged ({error}); export it again.") from error
    return dict(zip(STATE, (np.array([state.weight]), state.mean, state.m2), strict=True))
