"""The adapter under scikit-learn's own checks, and beside the detector it wraps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normscale as ns

pytest.importorskip("sklearn")
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from normscale.sklearn import ClassifierLogits, OutlierDetector


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [OutlierDetector("energy", random_state=0), OutlierDetector("norm_scaling", random_state=0)]
)
def test_it_is_an_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


def test_it_says_what_the_detector_says() -> None:
    sample = ns.load_sample()
    ours = OutlierDetector("norm_scaling", held_out=0.0, keep=0.9).fit(sample.train.logits)
    detector = ns.NormScaling().fit(sample.train.logits).set_threshold(sample.train.logits, 0.9)
    test = sample.test.logits
    np.testing.assert_array_equal(ours.score_samples(test), -detector.score(test))
    np.testing.assert_array_equal(ours.predict(test) == -1, detector.predict(test))
    assert (ours.decision_function(test) >= 0).tolist() == (ours.predict(test) == 1).tolist()


def test_held_out_rows_set_the_threshold() -> None:
    sample = ns.load_sample()
    ours = OutlierDetector("energy", held_out=0.25, keep=0.9, random_state=3).fit(sample.train.logits)
    assert ours.detector_.threshold_ is not None
    assert ours.detector_.threshold_.n == round(0.25 * len(sample.train))
    with pytest.raises(ns.InvalidInput, match="held_out must lie in"):
        OutlierDetector(held_out=1.0).fit(sample.train.logits)


def test_labels_may_be_texts() -> None:
    sample = ns.load_sample()
    labels = np.array([f"digit {label}" for label in np.asarray(sample.train.labels)])
    options: dict[str, Any] = {"parameters": {"shrinkage": "oas"}, "random_state": 0}
    ours = OutlierDetector("mahalanobis", **options).fit(sample.train.features, labels)
    far = np.asarray(sample.ood["uniform_noise"].features)
    assert (ours.predict(far) == -1).mean() > (ours.predict(np.asarray(sample.test.features)) == -1).mean()


@pytest.mark.parametrize("classifier", [LogisticRegression(), GaussianNB()])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_in_a_pipeline(classifier: Any, n_classes: int) -> None:
    rows, labels = make_blobs(400, centers=n_classes, n_features=5, random_state=0)
    guard = make_pipeline(ClassifierLogits(classifier), OutlierDetector("max_logit", random_state=0))
    guard.fit(rows, labels)
    assert guard[0].transform(rows).shape == (400, n_classes)
    assert (guard[0].transform(rows).argmax(axis=1) == guard[0].classifier_.predict(rows)).mean() > 0.99
    assert set(guard.predict(rows)) <= {1, -1}
    assert (guard.predict(rows) == 1).mean() > 0.8


def test_its_parameters_can_be_searched() -> None:
    rows, labels = make_blobs(400, centers=4, n_features=5, random_state=0)
    guard = make_pipeline(ClassifierLogits(LogisticRegression()), OutlierDetector("energy", random_state=0))
    share = {"scoring": lambda fitted, x, y: (fitted.predict(x) == 1).mean()}
    search = GridSearchCV(guard, {"outlierdetector__keep": [0.5, 0.9]}, **share)
    assert search.fit(rows, labels).best_params_ == {"outlierdetector__keep": 0.9}


def test_a_classifier_that_is_fitted_already() -> None:
    rows, labels = make_blobs(100, centers=3, random_state=0)
    fitted = LogisticRegression().fit(rows, labels)
    step = ClassifierLogits(fitted, prefit=True).fit(rows)
    assert step.classifier_ is fitted
    np.testing.assert_array_equal(step.transform(rows), fitted.decision_function(rows))


def test_labels_of_a_training_set_without_some_class_go_with_their_columns() -> None:
    sample = ns.load_sample()
    labels = np.asarray(sample.train.labels)
    some = labels != 1
    logits, labels = sample.train.logits[some], labels[some]
    ours = OutlierDetector("openmax", held_out=0.0).fit(logits, labels)
    direct: Any = ns.make_detector("openmax").fit(ns.ModelOutputs(logits, labels=labels))
    np.testing.assert_array_equal(ours.score_samples(sample.test.logits), -direct.score(sample.test))
    texts = np.array([f"digit {label}" for label in labels])
    with pytest.raises(ns.InvalidInput, match="7 different labels and X 8 columns"):
        OutlierDetector("openmax").fit(logits, texts)


def test_a_classifier_that_was_fitted_before_needs_no_fit() -> None:
    x, y = make_blobs(60, centers=3, random_state=0)
    classifier = LogisticRegression().fit(x, y)
    logits = ClassifierLogits(classifier, prefit=True).transform(x)
    np.testing.assert_array_equal(logits, classifier.decision_function(x))
