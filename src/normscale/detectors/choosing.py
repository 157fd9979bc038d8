"""The sum of several detectors, and the default detector."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._validate import FloatArray
from normscale.dataframes import read_dataframe
from normscale.detectors.base import About, Detector, OutputsLike
from normscale.detectors.formula import SumFormula, offered_formula, scorer_of
from normscale.detectors.partial_fit import CommonScale, HeldOutFit, RowSample
from normscale.detectors.registry import DEFAULT, as_detector, make_detector, register
from normscale.detectors.step import Score, short_spec
from normscale.detectors.stream_aware import StreamAware
from normscale.errors import InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs, as_outputs, is_dataframe

MEMBERS = ("centred+present_classes", "centred", "unit+mahalanobis:classes=predicted", "fdbd")
"""Norm-scaling of the classes that training shows, Energy, Mahalanobis++ and fDBD. The first two centre the logits of a
row, so that a number added to all of them changes nothing."""


@register
class Ensemble(Detector):
    """The weighted sum of several detectors' scores, each brought to a common scale on in-distribution rows alone.

    A score is measured in deviations within predicted classes, over training rows that the member has not seen: every
    row's score is that of a copy fitted on the other half of the rows. Members score as fitted; statistics that could
    run do not. Where a class has more than a thousand training rows, a sample of these tells the deviations.
    """

    name = "ensemble"
    about = About(
        "Ensemble",
        "docs/robust.md",
        cost="all of its members",
        parameters={
            "detectors": "the members, names separated by commas; by default norm-scaling and centred Energy (logits), "
            "Mahalanobis++ (features) and fDBD (both, and the head)",
            "weights": "a number for each member; 1 each where nothing is said",
        },
    )
    _reads_again = True

    class Fitted(NamedTuple):
        scales: tuple[CommonScale, ...]

    fitted_: Fitted

    def __init__(self, detectors: str | Sequence[Score] = MEMBERS, weights: str | ArrayLike | None = None) -> None:
        parts: Sequence[Score] = detectors.split(",") if isinstance(detectors, str) else detectors
        if not isinstance(parts, Sequence) or not parts:
            raise InvalidInput(
                f"detectors must be names such as 'norm_scaling,energy', or detectors; got {detectors!r}."
            )
        self.members_ = [as_detector(part) for part in parts]
        odd = next(
            (one for one in self.members_ if one._needs_fit and one.about.fitted_on != self.about.fitted_on), None
        )
        if odd is not None:
            raise InvalidInput(
                f"{odd.name} is fitted on {odd.about.fitted_on} outputs, an ensemble on training outputs."
            )
        self.detectors = tuple(short_spec(one) for one in self.members_)
        if isinstance(weights, str):
            weights = [_validate.real(float(part), "weights") for part in weights.split(",")]
        given = np.ones(len(parts)) if weights is None else _validate.as_finite_vector(weights, "weights")
        self.weights = tuple(given.tolist())
        if len(self.weights) != len(self.members_) or min(self.weights) < 0.0 or not any(self.weights):
            raise InvalidInput(
                f"weights must be {len(self.members_)} numbers, one a member, none negative, not all 0; "
                f"got {self.weights!r}."
            )
        # The scale needs predicted classes, so logits are read in fit also where no member does.
        self.reads = tuple(dict.fromkeys(name for one in self.members_ for name in one.reads))
        in_fit = (*(name for one in self.members_ for name in one.reads_in_fit or ()), LOGITS)
        self.reads_in_fit = tuple(dict.fromkeys(name for name in in_fit if name not in self.reads))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        members = [copy.deepcopy(dict(one)) if isinstance(one, Mapping) else one for one in self.detectors]
        return {"detectors": members, "weights": list(self.weights)}

    def _inner(self) -> dict[str, Detector]:
        return {f"member{i}": one for i, one in enumerate(self.members_)}

    def _set_inner(self, inner: dict[str, Detector]) -> None:
        self.members_ = list(inner.values())

    def _why_all_rows(self) -> str:
        found = ((one, one._why_all_rows()) for one in self.members_)
        return next((f"{one.name}: {why}" for one, why in found if why), "")

    def _held_out(self) -> HeldOutSum:
        return HeldOutSum(self)

    def _begin(self) -> HeldOutSum:
        return HeldOutSum(self)

    def _partial(self, rows: ModelOutputs, turn: int) -> Any:
        members = self._fitting
        return RowSample.of(rows, members.columns(rows)) if members.done else members.partial(rows)

    def _finish(self, total: Any, turn: int) -> Fitted | None:
        if not self._fitting.done:
            self._fitting.finish(total)
            return None
        self._fitting.settle(total)
        return self.fitted_

    def _derive(self) -> None:
        if len(self.fitted_.scales) != len(self.members_):
            raise InvalidInput(f"there must be {len(self.members_)} scales, one a member.")
        self._scorers = [scorer_of(one) for one in self.members_]

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return self._combined([score(outputs, threads) for score in self._scorers])

    def _combined(self, columns: Sequence[FloatArray]) -> FloatArray:
        total = np.zeros(columns[0].size)
        for column, scale, weight in zip(columns, self.fitted_.scales, self.weights, strict=True):
            total += weight * scale(column)
        return total

    def _formula(self) -> SumFormula | None:
        parts = [offered_formula(one) for one in self.members_]
        times = [weight / scale.spread for weight, scale in zip(self.weights, self.fitted_.scales, strict=True)]
        offset = sum(time * scale.centre for time, scale in zip(times, self.fitted_.scales, strict=True))
        terms = tuple((time, part) for time, part in zip(times, parts, strict=True) if part is not None)
        return SumFormula(terms, np.array([offset])) if len(terms) == len(parts) else None


class HeldOutSum(HeldOutFit):
    """The fit of an ensemble with held-out scores: that of every member, then what their scores are worth."""

    needs_sample = True

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.members = [one._held_out() for one in ensemble.members_]
        self.n_columns = sum(one.n_columns for one in self.members)
        self.done = False

    def partial(self, rows: ModelOutputs) -> list[Any]:
        """What some rows tell each member."""
        return [None if one.done else one.partial(rows) for one in self.members]

    def finish(self, total: list[Any]) -> None:
        """Learn from what all rows tell."""
        for one, own in zip(self.members, total, strict=True):
            if not one.done:
                one.finish(own)
        self.done = all(one.done for one in self.members)

    def columns(self, outputs: ModelOutputs) -> FloatArray:
        """Held-out scores (n, k) of training rows by every member."""
        return np.hstack([one.columns(outputs) for one in self.members])

    def settle(self, sample: RowSample) -> None:
        """Learn what scores are worth."""
        scales, start = [], 0
        for one in self.members:
            own = sample.of_columns(slice(start, start + one.n_columns))
            if one.needs_sample:
                one.settle(own)
            scales.append(CommonScale.of(one.combine(own.values), sample))
            start += one.n_columns
        ensemble = self.ensemble
        ensemble._widths = {name: width for one in ensemble.members_ for name, width in (one._widths or {}).items()}
        ensemble._learn(ensemble.Fitted(tuple(scales)))

    def combine(self, columns: FloatArray) -> FloatArray:
        """Held-out scores (n,) of rows by those of the members."""
        edges = np.cumsum([one.n_columns for one in self.members])[:-1]
        parts = np.split(columns, edges, axis=1)
        return self.ensemble._combined([one.combine(part) for one, part in zip(self.members, parts, strict=True)])


AUTO = "auto"
"""What one types for the default detector where several are named."""


def default_detector(arrays: Collection[str], *, head: bool) -> Detector:
    """The default detector, not fitted yet, for outputs with these arrays and with the network's last layer or without.

    It is the stream-aware sum of norm-scaling, centred Energy, Mahalanobis++ and fDBD, as far as the arrays suffice:
    the last needs the head, the last two need features. Rules that choose by comparing detectors on in-distribution
    rows do no better: docs/choosing.md.

    Examples
    --------
    >>> default_detector(["logits", "features"], head=True).name
    'stream_aware+ensemble'
    >>> default_detector(["logits"], head=False).about.reason
    'the default: there are logits alone'
    """
    detector: Detector
    if LOGITS not in arrays:
        detector, reason = make_detector("knn"), "there are no logits"
    elif FEATURES not in arrays:
        detector, reason = make_detector(DEFAULT), "there are logits alone"
    elif not head:
        detector, reason = StreamAware(Ensemble(MEMBERS[:3])), "there are logits and features, and no head"
    else:
        detector, reason = StreamAware(Ensemble.name), "there are logits, features and the head"
    detector.about = detector.about._replace(reason=f"the default: {reason}")
    return detector


def fit(outputs: OutputsLike) -> Detector:
    """The default detector for a classifier's outputs on its training set, fitted on them: :func:`default_detector`.

    Examples
    --------
    >>> import normscale as ns
    >>> ns.fit(ns.load_sample().train).about.reason
    'the default: there are logits, features and the head'
    """
    train, names = read_dataframe(outputs) if is_dataframe(outputs) else (as_outputs(outputs), None)
    detector = default_detector(train.names, head=train.head is not None).fit(train)
    detector.class_names = names
    return detector


@register
class RobustNormScaling(StreamAware):
    """Norm-scaling that learns from a stream what OoD looks like, and keeps what training said about the rest.

    It is a name for :class:`StreamAware` around the sum of frozen norm-scaling (of the classes that training shows) and
    centred Energy. It needs logits alone.
    """

    name = "robust_norm_scaling"
    about = About(
        "Robust Norm-Scaling",
        "docs/robust.md, after Ravikumar & Roy",
        cost="two passes over the logits; in a stream one row after the other",
        parameters={name: text for name, text in StreamAware.about.parameters.items() if name != "score"},
    )
    default_score = Ensemble.name

    def __init__(
        self, memory: float = 50.0, prior_weight: float = 5.0, tolerance: float = 0.8, balanced: bool = False
    ) -> None:
        super().__init__(Ensemble(MEMBERS[:2]), memory, prior_weight, tolerance, balanced)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return Detector.get_params(self)
