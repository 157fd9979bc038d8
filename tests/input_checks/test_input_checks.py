"""What is noticed in outputs, and what is not: each rule beside its neighbours that must pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import normscale as ns
from normscale.errors import NumericalWarning
from normscale.input_checks import (
    ProbabilityForm,
    RowSketch,
    detect_probabilities,
    log_of_probabilities,
    odd_column,
    permuted_labels,
)
from normscale.rows.columns import class_order, in_class_order


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def form_of(rows: Any) -> ProbabilityForm | None:
    found = detect_probabilities(rows)
    return None if found is None else found.form


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(2, 40), st.sampled_from([0.5, 3.0, 20.0, 200.0]))
def test_a_softmax_is_noticed_and_logits_are_not(seed: int, n: int, classes: int, scale: float) -> None:
    logits = scale * np.random.default_rng(seed).normal(size=(n, classes))
    for dtype in (np.float32, np.float64):
        assert form_of(softmax(logits).astype(dtype)) is ProbabilityForm.PROBABILITIES
    if n >= 3:
        assert form_of(softmax(logits).astype(np.float16)) is ProbabilityForm.PROBABILITIES
        assert form_of(np.round(softmax(logits), 3)) is ProbabilityForm.PROBABILITIES
    with np.errstate(divide="ignore"):
        assert form_of(np.log(softmax(logits))) is ProbabilityForm.LOG_PROBABILITIES
    if n >= 20:
        assert form_of(logits) is None


def test_what_is_nearly_a_softmax() -> None:
    rng = np.random.default_rng(0)
    assert form_of(1 / (1 + np.exp(-rng.normal(size=(30, 5))))) is ProbabilityForm.SIGMOIDS
    assert form_of(1 / (1 + np.exp(-rng.normal(size=(5, 5))))) is None  # too few to be sure
    assert form_of(np.array([[0.4, 0.605], [0.3, 0.695]])) is None
    assert form_of(np.empty((0, 3))) is None
    rows = softmax(rng.normal(size=(50, 4)))
    rows[7] = np.nan
    assert form_of(rows) is ProbabilityForm.PROBABILITIES
    assert form_of(np.full((3, 2), np.nan)) is None


def test_percentages() -> None:
    def is_percentages(values: Any) -> bool:
        return form_of(values) is ProbabilityForm.PERCENTAGES

    rng = np.random.default_rng(0)
    rows = 100.0 * softmax(3.0 * rng.normal(size=(40, 6)))
    assert is_percentages(rows)
    assert is_percentages(np.round(rows, 1))
    assert is_percentages(np.round(rows).astype(np.int64)[:, :2] * 0 + 50)
    assert not is_percentages(rows / 100.0)
    assert not is_percentages(rows - 1.0)
    assert not is_percentages(rng.uniform(0.0, 30.0, (40, 6)))
    assert not is_percentages(np.empty((0, 3)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_logarithm_gives_the_same_softmax_and_keeps_the_order(dtype: type[np.floating]) -> None:
    logits = np.array([[0.0, -3.0, 400.0], [1.0, 2.0, -800.0]])
    rows = softmax(logits).astype(dtype)
    logs = log_of_probabilities(rows, "x")
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(softmax(logs), rows, rtol=1e-6, atol=1e-12)
    assert (np.diff(np.sort(logs.ravel())[np.argsort(np.argsort(rows.ravel()))][np.argsort(rows.ravel())]) >= 0).all()
    rows[0] = np.nan
    assert np.isnan(log_of_probabilities(rows, "x")[0]).all()
    with pytest.raises(ns.InvalidInput, match="but row 1 adds up to"):
        log_of_probabilities(np.array([[0.5, 0.5], [1.0, 0.5]]), "x")


def test_labels_and_row_numbers_among_the_logits() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(60, 4)), rng.integers(0, 4, 60)
    assert odd_column(logits) is None
    assert odd_column(np.round(logits)) is None  # all whole: quantised logits
    assert odd_column(np.c_[logits[:10], labels[:10]]) is None  # too few to be sure
    assert odd_column(np.c_[logits, np.full(60, 3.0)]) is None  # a class that never moves is no label
    assert odd_column(np.c_[logits, 50.0 * labels]) is None  # whole numbers, but no class has these
    found = odd_column(np.c_[labels, logits], ["digit", *"abcd"])
    assert found is not None
    assert "column 0 ('digit') holds nothing but the whole numbers 0 to 3" in found
    found = odd_column(np.c_[logits, np.arange(5, 65)])
    assert found is not None
    assert "column 4 counts the rows from 5 to 64" in found


def test_labels_by_another_numbering() -> None:
    rng = np.random.default_rng(0)
    predicted = rng.integers(0, 6, 400)
    labels = np.where(rng.random(400) < 0.8, predicted, rng.integers(0, 6, 400))
    assert permuted_labels(labels, predicted, 6) is None
    order = np.array([3, 0, 1, 5, 2, 4])
    found = permuted_labels(order[labels], predicted, 6)
    assert found is not None
    assert "numbered otherwise" in found
    assert "label 1 is column 2" in found
    found = permuted_labels(rng.integers(0, 6, 400), predicted, 6)
    assert found is not None
    assert "no more than chance" in found
    assert permuted_labels(np.full(400, -1), predicted, 6) is None
    assert permuted_labels(order[labels][:30], predicted[:30], 6) is None
    poor = np.where(rng.random(400) < 0.35, predicted, rng.integers(0, 6, 400))  # a poor classifier is not accused
    assert permuted_labels(poor, predicted, 6) is None


@pytest.mark.parametrize("seed", range(5))
def test_shuffled_labels_of_a_few_classes_out_of_many(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.choice([3, 9, 17, 20, 31, 44, 52, 59], 600)
    predicted = np.where(rng.random(600) < 0.9, labels, rng.integers(0, 60, 600))
    assert permuted_labels(labels, predicted, 60) is None
    found = permuted_labels(rng.permutation(labels), predicted, 60)
    assert found is not None
    assert "no more than chance" in found
    poor = np.where(rng.random(600) < 0.2, labels, rng.permutation(labels))  # right in 30 %, by chance in 12 %
    assert permuted_labels(labels, poor, 60) is None


@pytest.mark.parametrize("n_train", [200, 60_000])
@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_the_share_of_common_rows(n_train: int, shared: float) -> None:
    rng = np.random.default_rng(0)
    train, own = rng.normal(size=(n_train, 6)).astype(np.float32), rng.normal(size=(4000, 6)).astype(np.float32)
    n = min(int(shared * 4000), n_train)
    other = np.concatenate([train[:n], own[: 4000 - n]]).astype(np.float64)
    first, second = RowSketch(), RowSketch()
    for part in np.array_split(train, 7):
        first.take_in(part)
    second.take_in(other)
    expected = n / 4000
    found = first.share_of(second)
    assert found is not None
    assert abs(found - expected) < 0.06  # of the rows with small numbers, which are a sample
    assert first.share_of(RowSketch()) is None


def test_rows_of_the_same_numbers_in_another_order_are_others() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 4))
    sketch, turned = RowSketch(), RowSketch()
    sketch.take_in(rows)
    turned.take_in(rows[:, ::-1])
    assert sketch.share_of(turned) == 0.0


def test_columns_are_matched_by_name() -> None:
    assert class_order(("a", "b"), None, "x") is None
    assert class_order(None, ("cat", "dog"), "x") is None
    order = class_order(None, ("2", "0", "1"), "x")
    assert order is not None
    assert order.tolist() == [1, 2, 0]
    with pytest.raises(ns.InvalidInput, match=r"x has no column of logits for 'dog'; .* it has 'wolf' instead"):
        class_order(("cat", "dog"), ("wolf", "cat"), "x")
    sample = ns.load_sample().test
    turned = in_class_order(sample, np.arange(8)[::-1].copy())
    assert turned.accuracy == sample.accuracy
    assert turned.head is not None
    np.testing.assert_allclose(turned.head.logits(turned.features), turned.logits, atol=1e-2)
    fewer = in_class_order(sample, np.array([5, 2]))
    assert fewer.labels is not None
    assert sample.labels is not None
    assert (fewer.labels == np.select([sample.labels == 5, sample.labels == 2], [0, 1], -1)).all()


@pytest.mark.parametrize("name", ["norm_scaling", "stream_aware+energy", "robust_norm_scaling", "tempered+energy"])
def test_a_fit_on_probabilities_is_warned_of_once(name: str) -> None:
    sample = ns.load_sample()
    with pytest.warns(NumericalWarning, match="holds probabilities, not logits") as said:
        ns.make_detector(name).fit(softmax(sample.train.logits))
    assert [one.filename for one in said] == [__file__]
    ns.make_detector(name).fit(sample.train.logits)  # a warning would be an error here
    ns.make_detector(name).fit(np.log(softmax(sample.train.logits)))
