"""Several detectors as one: their scores on a common scale, added up."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector, join
from normscale.detectors.common_scale import CommonScale
from normscale.detectors.formula import LogitFormula, offered_formula
from normscale.detectors.registry import as_detector, register
from normscale.detectors.wrapper import Score, short_spec
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs

_COMBINE = ("sum", "ranks", "p_values")
_MEMBERS = ("present_classes", "centred", "knn", "vim")


@register
class Ensemble(Detector):
    """The weighted sum of several detectors' scores, each brought to a common scale on in-distribution rows alone.

    The scale of a member comes from training rows that it has not seen: every row's score is that of a copy fitted on
    the other half of the rows. Members score as fitted; statistics that could run do not.

    Parameters
    ----------
    detectors : detectors or their names, in a sequence or separated by commas
        The default spans what the outputs have to tell: norm-scaling and centred Energy (logits), KNN and ViM
        (features).
    weights : numbers, one a member
        1 each where nothing is said.
    combine : {"sum", "ranks", "p_values"}
        The common scale. ``"sum"``: deviations within predicted classes. ``"ranks"``: the share of training rows below.
        ``"p_values"``: minus the logarithm of the conformal p-value (Fisher's sum). The last two know nothing beyond
        the largest training score: what lies there is equal.

    Attributes
    ----------
    members_ : list of Detector
    scales_ : list of CommonScale

    References
    ----------
    docs/robust.md; Fisher, "Statistical Methods for Research Workers", 1925 (p-values).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> train = rng.normal(size=(200, 3)) + 6.0 * np.eye(3)[rng.integers(0, 3, 200)]
    >>> detector = Ensemble("msp,energy").fit(train)
    >>> bool(detector.score([[0.5, 0.0, 0.0]]) > detector.score([[9.0, 0.0, 0.0]]))
    True
    """

    name = "ensemble"
    title = "Ensemble"
    paper = "docs/robust.md"
    cost = "all of its members"
    parameters = {
        "detectors": "the members, names separated by commas",
        "weights": "a number for each member; 1 each where nothing is said",
        "combine": "the common scale: sum (of deviations), ranks, or p_values",
    }

    class Fitted(NamedTuple):
        """What the scores of each member are worth."""

        scales: tuple[CommonScale, ...]

    fitted_: Fitted

    def __init__(
        self,
        detectors: str | Sequence[Score] = _MEMBERS,
        weights: str | ArrayLike | None = None,
        combine: str = "sum",
    ) -> None:
        parts: Sequence[Score] = detectors.split(",") if isinstance(detectors, str) else detectors
        if not isinstance(parts, Sequence) or not parts:
            raise InvalidInput(
                f"detectors must be names such as 'norm_scaling,energy', or detectors; got {detectors!r}."
            )
        self.members_ = [as_detector(part) for part in parts]
        odd = next((one for one in self.members_ if one.needs_fit and one.fitted_on != self.fitted_on), None)
        if odd is not None:
            raise InvalidInput(f"{odd.name} is fitted on {odd.fitted_on} outputs, an ensemble on training outputs.")
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
        self.combine = _validate.one_of(combine, "combine", _COMBINE)
        # The scale needs predicted classes, so logits are read in fit also where no member does.
        self.reads = tuple(dict.fromkeys(name for one in self.members_ for name in one.reads))
        in_fit = (*(name for one in self.members_ for name in one.reads_in_fit), LOGITS)
        self.reads_in_fit = tuple(dict.fromkeys(name for name in in_fit if name not in self.reads))
        self.needs_labels = any(one.needs_labels for one in self.members_)
        self.needs_head = any(one.needs_head for one in self.members_)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {
            "detectors": [copy.deepcopy(dict(one)) if isinstance(one, Mapping) else one for one in self.detectors],
            "weights": list(self.weights),
            "combine": self.combine,
        }

    def _inner(self) -> dict[str, Detector]:
        return {f"member{i}": one for i, one in enumerate(self.members_)}

    def _set_inner(self, inner: dict[str, Detector]) -> None:
        self.members_ = list(inner.values())

    def _fit(self, chunks: Iterator[ModelOutputs]) -> None:
        self._fit_members(join(chunks))

    def _fit_held_out(self, train: ModelOutputs) -> FloatArray:
        learner = self._learner()
        scores = learner._fit_members(join(learner._checked([train])))
        self._take_over(learner)
        return scores

    def _fit_members(self, train: ModelOutputs) -> FloatArray:
        """Fit on all rows; give each the score (n,) that it would have had had it not been among them."""
        columns = [one._fit_held_out(train) for one in self.members_]
        self._learn(self.Fitted(tuple(CommonScale.of(column, train.predicted, self.combine) for column in columns)))
        return self._combined(columns)

    def _derive(self) -> None:
        if len(self.fitted_.scales) != len(self.members_):
            raise InvalidInput(f"there must be {len(self.members_)} scales, one a member.")

    def _score(self, outputs: ModelOutputs, threads: int) -> FloatArray:
        return self._combined([one._score(outputs.only(*one.reads), threads) for one in self.members_])

    def _combined(self, columns: Sequence[FloatArray]) -> FloatArray:
        total = np.zeros(columns[0].size)
        for column, scale, weight in zip(columns, self.fitted_.scales, self.weights, strict=True):
            total += weight * scale(column, self.combine)
        return total

    def formula(self) -> LogitFormula | None:
        """Where all members are formulas on the same logits and at most one is more than a largest logit."""
        if self.combine != "sum" or self.reads != (LOGITS,):
            return None
        kind: LogitFormula | None = None
        largest, offset = 0.0, 0.0
        parts = [offered_formula(one) for one in self.members_]
        for part, scale, weight in zip(parts, self.fitted_.scales, self.weights, strict=True):
            if not isinstance(part, LogitFormula) or part.class_offset is not None or part.ood_position is not None:
                return None
            if part.centred != parts[0].centred:  # type: ignore[union-attr]  # the first passed the line above
                return None
            times = weight / scale.spread
            offset += times * scale.centre
            if part.kind == "max" and part.is_plain_but_centred:
                largest += times * (part.weight * float(part.factor[0]) + part.largest_weight)
            elif kind is None:
                kind = part._replace(weight=times * part.weight)
                largest += times * part.largest_weight
            else:
                return None
        if kind is None:
            first = parts[0]
            assert isinstance(first, LogitFormula)
            kind = first._replace(weight=0.0)
        assert self.widths_ is not None
        return kind._replace(largest_weight=largest, class_offset=np.full(self.widths_[LOGITS], offset))
