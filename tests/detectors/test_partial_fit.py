"""A fit in parts: the detector that all rows would make, for every detector whose fit can be put together."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.mahalanobis import ClassSums
from normscale.detectors.partial_fit import PartialFit, merged
from normscale.detectors.registry import list_detectors, make_detector
from normscale.state import record_arrays

MADE = {name: make_detector(name) for name in list_detectors()}
MERGED = [name for name, detector in MADE.items() if not detector._why_all_rows()]
WHOLE = [name for name in MADE if name not in MERGED]


def rows(n: int, dtype: Any = np.float32, seed: int = 0) -> ns.ModelOutputs:
    """Outputs with every array that a detector of ours reads, of four classes that are apart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    features = (rng.normal(size=(n, 6)) + 50.0 + 3.0 * labels[:, None]).astype(dtype)
    logits = (rng.normal(size=(n, 4)) + 4.0 * np.eye(4)[labels]).astype(dtype)
    stages = {
        name: features + rng.normal(size=(n, 6)).astype(dtype)
        for name in ("stem", "stage1", "stage2", "stage3", "perturbed_features")
    }
    attacked = {f"attacked_{name}": array + 1 for name, array in {**stages, "features": features}.items()}
    head = (rng.normal(size=(4, 6)), rng.normal(size=4))
    return ns.ModelOutputs(
        logits=logits, features=features, perturbed_logits=logits, labels=labels, head=head, **stages, **attacked
    )


def fitted_in_parts(detector: ns.Detector, outputs: ns.ModelOutputs, cuts: list[int]) -> ns.Detector:
    fit = PartialFit(detector)
    edges = [0, *cuts, len(outputs)]
    while True:
        parts = [fit.partial([outputs[a:b]]) for a, b in itertools.pairwise(edges)]
        total = parts[0]
        for part in parts[1:]:
            total = merged(total, part)
        if fit.finish(total):
            return detector


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", MERGED)
def test_parts_make_what_all_rows_make(name: str, dtype: Any) -> None:
    outputs = rows(400, dtype)
    whole = make_detector(name).fit(outputs)
    parts = fitted_in_parts(make_detector(name), outputs, [1, 130, 130, 399])  # single rows and an empty part
    assert parts._widths == whole._widths
    header, tensors = whole._stored()
    other_header, others = parts._stored()
    assert header == other_header
    assert tensors.keys() == others.keys()
    assert whole._baseline is not None
    assert parts._baseline is not None
    assert np.array_equal(whole._baseline.predicted, parts._baseline.predicted)
    for key, array in record_arrays({"baseline": whole._baseline}).items():
        np.testing.assert_allclose(others[key], array, rtol=1e-12, atol=1e-12)
    fresh = rows(50, seed=1)
    np.testing.assert_allclose(parts.score(fresh), whole.score(fresh), rtol=1e-9, atol=1e-9)


def test_which_detectors_are_fitted_in_parts() -> None:
    assert {
        "energy",
        "mahalanobis",
        "relative_mahalanobis",
        "vim",
        "residual",
        "norm_scaling",
        "temperature_scaling",
        "robust_norm_scaling",
        "stream_aware",
        "ensemble",
        "unit",
        "multi_threshold",
    } <= set(MERGED)
    assert {"react", "knn"} <= set(WHOLE)


@pytest.mark.parametrize("name", WHOLE)
def test_what_must_see_all_rows_says_why(name: str) -> None:
    with pytest.raises(ns.InvalidInput, match=f"{name} cannot be fitted in parts: .* all "):
        PartialFit(MADE[name])


def test_a_step_is_fitted_in_parts_where_its_score_is_not_fitted() -> None:
    PartialFit(make_detector("norm_scaling+energy"))
    with pytest.raises(ns.InvalidInput, match="multi_threshold is fitted on what norm_scaling makes of all rows"):
        PartialFit(make_detector("norm_scaling+multi_threshold"))
    with pytest.raises(ns.InvalidInput, match="regressed on all rows"):
        PartialFit(ns.Mahalanobis(layers=("stem", "features"), weights="attacks"))


def test_a_detector_of_ones_own_that_only_has_a_fit_must_see_all_rows() -> None:
    class Own(ns.Detector):
        name = "own"

        def _fit(self, chunks: Any) -> None:
            list(chunks)

        def _score(self, outputs: ns.ModelOutputs, threads: int) -> Any:
            return outputs.logits[:, 0]

    with pytest.raises(ns.InvalidInput, match="its fit takes all rows in one place"):
        PartialFit(Own())


def test_parts_without_rows_or_of_other_widths() -> None:
    fit = PartialFit(ns.NormScaling())
    with pytest.raises(ns.InvalidInput, match="empty; at least one row"):
        fit.finish(fit.partial([]))
    two, three = (fit.partial([ns.ModelOutputs(np.eye(n))]) for n in (2, 3))
    with pytest.raises(ns.InvalidInput, match="2 columns in one part of the rows and 3 in another"):
        merged(two, three)


def test_a_fit_that_fails_leaves_the_detector_as_it_was() -> None:
    detector = ns.NormScaling().fit(np.eye(3))
    before = detector._pack()
    fit = PartialFit(detector)
    fit.partial([ns.ModelOutputs(np.arange(12.0).reshape(3, 4))])
    with pytest.raises(ns.InvalidInput):
        fit.partial([ns.ModelOutputs([[np.nan, 1.0]])])
    assert detector._pack() == before


def test_partials_are_not_changed_by_merging() -> None:
    outputs = rows(60)
    fit = PartialFit(ns.Mahalanobis())
    first, second = fit.partial([outputs[:30]]), fit.partial([outputs[30:]])
    before = copy.deepcopy(first.own[0].__dict__)
    merged(first, second)
    for key, value in before.items():
        np.testing.assert_array_equal(first.own[0].__dict__[key], value)


def test_class_sums_merge_about_far_origins() -> None:
    """Against sums of exact whole numbers: origins that differ by as much as the rows do lose no digits."""
    rng = np.random.default_rng(3)
    features, labels = rng.integers(-50, 50, (64, 3)).astype(float) + 1e6, rng.integers(0, 5, 64)
    labels[:32] %= 2  # the first part knows fewer classes
    one, two, both = ClassSums(), ClassSums(), ClassSums()
    one.add(features[:32], labels[:32])
    two.add(features[32:] + 1000.0, labels[32:])
    both.add(np.concatenate([features[:32], features[32:] + 1000.0]), labels)
    for found, wanted in zip(one.merge(two).result()[:3], both.result()[:3], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    for found, wanted in zip(two.merge(one).result()[:3], both.result()[:3], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
