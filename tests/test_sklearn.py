"""The adapter under scikit-learn's own checks, and beside the detector it wraps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normscale as ns

pytest.importorskip("sklearn")
from sklearn.datasets import load_digits, make_blobs
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from normscale.sklearn import ClassifierLogits, OutlierDetector


def out_of_fold_differs(estimator: Any) -> dict[str, str]:
    """The checks that compare fit_transform with fit and transform; TargetEncoder differs in the same way."""
    if not isinstance(estimator, ClassifierLogits):
        return {}
    why = "fit_transform gives out-of-fold logits"
    return dict.fromkeys(("check_transformer_data_not_an_array", "check_transformer_general"), why)


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        OutlierDetector("energy", random_state=0),
        OutlierDetector("norm_scaling", random_state=0),
        ClassifierLogits(LogisticRegression()),
        ClassifierLogits(GaussianNB()),
    ],
    expected_failed_checks=out_of_fold_differs,
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
    guard = make_pipeline(ClassifierLogits(classifier), OutlierDetector("msp", random_state=0))
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


def digits_of_a_forest(seed: int, **options: Any) -> float:
    """The share of new digits that a pipeline flags at keep=0.95."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    train, new = order[:900], order[900:]
    forest = RandomForestClassifier(30, random_state=seed)
    guard = make_pipeline(ClassifierLogits(forest, **options), OutlierDetector("msp", random_state=seed))
    return float((guard.fit(x[train], y[train]).predict(x[new]) == -1).mean())


def test_a_threshold_in_a_pipeline_holds_for_new_rows() -> None:
    """A forest is sure of every row that it was fitted on; a threshold set on them flags a third of all new ones."""
    assert np.mean([digits_of_a_forest(seed) for seed in range(3)]) < 0.09
    with pytest.warns(ns.NumericalWarning, match="logits of rows that the classifier was fitted on"):
        assert digits_of_a_forest(0, cv=None) > 0.2


def test_sentences_that_a_text_classifier_knows_are_kept() -> None:
    rng = np.random.default_rng(0)
    common = [f"common{number}" for number in range(12)]

    def sentences(n: int) -> tuple[list[str], list[str]]:
        topics = np.repeat(["sport", "weather", "cooking"], n)
        own = [rng.choice([f"{topic}{number}" for number in range(12)], 4) for topic in topics]
        return [" ".join([*words, *rng.choice(common, 5)]) for words in own], topics.tolist()

    guard = make_pipeline(
        ClassifierLogits(make_pipeline(TfidfVectorizer(), LogisticRegression(C=100))),
        OutlierDetector("norm_scaling", random_state=0),
    ).fit(*sentences(60))
    assert (guard.predict(sentences(300)[0]) == -1).mean() < 0.09


def test_out_of_fold_logits_are_of_classifiers_that_have_not_seen_the_row() -> None:
    rows, labels = make_blobs(60, centers=3, random_state=0, cluster_std=4.0)
    given = ClassifierLogits(LogisticRegression(), cv=4).fit_transform(rows, labels)
    expected = np.empty_like(given)
    for train, held_out in StratifiedKFold(4).split(rows, labels):
        expected[held_out] = LogisticRegression().fit(rows[train], labels[train]).decision_function(rows[held_out])
    np.testing.assert_array_equal(given, expected)


def test_a_class_of_one_row_cannot_be_held_out() -> None:
    rows, labels = make_blobs(30, centers=2, random_state=0)
    labels[0] = 2
    with pytest.raises(ns.InvalidInput, match="class 2 has 1 row; out-of-fold logits need 2 rows of every class"):
        ClassifierLogits(LogisticRegression()).fit_transform(rows, labels)
    labels[1] = 2
    assert ClassifierLogits(LogisticRegression()).fit_transform(rows, labels).shape == (30, 3)  # in two folds


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("oodd", "features and logits"),
        ("react", "features and the network's last layer"),
        ("vim", "logits and features"),
    ],
)
def test_a_detector_of_more_than_one_array_is_refused(name: str, needs: str) -> None:
    with pytest.raises(ns.InvalidInput, match=f"gives a detector one array X; {name} needs {needs}"):
        OutlierDetector(name).fit(ns.load_sample().train.features)


def test_energy_of_log_probabilities_is_warned_of() -> None:
    x, y = load_digits(return_X_y=True)
    guard = make_pipeline(ClassifierLogits(GaussianNB()), OutlierDetector("energy", random_state=0))
    with pytest.warns(ns.NumericalWarning, match="energy gives every row of log-probabilities the same score"):
        guard.fit(x[:600], y[:600])
