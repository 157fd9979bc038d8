"""Detectors as scikit-learn knows them: ``fit``, ``decision_function``, ``predict``, in a ``Pipeline``.

scikit-learn is imported with this module and by nothing else in the package. Its outlier detectors speak the other
way round: higher is more normal, +1 is an inlier, -1 an outlier.

A classifier is surer of the rows it was fitted on than of new ones, so a threshold that is set on them flags far too
many new rows. In a pipeline :class:`ClassifierLogits` therefore gives the detector out-of-fold logits.

>>> from sklearn.datasets import load_digits
>>> from sklearn.linear_model import LogisticRegression
>>> from sklearn.pipeline import make_pipeline
>>> images, digits = load_digits(return_X_y=True)
>>> known = digits < 8
>>> classifier = ClassifierLogits(LogisticRegression(max_iter=2000))
>>> guard = make_pipeline(classifier, OutlierDetector("energy", random_state=0))
>>> guard = guard.fit(images[known][:1000] / 16, digits[known][:1000])
>>> inside, outside = guard.predict(images[known][1000:] / 16), guard.predict(images[~known] / 16)
>>> bool((inside == 1).mean() > 0.9), bool((outside == -1).mean() > 0.3)
(True, True)
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np

from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import Detector
from normscale.detectors.registry import DEFAULT, make_detector
from normscale.errors import InvalidInput, MissingExtra, NumericalWarning
from normscale.outputs import LOGITS, ModelOutputs

try:
    from sklearn.base import BaseEstimator, OutlierMixin, TransformerMixin, clone
    from sklearn.model_selection import cross_val_predict
    from sklearn.utils import check_random_state, get_tags
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtra(f"normscale.sklearn needs scikit-learn ({error}). Run: pip install scikit-learn") from error


class OutlierDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Any detector of logits (or features) as an outlier detector of scikit-learn.

    Parameters
    ----------
    detector : str
        Its name, see :func:`normscale.list_detectors`. ``fit`` refuses one that needs more than one array, or a
        network's last layer.
    parameters : dict, optional
        Of the detector.
    keep : float
        Share of in-distribution rows that ``predict`` accepts.
    held_out : float
        Share of the training rows that sets the threshold instead of being fitted on. 0 sets it on the rows that were
        fitted on, which are surer than new ones.
    random_state : int, RandomState or None
        Draws the rows that are held out.

    Attributes
    ----------
    detector_ : Detector
        The fitted one, with its threshold.
    offset_ : float
        ``decision_function(X) == score_samples(X) - offset_``.
    """

    def __init__(
        self,
        detector: str = DEFAULT,
        *,
        parameters: dict[str, Any] | None = None,
        keep: float = 0.95,
        held_out: float = 0.2,
        random_state: Any = None,
    ) -> None:
        self.detector = detector
        self.parameters = parameters
        self.keep = keep
        self.held_out = held_out
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit on the outputs of a classifier; ``y`` are labels, for detectors that need them."""
        rows = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_features=2, ensure_min_samples=2)
        if not 0.0 <= self.held_out < 1.0:
            raise InvalidInput(f"held_out must lie in [0, 1); got {self.held_out!r}.")
        made = make_detector(self.detector, **(self.parameters or {}))
        _require_one_array(made)
        labels = _as_labels(y, made.reads[0], rows.shape[1]) if made._needs_labels and y is not None else None
        record = ModelOutputs(labels=labels, **{made.reads[0]: rows})
        order = check_random_state(self.random_state).permutation(len(record))
        n_held_out = min(max(1, round(self.held_out * len(record))), len(record) - 1) if self.held_out else 0
        fitted_on = record[np.sort(order[n_held_out:])] if n_held_out else record
        made.fit(fitted_on).set_threshold(record[np.sort(order[:n_held_out])] if n_held_out else record, self.keep)
        self.detector_ = made
        self.offset_ = -made.threshold_.value if made.threshold_ is not None else 0.0
        return self

    def score_samples(self, X: Any) -> FloatArray:
        """Minus the detector's score: higher is more normal; shape (n,)."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return -self.detector_.score(rows)

    def decision_function(self, X: Any) -> FloatArray:
        """How far inside the threshold a row is: negative is an outlier; shape (n,)."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> IntArray:
        """+1 for an inlier, -1 for an outlier; shape (n,)."""
        return np.where(self.decision_function(X) >= 0.0, 1, -1)


def _require_one_array(detector: Detector) -> None:
    """Refuse a detector that cannot be fitted on one array X."""
    arrays = dict.fromkeys(detector._arrays_in_fit)
    needs = " and ".join([*arrays, *(["the network's last layer"] * detector._needs_head)])
    if len(arrays) > 1 or detector._needs_head:
        raise InvalidInput(
            f"scikit-learn gives a detector one array X; {detector.name} needs {needs}. Take one that reads logits or "
            f"features alone, or fit it on ModelOutputs: make_detector({detector.name!r}).fit(outputs)."
        )


def _as_labels(y: Any, array: str, n_columns: int) -> IntArray:
    """Class numbers for labels of any kind; those that are columns of the logits already stay as they are."""
    given = np.asarray(y)
    if array == LOGITS and given.dtype.kind in "iu" and given.size and given.min() >= 0 and given.max() < n_columns:
        return given.astype(np.int64)
    values, places = np.unique(given, return_inverse=True)
    if array == LOGITS and len(values) != n_columns:
        raise InvalidInput(
            f"y has {len(values)} different labels and X {n_columns} columns of logits, so which label goes with which "
            f"column is not known. Give labels as column numbers, 0 to {n_columns - 1}."
        )
    return places.astype(np.int64)


class ClassifierLogits(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier as the step before a detector: inputs become its logits.

    They are its ``decision_function`` (two columns, 0 and z, for two classes), or, where it has none, the logarithm of
    ``predict_proba``.

    ``fit(X, y).transform(X)`` and ``fit_transform(X, y)`` differ, as in :class:`sklearn.preprocessing.TargetEncoder`:
    ``fit_transform``, which a pipeline calls while it is fitted, gives each row the logits of a copy of the classifier
    that has not seen it. ``transform`` uses the one that was fitted on all rows.

    Parameters
    ----------
    classifier : estimator
        It is cloned and fitted, unless ``prefit``.
    prefit : bool
        Use it as it is. The rows that the pipeline is then fitted on must be rows that the classifier has not seen.
    cv : int, splitter or None
        How ``fit_transform`` splits the rows; as in :func:`sklearn.model_selection.cross_val_predict`, with at most as
        many folds as the smallest class has rows. None takes the logits of the very rows that the classifier was
        fitted on, and warns of it.
    """

    def __init__(self, classifier: Any, *, prefit: bool = False, cv: Any = 5) -> None:
        self.classifier = classifier
        self.prefit = prefit
        self.cv = cv

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the classifier."""
        validate_data(self, X, skip_check_array=True)
        self.classifier_ = self.classifier if self.prefit else clone(self.classifier).fit(X, y)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> FloatArray:
        """Fit the classifier, and give out-of-fold logits; shape (n, n_classes)."""
        self.fit(X, y)
        if self.prefit:
            return self.transform(X)
        if self.cv is None:
            warnings.warn(
                "these are logits of rows that the classifier was fitted on. It is surer of them than of new rows, so "
                "a threshold set on them flags too many. Leave cv=None out, or pass prefit=True and rows that it has "
                "not seen.",
                NumericalWarning,
                stacklevel=2,
            )
            return self.transform(X)
        method = _method(self.classifier_)
        return _logits(cross_val_predict(self.classifier, X, y, cv=_folds(self.cv, y), method=method), method)

    def transform(self, X: Any) -> FloatArray:
        """The logits; shape (n, n_classes)."""
        check_is_fitted(self)
        classifier = self.classifier if self.prefit else self.classifier_
        method = _method(classifier)
        return _logits(getattr(classifier, method)(X), method)

    def __sklearn_is_fitted__(self) -> bool:
        """Whether :meth:`transform` works."""
        return self.prefit or hasattr(self, "classifier_")

    def __sklearn_tags__(self) -> Any:
        """What X and y may be: whatever the classifier takes."""
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.classifier).input_tags
        tags.target_tags.required = not self.prefit
        return tags


def classifier_outputs(classifier: Any, inputs: Any, labels: Any = None) -> ModelOutputs:
    """Logits of a fitted classifier, and class numbers of labels; features and head where its last step is linear."""
    logits = ClassifierLogits(classifier, prefit=True).transform(inputs)
    numbers = None
    if labels is not None:
        places = {value: number for number, value in enumerate(classifier.classes_.tolist())}
        numbers = np.array([places.get(value, -1) for value in np.asarray(labels).tolist()])
    plain = ModelOutputs(logits, labels=numbers)
    steps = getattr(classifier, "steps", None)
    last = classifier if steps is None else steps[-1][1]
    weight, bias = getattr(last, "coef_", None), getattr(last, "intercept_", None)
    if weight is None or bias is None or weight.ndim != 2:
        return plain
    features = inputs if steps is None else classifier[:-1].transform(inputs)
    features = np.asarray(features.toarray() if hasattr(features, "toarray") else features, dtype=np.float64)
    if len(weight) == 1:  # two classes: the logits are 0 and z
        weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
    if features.ndim != 2 or not np.allclose(features @ weight.T + bias, logits, rtol=1e-4, atol=1e-6):
        return plain
    return plain.replace(features=features, head=(weight, bias))


def _method(classifier: Any) -> str:
    return "decision_function" if hasattr(classifier, "decision_function") else "predict_proba"


def _logits(values: Any, method: str) -> FloatArray:
    """Logits (n, n_classes) from what a classifier's ``decision_function`` or ``predict_proba`` gave."""
    if method == "predict_proba":
        logs: FloatArray = np.log(np.maximum(check_array(values), np.finfo(np.float64).tiny))
        return logs
    scores = np.asarray(values, dtype=np.float64)
    return np.stack([np.zeros_like(scores), scores], axis=1) if scores.ndim == 1 else scores


def _folds(cv: Any, y: Any) -> Any:
    """The splits, no more than the smallest class has rows; a class of one row is refused."""
    if not isinstance(cv, int):
        return cv
    values, counts = np.unique(np.asarray(y), return_counts=True)
    if counts.min() < 2:
        raise InvalidInput(
            f"class {values[counts.argmin()]} has 1 row; out-of-fold logits need 2 rows of every class. Give more "
            "rows, or a fitted classifier with prefit=True and rows that it has not seen."
        )
    return min(cv, int(counts.min()))
