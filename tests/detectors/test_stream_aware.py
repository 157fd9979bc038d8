"""Any detector made stream-aware: the two groups around it, saved, resumed, exported; the rivals in kind."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale import _kernels
from normscale.detectors.formula import BoundaryFormula, FeatureFormula, formula_of
from normscale.detectors.partial_fit import fit_held_out, second_half

N_CLASSES, N_FEATURES = 5, 12


def network(n: int, seed: int, *, ood: bool = False) -> ns.ModelOutputs:
    """A linear head over features in clusters, one a class; OoD rows gather between clusters 1 and 2."""
    rng = np.random.default_rng(seed)
    centres = 4.0 * np.random.default_rng(99).normal(size=(N_CLASSES, N_FEATURES)) / np.sqrt(N_FEATURES)
    labels = rng.integers(0, N_CLASSES, n)
    middle = 0.55 * centres[1] + 0.35 * centres[2]
    features = (np.tile(middle, (n, 1)) if ood else centres[labels]) + 0.6 * rng.normal(size=(n, N_FEATURES))
    weight, bias = 1.5 * centres, -0.75 * (centres**2).sum(axis=1)
    return ns.ModelOutputs(features @ weight.T + bias, features, labels=None if ood else labels, head=(weight, bias))


@pytest.fixture(name="train", scope="module")
def _train() -> ns.ModelOutputs:
    return network(1500, 0)


@pytest.fixture(name="mixed", scope="module")
def _mixed() -> tuple[ns.ModelOutputs, Any]:
    bare = [part.replace(labels=None) for part in (network(900, 1), network(500, 2, ood=True))]
    order = np.random.default_rng(3).permutation(1400)
    return ns.ModelOutputs.concatenate([part.only("logits", "features") for part in bare])[order], order >= 900


BASES = ("energy", "msp", "mahalanobis", "norm_scaling", "react", "ensemble")


@pytest.mark.parametrize("base", BASES)
def test_any_detector_gains_where_ood_gathers(base: str, train: Any, mixed: Any) -> None:
    rows, is_ood = mixed
    detector: Any = ns.make_detector(f"stream_aware+{base}").fit(train)
    assert detector.name == f"stream_aware+{base}"
    alone = detector.scorer.score(rows.only(*detector.scorer.reads))
    np.testing.assert_allclose(detector.score(rows), detector.scale_(alone), rtol=1e-9, atol=1e-9)
    streamed = detector.stream(rows)
    before = ns.evaluate(alone[~is_ood], alone[is_ood]).auroc
    assert ns.evaluate(streamed[~is_ood], streamed[is_ood]).auroc > before
    suspected, others = detector.state.id_share[1:3], detector.state.id_share[[0, 3, 4]]
    assert suspected.min() < 0.95 < others.min()


@pytest.mark.parametrize("name", ("stream_aware+mahalanobis", "stream_aware+ensemble", "rtl+energy"))
def test_any_split_saving_and_loading_give_the_same_stream(name: str, train: Any, mixed: Any, tmp_path: Path) -> None:
    rows, _ = mixed
    detector = ns.make_detector(name).fit(train)
    parts = copy.copy(detector)
    expected = detector.stream(rows)
    got = []
    for a, b in pairwise((0, 1, 40, 41, 800, len(rows))):
        got.append(parts.stream(rows[a:b], threads=2))
        parts.save(tmp_path / "detector.safetensors")
        parts = ns.load_detector(tmp_path / "detector.safetensors")
    np.testing.assert_allclose(np.concatenate(got), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(parts.score(rows), detector.score(rows), rtol=1e-10, atol=1e-10)
    assert not np.allclose(detector.reset().score(rows), parts.score(rows)), "the stream has taught nothing"


@pytest.mark.parametrize(("base", "balanced"), [("energy", False), ("ensemble", False), ("mahalanobis", True)])
def test_both_kernels_agree(base: str, balanced: bool, train: Any, mixed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from needed_extras import compiled_kernels
    from normscale._kernels import reference

    results = []
    for backend in (compiled_kernels(), reference):
        monkeypatch.setattr(_kernels, "_kernels", backend)
        detector = ns.StreamAware(base, balanced=balanced).fit(train)
        results.append((detector.stream(mixed[0]), detector.score(mixed[0]), *detector.state_))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


def fading(n: int, memory: float) -> Any:
    """Weights of n rows, the last of which counts 1."""
    return (1.0 - 1.0 / memory) ** np.arange(n)[::-1]


@pytest.mark.parametrize("balanced", [False, True])
def test_the_shared_group_again_from_its_whole_history(balanced: bool, train: Any, mixed: Any) -> None:
    rows = mixed[0][:400]
    detector = ns.StreamAware("mahalanobis", balanced=balanced).fit(train)
    without = copy.copy(detector)
    without.fitted_ = detector.fitted_._replace(space=None)
    without.reset()
    others = without.stream(rows)
    got = detector.stream(rows)
    assert detector.state.trust == 1.0

    unit = train.features / np.linalg.norm(train.features, axis=1, keepdims=True)
    moments, basis = np.linalg.eigh(np.cov(unit.T, bias=True))
    places = (rows.features / np.linalg.norm(rows.features, axis=1, keepdims=True) - unit.mean(axis=0)) @ basis
    places = np.clip(places / np.sqrt(moments), -4.0, 4.0)
    shares = np.bincount(train.predicted, minlength=N_CLASSES) / len(train)
    r0 = float(detector.fitted_.profiles.shared_share[0])
    rates: list[float] = []
    taught: list[float] = []
    expected: list[float] = []
    for i, c in enumerate(rows.predicted):
        weights = fading(i, 250.0)
        mass = float(weights @ np.array(taught)) if i else 0.0
        held = max(0.0, mass - r0 * float(weights @ np.array(rates))) if i else 0.0
        position = 0.0
        if held > 0.0:
            mean = weights * taught @ places[:i] / mass
            variance = weights * taught @ (places[:i] - mean) ** 2 / mass
            trust = held / (held + 20.0)
            blended = 1.0 - trust + trust * variance
            gaussians = 0.5 * (places[i] ** 2 - (places[i] - trust * mean) ** 2 / blended - np.log(blended))
            position = min(8.0, max(0.0, 8.0 * trust * float(gaussians.mean())))
        expected.append(others[i] + position)
        recent = fading(i + 1, 250.0)
        frequency = float(recent @ (rows.predicted[: i + 1] == c)) / float(recent.sum())
        rates.append(1.0 if balanced else min(1.0, shares[c] / frequency))
        taught.append(rates[-1] / (1.0 + np.exp((2.0 - expected[-1]) / 0.5)))
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-7)
    assert (got - others).max() > 1.0, "the shared group has said nothing"


def test_a_frequent_class_is_suspected_where_the_stream_is_said_to_be_balanced(train: Any) -> None:
    rows = network(600, 7)
    often = rows[np.flatnonzero(rows.predicted == 2)][:80]
    free, balanced = (ns.StreamAware("mahalanobis", balanced=one).fit(train) for one in (False, True))
    for detector in (free, balanced):
        detector.stream(often)
    recent = fading(80, 250.0).sum()
    shares = np.bincount(train.predicted, minlength=N_CLASSES) / len(train)
    assert balanced.state.id_share[2] == pytest.approx((shares[2] * recent + 5.0) / (recent + 5.0), rel=1e-9)
    assert free.state.id_share[2] > 0.9


def test_a_long_stream_does_not_overflow(train: Any) -> None:
    """The unit of the recent rows grows by 1/(1 - 1/10) a row and starts again: 1e100 after 2 200 rows."""
    rows = network(6000, 5)
    detector = ns.StreamAware("energy", memory=2.0).fit(train)
    detector.stream(rows)
    state = detector.state
    assert state.class_share.sum() == pytest.approx(1.0)
    recent = 0.9 ** np.arange(len(rows))[::-1]
    expected = np.bincount(rows.predicted, recent, N_CLASSES) / recent.sum()
    np.testing.assert_allclose(state.class_share, expected, rtol=1e-9)


def test_scores_of_training_rows_come_from_copies_that_have_not_seen_them(train: Any) -> None:
    class Remembers(ns.Detector):
        name, reads = "remembers", ("features",)

        def _fit(self, chunks: Any) -> None:
            self.known = np.concatenate([chunk.features for chunk in chunks])

        def _score(self, outputs: Any, threads: int) -> Any:
            return np.array([np.abs(self.known - row).sum(axis=1).min() for row in outputs.features])

    detector = Remembers()
    held_out = fit_held_out(detector, train[:201])
    assert (held_out > 0.0).all()
    assert (detector.score(train.features[:201]) == 0.0).all(), "the detector itself knows them all"
    second = second_half(train[:201])
    for half, other in ((second, ~second), (~second, second)):
        expected = Remembers().fit(train[:201][other]).score(train.features[:201][half])
        np.testing.assert_array_equal(held_out[half], expected)


def by_term(term: Any, z: Any, centred: Any, features: Any) -> Any:
    """A term of a sum of formulas, from its own arrays."""
    if isinstance(term, FeatureFormula):
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        white = ((unit if term.unit else features) - term.centre) @ term.whitening
        return ((white[:, None] - term.means) ** 2).sum(axis=2).min(axis=1)
    if isinstance(term, BoundaryFormula):
        own = z.argmax(axis=1)
        below = ((z - z.max(axis=1, keepdims=True)) * term.closeness[own]).sum(axis=1)
        return below / np.linalg.norm(features - term.mean, axis=1)
    scaled = ((centred if term.centred else z) - term.shift) * term.factor
    if term.kind == "max":
        return -term.weight * scaled.max(axis=1)
    if term.kind == "log_sum_exp":
        return -term.weight * np.log(np.exp(scaled).sum(axis=1))
    return term.weight * (np.log(np.sort(np.exp(scaled), axis=1)[:, :-1].sum(axis=1)) - scaled.max(axis=1))


def test_the_formula_is_the_score(train: Any, mixed: Any) -> None:
    rows, _ = mixed
    for base in ("energy", "centred+max_logit", "ensemble"):
        detector = ns.StreamAware(base).fit(train)
        detector.stream(rows)
        formula: Any = formula_of(detector)
        z = rows.logits
        centred = z - z.mean(axis=1, keepdims=True)
        own = z.argmax(axis=1)
        scores = -formula.class_offset[own]
        for weight, term in formula.terms:
            scores += weight * by_term(term, z, centred, rows.features)
        place = formula.ood_position
        x = np.clip((centred - place.mean[own]) * place.inverse_deviation[own], -2.5, 2.5)
        ratio = (x**2 - (x - place.ood_mean[own]) ** 2 * place.inverse_variance[own]).mean(axis=1)
        scores += np.maximum(0.0, place.trust[own] * (ratio - place.log_variance[own]))
        if (shared := formula.shared_position) is not None:
            unit = rows.features / np.linalg.norm(rows.features, axis=1, keepdims=True)
            y = np.clip(unit @ shared.directions - shared.centre, -4.0, 4.0)
            ratio = (y**2 - (y - shared.mean) ** 2 * shared.inverse_variance).mean(axis=1) - shared.log_variance
            scores += shared.trusted * np.clip(4.0 * shared.trust * ratio, 0.0, 8.0)
        np.testing.assert_allclose(scores, detector.score(rows), rtol=1e-9, atol=1e-9)
    assert ns.StreamAware("knn").fit(train)._formula() is None


def test_a_bad_row_in_any_array_leaves_the_state_alone(train: Any, mixed: Any) -> None:
    rows, _ = mixed
    for name in ("stream_aware+mahalanobis", "rtl+energy"):
        detector = ns.make_detector(name).fit(train)
        detector.stream(rows[:100])
        kept = detector._pack()
        for array in ("logits", "features"):
            bad = rows.array(array).copy()
            bad[7, 2] = np.nan
            with pytest.raises(ns.InvalidInput, match="row 7"):
                detector.stream(rows.replace(**{array: bad}))
            assert detector._pack() == kept
            skipped = copy.copy(detector).stream(rows.replace(**{array: bad}), on_invalid="skip")
            assert np.flatnonzero(np.isnan(skipped)).tolist() == [7]


def test_rtl_is_ridge_regression_towards_the_training_fit(train: Any, mixed: Any) -> None:
    rows = mixed[0][:60]
    detector = ns.make_detector("rtl+energy", ridge=2.0).fit(train)
    streamed = detector.stream(rows)

    def with_one(features: Any) -> Any:
        return np.hstack([features, np.ones((len(features), 1))])

    known, targets = with_one(train.features), ns.energy_score(train.logits)
    start = np.linalg.solve(known.T @ known + 2.0 * np.eye(N_FEATURES + 1), known.T @ targets)
    for i in (0, 1, 30, 59):
        seen, scores = with_one(rows.features[: i + 1]), ns.energy_score(rows.logits[: i + 1])
        gram = seen.T @ seen + 2.0 * np.eye(N_FEATURES + 1)
        weights = np.linalg.solve(gram, seen.T @ scores + 2.0 * start)
        assert streamed[i] == pytest.approx(float(seen[-1] @ weights), rel=1e-9)


def test_wrong_uses_are_told() -> None:
    with pytest.raises(ns.InvalidInput, match="one fit cannot serve both"):
        ns.make_detector("stream_aware+temperature_scaling").fit(network(100, 0))
    with pytest.raises(ns.InvalidInput, match="centred passes logits on"):
        ns.make_detector("centred+mahalanobis")
