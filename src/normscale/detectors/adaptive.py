"""Detectors that adapt to the test stream: OODD, RTL, DART."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray, IntArray, Rows
from normscale.detectors.base import About, Detector, join
from normscale.detectors.neighbours import FeatureBank
from normscale.detectors.partial_fit import fit_held_out
from normscale.detectors.registry import register
from normscale.detectors.row_blocks import blocks_of, float_blocks, lengths, unit_rows
from normscale.detectors.step import Score, Wrapper
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments, scale_factor
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.scores import energy_score, msp_score
from normscale.state import Numbers

_SIMILARITY = "similarity"
"""The array of prepared rows that says how similar to training each is."""


@register
class OODD(Detector):
    """A dictionary of suspicious features, kept along the stream.

        score = (k-th largest cosine to the dictionary) - (k-th largest cosine to the training features)

    The dictionary holds the rows of the stream that are least like training so far; each row may enter it and is then
    scored. The training features are those of the most confident rows, every class in its turn. The paper takes rows in
    by batches of 512 and may begin with made-up outliers; here rows follow one another, and the dictionary begins
    empty.
    """

    name = "oodd"
    about = About(
        "OODD",
        'Yang et al. 2025: "OODD: Test-time Out-of-Distribution Detection with Dynamic Dictionary"; its defaults',
        cost="products with the training features and the dictionary; in a stream one row after the other",
        parameters={
            "k": "which neighbour counts among the training features",
            "k_dictionary": "which neighbour counts among the suspicious features",
            "size": "how many suspicious features are kept",
            "share": "of the training rows to keep, the most confident first",
        },
    )
    reads = (FEATURES,)
    reads_in_fit = (LOGITS,)
    _holds_threshold_in_stream = False
    _in_place = True

    class Fitted(NamedTuple):
        bank: Annotated[Rows, Numbers("rows", FEATURES)]

    class State(NamedTuple):
        """The dictionary, with room for all of its rows."""

        held: Annotated[int, Numbers(least=0.0)]
        """How many rows it holds."""
        suspects: Annotated[FloatArray, Numbers("size", FEATURES)]
        """Their features, of length one; 0 where there is room."""
        similarity: Annotated[FloatArray, Numbers("size")]
        """How similar to training each is."""

        def check(self) -> None:
            if self.held > len(self.suspects):
                raise InvalidInput(f"the dictionary must hold at most {len(self.suspects)} rows; got {self.held}.")

    fitted_: Fitted
    bank_: FeatureBank

    def __init__(self, k: int = 10, k_dictionary: int = 5, size: int = 512, share: float = 0.5) -> None:
        self.k = _validate.at_least(k, "k", 1)
        self.k_dictionary = _validate.at_least(k_dictionary, "k_dictionary", 1)
        self.size = _validate.at_least(size, "size", 1)
        self.share = _validate.fraction(share, "share", allow_one=True)

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        train = join(chunks)
        for name in (FEATURES, LOGITS):
            if not np.isfinite(train.array(name)).all():
                raise _validate.invalid_row_error(train.array(name), name)
        kept = most_confident(train, max(1, round(self.share * len(train))))
        self._learn(self.Fitted(train.features[kept]))

    def _derive(self) -> None:
        self.bank_ = FeatureBank(self.fitted_.bank, np.ones(len(self.fitted_.bank)))

    @property
    def dictionary_(self) -> FloatArray:
        """The features in the dictionary."""
        state: OODD.State = self._current()
        return state.suspects[: state.held]

    def _start(self) -> State:
        return self.State(0, np.zeros((self.size, self.fitted_.bank.shape[1])), np.zeros(self.size))

    def _similarity(self, block: FloatArray) -> FloatArray:
        """The k-th largest cosine of rows of length one to the training features."""
        return self.bank_.largest_products(block, min(self.k, len(self.bank_)))[:, -1]

    def _score_at(self, state: State, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, block in float_blocks(outputs.features, FEATURES, self.size):
            rows = unit_rows(block)
            scores[where] = -self._similarity(rows)
            if state.held:
                scores[where] += _kth_largest(rows @ state.suspects[: state.held].T, self.k_dictionary)
        return scores

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        rows, similarities = np.empty(outputs.features.shape), np.empty((len(outputs), 1))
        for where, block in float_blocks(outputs.features, FEATURES):
            rows[where] = unit_rows(block)
            similarities[where, 0] = self._similarity(rows[where])
        return ModelOutputs._trusted({FEATURES: rows, _SIMILARITY: similarities})

    def _step(self, state: State, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, State]:
        scores = np.empty(len(prepared))
        held, suspects, similarity = state
        similarities = prepared.array(_SIMILARITY)[:, 0].tolist()
        for i, (row, similar) in enumerate(zip(prepared.features, similarities, strict=True)):
            place = held if held < self.size else int(similarity.argmax())
            if held < self.size or similar < similarity[place]:
                suspects[place], similarity[place] = row, similar
                held = min(held + 1, self.size)
            scores[i] = _kth_largest((suspects[:held] @ row)[None], self.k_dictionary)[0] - similar
        return scores, state._replace(held=held)


def _kth_largest(values: FloatArray, k: int) -> FloatArray:
    """The k-th largest number of every row (n, m), or the last where there are fewer."""
    k = min(k, values.shape[1])
    return np.partition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k]


def most_confident(train: ModelOutputs, n: int) -> IntArray:
    """The n rows that the network is surest of: first the surest of every predicted class, then the second, ..."""
    order = np.lexsort((msp_score(train.logits), train.predicted))
    counts = np.bincount(train.predicted[order])
    place = np.concatenate([np.arange(count) for count in counts])
    return np.sort(order[np.argsort(place, kind="stable")[:n]])


_TRAINING_ROWS_PER_WEIGHT = 3.0
_TARGETS = "targets"
"""The array of prepared rows that the scorer's scores are in."""


@register
class RTL(Wrapper):
    """Test-time linear regression of another detector's scores s on the features f; the prediction is the score.

    The stream's rows fit w in s = (f, 1) . w by least squares, one by one (recursive least squares); each row is taken
    in and then scored by what w says of it: what features do not explain is taken for noise. The ridge draws w to the
    fit of the training rows, from which the stream starts; the paper's starts from nothing. Once a threshold is set,
    the training rows count as three rows for every number in w: else the first rows of a stream move w far.

    References
    ----------
    Fan et al., "A Simple Test-Time Method for Out-of-Distribution Detection" (ETLT), 2022; "Test-Time Linear
    Out-of-Distribution Detection" (RTL), CVPR 2024.
    """

    name = "rtl"
    about = About(
        "RTL",
        "Fan et al. 2022, 2024",
        cost="the wrapped score; in a stream a product with a (d, d) matrix for every row",
        parameters={
            "score": "the detector whose scores are regressed on the features",
            "ridge": "how strongly the regression is held to that of the training rows",
        },
    )
    default_score = "energy"
    own_reads = (FEATURES,)
    _holds_threshold_in_stream = False

    class Fitted(NamedTuple):
        start: Annotated[FloatArray, Numbers("weights")]
        products: Annotated[FloatArray, Numbers("weights", "weights")]

    class State(NamedTuple):
        """The regression as the stream has left it."""

        weights: Annotated[FloatArray, Numbers("weights")]
        covariance: Annotated[FloatArray, Numbers("weights", "weights")]
        training: Annotated[float, Numbers(least=0.0)]
        """How many rows the training rows count as, besides the ridge."""

    fitted_: Fitted

    def __init__(self, score: Score = "energy", ridge: float = 1.0) -> None:
        self._score_by(score)
        self.ridge = _validate.positive(ridge, "ridge")

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        self._require_one_fit()
        train = join(chunks)
        scores = fit_held_out(self.scorer, train)
        width = train.features.shape[1] + 1
        gram, right = np.zeros((width, width)), np.zeros(width)
        for where, block in float_blocks(train.features, FEATURES, fitting=True):
            rows = _with_constant(block)
            gram += rows.T @ rows
            right += rows.T @ scores[where]
        start = np.asarray(np.linalg.solve(gram + self.ridge * np.eye(width), right), dtype=np.float64)
        self._learn(self.Fitted(start, gram / len(train)))

    def _start(self) -> State:
        start = self.fitted_.start
        return self.State(start.copy(), np.eye(start.size) / self.ridge, 0.0)

    def _weighted_for_threshold(self, state: State) -> State:
        start, products = self.fitted_
        rows = _TRAINING_ROWS_PER_WEIGHT * start.size
        if state.training >= rows:
            return state
        information = np.linalg.inv(state.covariance)  # what w rests on: the ridge and the rows of the stream
        more = (rows - state.training) * products
        right = information @ state.weights + more @ start
        covariance: FloatArray = np.asarray(np.linalg.inv(information + more), dtype=np.float64)
        return self.State(covariance @ right, covariance, rows)

    def _checked_state(self, state: State) -> State:
        if state.weights.size != self.fitted_.start.size:
            raise InvalidInput(f"state.weights must have {self.fitted_.start.size} numbers; got {state.weights.size}.")
        return state

    def _score_at(self, state: State, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, block in float_blocks(outputs.features, FEATURES):
            scores[where] = block @ state.weights[:-1] + state.weights[-1]
        for name in self.scorer.reads:  # the weights stand for them; what could not be scored passes for nothing
            if not _validate.finite_row_mask(outputs.array(name)).all():
                raise _validate.invalid_row_error(outputs.array(name), name, can_skip=True)
        return scores

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        targets = self.scorer._score(outputs.only(*self.scorer.reads), threads)
        return ModelOutputs._trusted({FEATURES: _with_constant(outputs.features), _TARGETS: targets[:, None]})

    def _step(self, state: State, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, State]:
        weights, covariance = state.weights.copy(), state.covariance.copy()
        scores = np.empty(len(prepared))
        targets = prepared.array(_TARGETS)[:, 0]
        with np.errstate(over="ignore", invalid="ignore"):
            for a in range(0, len(prepared), _ROWS_AT_ONCE):
                some = slice(a, a + _ROWS_AT_ONCE)
                scores[some] = _take_in(weights, covariance, prepared.features[some], targets[some])
        if not (np.isfinite(scores).all() and np.isfinite(weights).all() and np.isfinite(covariance).all()):
            raise _validate.invalid_row_error(prepared.features[:, :-1], FEATURES, can_skip=True)
        return scores, state._replace(weights=weights, covariance=covariance)


_ROWS_AT_ONCE = 32
"""Rows of a stream between two updates of the covariance, which is much larger than they are."""


def _take_in(weights: FloatArray, covariance: FloatArray, rows: FloatArray, targets: FloatArray) -> FloatArray:
    """Move a regression by rows (n, d), one after the other and in place; what it then says of each, (n,).

    With x a row, P the covariance and s = 1 + x' P x, a row moves the weights by P x (x' w - y) / s and P by
    P x x' P / s. Within a block only the columns P x of the rows to come are moved; P itself is at the end.
    """
    columns = covariance @ rows.T
    products, misfits = rows @ columns, targets - rows @ weights
    scores, sizes, moves = np.empty(len(rows)), np.empty(len(rows)), np.empty(len(rows))
    for i in range(len(rows)):
        sizes[i], moves[i] = 1.0 + products[i, i], misfits[i] / (1.0 + products[i, i])
        scores[i] = targets[i] - moves[i]
        misfits[i + 1 :] -= products[i + 1 :, i] * moves[i]
        share = products[i, i + 1 :] / sizes[i]
        columns[:, i + 1 :] -= np.outer(columns[:, i], share)
        products[i + 1 :, i + 1 :] -= np.outer(products[i + 1 :, i], share)
    weights += columns @ moves
    covariance -= (columns / sizes) @ columns.T
    return scores


def _with_constant(features: Rows) -> FloatArray:
    if not np.isfinite(features).all():
        raise _validate.invalid_row_error(features, FEATURES, can_skip=True)
    rows = np.ones((len(features), features.shape[1] + 1))
    rows[:, :-1] = features
    return rows


_IS_OOD = "is_ood"
"""The array of prepared rows that says which count as OoD."""


@register
class DART(Detector):
    """How much nearer the features are to a tracked OoD prototype than to a tracked in-distribution one.

        score = |x - p_in| / (|x - p_in| + |x - p_out|)

    with x the features standardised by mean and standard deviation of the training rows. Both prototypes begin as
    means of training rows: p_out of those whose Energy score lies more than one standard deviation above its mean,
    p_in of the others. Every row of the stream moves one of them a small step towards itself, chosen by its Energy in
    the same way, and is then scored. ``score`` uses the prototypes as they are.

    This is our own form of the paper's idea, made from its abstract: do not take its results for the authors'. The
    paper works on batches and joins several layers. Constants were set on eight OoD sets of a CIFAR-10 ResNet-20, so
    figures on that network flatter it.
    """

    name = "dart"
    about = About(
        "DART",
        'Lee et al. 2026: "Tracking the Discriminative Axis: Dual Prototypes for Test-Time OOD Detection Under '
        'Covariate Shift"',
        cost="two distances a row; in a stream one row after the other",
        parameters={"memory": "rows of one kind after which a prototype has moved two thirds of the way"},
    )
    reads = (LOGITS, FEATURES)
    _holds_threshold_in_stream = False
    _reads_again = True

    class Fitted(NamedTuple):
        limit: float
        mean: Annotated[FloatArray, Numbers(FEATURES)]
        factor: Annotated[FloatArray, Numbers(FEATURES, least=0.0)]
        inside: Annotated[FloatArray, Numbers(FEATURES)]
        outside: Annotated[FloatArray, Numbers(FEATURES)]

    class State(NamedTuple):
        """The prototypes as the stream has left them."""

        inside: Annotated[FloatArray, Numbers(FEATURES)]
        outside: Annotated[FloatArray, Numbers(FEATURES)]

    fitted_: Fitted

    def __init__(self, memory: float = 1000.0) -> None:
        self.memory = _validate.positive(memory, "memory")
        if self.memory < 1.0:
            raise InvalidInput(f"memory must be at least 1; got {memory!r}.")

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        if turn == 0:
            return RunningMoments(1).update(energy_score(rows.logits)[:, None])
        found = [RunningMoments(rows.features.shape[1]) for _ in range(2)]
        for _, logits, features in blocks_of(rows, self.reads, fitting=True):
            is_ood = energy_score(logits) > self._fitting
            for side, moments in enumerate(found):
                moments.update(features[is_ood == side])
        return found

    def _finish(self, total: Any, turn: int) -> Fitted | None:
        if turn == 0:
            self._fitting = float(total.mean[0] + total.std[0])  # the Energy above which a row counts as OoD
            return None
        assert self._baseline is not None  # fit reads logits
        moments = self._baseline.others[FEATURES]
        factor = scale_factor(moments)
        inside, outside = ((one.mean - moments.mean) * factor for one in total)
        return self.Fitted(self._fitting, moments.mean, factor, inside, outside)

    def _standardised(self, features: FloatArray) -> FloatArray:
        features -= self.fitted_.mean
        features *= self.fitted_.factor
        return features

    def _start(self) -> State:
        return self.State(self.fitted_.inside, self.fitted_.outside)

    def _score_at(self, state: State, outputs: ModelOutputs, threads: int) -> FloatArray:
        scores = np.empty(len(outputs))
        for where, _, features in blocks_of(outputs, self.reads):
            rows = self._standardised(features)
            near, far = lengths(rows - state.inside), lengths(rows - state.outside)
            scores[where] = near / np.maximum(near + far, np.finfo(np.float64).tiny)
        return scores

    def _prepare(self, outputs: ModelOutputs, threads: int) -> ModelOutputs:
        features = np.empty(outputs.features.shape)
        for where, _, block in blocks_of(outputs, self.reads):
            features[where] = self._standardised(block)
        is_ood = energy_score(outputs.logits, threads=threads) > self.fitted_.limit
        return ModelOutputs._trusted({FEATURES: features, _IS_OOD: is_ood[:, None]})

    def _step(self, state: State, prepared: ModelOutputs, threads: int) -> tuple[FloatArray, State]:
        scores = np.empty(len(prepared))
        prototypes = [state.inside.copy(), state.outside.copy()]
        for i, (row, side) in enumerate(zip(prepared.features, prepared.array(_IS_OOD)[:, 0].tolist(), strict=True)):
            prototypes[side] += (row - prototypes[side]) / self.memory
            near, far = lengths(row - np.stack(prototypes)).tolist()
            scores[i] = near / max(near + far, float(np.finfo(np.float64).tiny))
        return scores, self.State(*prototypes)
