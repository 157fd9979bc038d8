"""Detectors as scikit-learn knows them: ``fit``, ``decision_function``, ``predict``, in a ``Pipeline``.

scikit-learn is imported with this module and by nothing else in the package. Its outlier detectors speak the other
way round: higher is more normal, +1 is an inlier, -1 an outlier.

>>> from sklearn.datasets import load_digits
>>> from sklearn.linear_model import LogisticRegression
>>> from sklearn.pipeline import make_pipeline
>>> images, digits = load_digits(return_X_y=True)
>>> known = digits < 8
>>> classifier = ClassifierLogits(LogisticRegression(max_iter=2000))
>>> guard = make_pipeline(classifier, OutlierDetector("energy", random_state=0))
>>> guard = guard.fit(images[known][:1000] / 16, digits[known][:1000])
>>> inside, outside = guard.predict(images[known][1000:] / 16), guard.predict(images[~known] / 16)
>>> bool((inside == 1).mean() > 0.8), bool((outside == -1).mean() > 0.3)
(True, True)
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from normscale._validate import FloatArray, IntArray
from normscale.detectors.registry import DEFAULT, make_detector
from normscale.errors import InvalidInput, MissingExtra
from normscale.outputs import LOGITS, ModelOutputs

try:
    from sklearn.base import BaseEstimator, OutlierMixin, TransformerMixin, clone
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtra(f"normscale.sklearn needs scikit-learn ({error}). Run: pip install scikit-learn") from error


class OutlierDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Any detector of logits (or features) as an outlier detector of scikit-learn.

    Parameters
    ----------
    detector : str
        Its name, see :func:`normscale.list_detectors`.
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

    Examples
    --------
    >>> import normscale as ns
    >>> sample = ns.load_sample()
    >>> outliers = OutlierDetector("energy", random_state=0).fit(sample.train.logits)
    >>> known, strange = (outliers.predict(x.logits) for x in (sample.test, sample.ood["unseen_digits"]))
    >>> bool((known == 1).mean() > 0.85), bool((strange == -1).mean() > 0.6)
    (True, True)
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
        if len(made.reads) != 1:
            raise InvalidInput(f"{made.name} reads {' and '.join(made.reads)}, and X is one array.")
        labels = _as_labels(y, made.reads[0], rows.shape[1]) if made.needs_labels and y is not None else None
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

    Parameters
    ----------
    classifier : estimator
        It is cloned and fitted, unless ``prefit``.
    prefit : bool
        Use it as it is.
    """

    def __init__(self, classifier: Any, *, prefit: bool = False) -> None:
        self.classifier = classifier
        self.prefit = prefit

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the classifier."""
        self.classifier_ = self.classifier if self.prefit else clone(self.classifier).fit(X, y)
        return self

    def transform(self, X: Any) -> FloatArray:
        """The logits; shape (n, n_classes)."""
        check_is_fitted(self)
        classifier = self.classifier if self.prefit else self.classifier_
        if hasattr(classifier, "decision_function"):
            scores = np.asarray(classifier.decision_function(X), dtype=np.float64)
            return np.stack([np.zeros_like(scores), scores], axis=1) if scores.ndim == 1 else scores
        probabilities = check_array(classifier.predict_proba(X))
        logs: FloatArray = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
        return logs

    def __sklearn_is_fitted__(self) -> bool:
        """Whether :meth:`transform` works."""
        return self.prefit or hasattr(self, "classifier_")
