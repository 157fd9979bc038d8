"""Steps: what they compute, how they are named, saved and refused; and several threads on one detector."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale import _kernels
from normscale.detectors.formula import formula_of

SAMPLE = ns.load_sample()


def test_react_is_its_formula() -> None:
    """Written out by hand: cut the features off, multiply by the last layer, take the free energy."""
    train, test = SAMPLE.train, SAMPLE.ood["photo_patches"]
    assert train.head is not None
    limit = np.percentile(train.features.astype(np.float64), 90.0)
    logits = np.minimum(test.features.astype(np.float64), limit) @ train.head.weight.astype(np.float64).T
    expected = -np.logaddexp.reduce(logits + train.head.bias, axis=1)
    detector = ns.make_detector("react+energy").fit(train)
    assert detector.name == "react"
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-10)
    np.testing.assert_allclose(detector.score(test.features), expected, rtol=1e-10)  # the head was kept by fit


def test_react_without_a_head_says_where_it_comes_from() -> None:
    with pytest.raises(ns.InvalidInput, match=r"react needs the network's last layer .* head=\(weight, bias\)"):
        ns.ReAct().fit(SAMPLE.train.replace(head=None))


@pytest.mark.parametrize("score", ("msp", "max_logit", "energy", "temperature_scaling", "multi_threshold"))
def test_norm_scaling_takes_any_logit_score(kernels: _kernels.Backend, score: str) -> None:
    """The fused kernels and the long way give what scoring the scaled logits gives, frozen and running."""
    train, test = SAMPLE.train, SAMPLE.test
    detector = ns.NormScaling(score=score)
    if ns.make_detector(score).about.fitted_on == "validation":
        with pytest.raises(ns.InvalidInput, match="one fit cannot serve both"):
            detector.fit(train)
        return
    detector.fit(train)
    moments = ns.RunningMoments(8).update(train.logits)
    scorer = ns.make_detector(score).fit(ns.norm_scale(train.logits, moments))
    expected = scorer.score(ns.norm_scale(test.logits, moments))
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-9, atol=1e-9)
    running, prior = [], moments.reweighted(1.0)
    for row in test.logits[:40]:
        prior.update(row[None])
        running.append(scorer.score(ns.norm_scale(row[None], prior))[0])
    np.testing.assert_allclose(detector.stream(test[:40]), running, rtol=1e-9, atol=1e-9)


def test_a_score_with_parameters_is_kept_whole(tmp_path: Path) -> None:
    detector = ns.NormScaling(score=ns.Energy(temperature=3.0), prior_weight=10.0).fit(SAMPLE.train)
    assert detector.name == "norm_scaling+energy"
    assert detector.get_params()["score"] == {"detector": "energy", "parameters": {"temperature": 3.0}}
    detector.stream(SAMPLE.test)
    detector.save(tmp_path / "detector.safetensors")
    loaded = ns.load_detector(tmp_path / "detector.safetensors")
    assert loaded.get_params() == detector.get_params()
    assert np.array_equal(loaded.stream(SAMPLE.test), detector.stream(SAMPLE.test))
    formula = formula_of(detector)
    z = SAMPLE.test.logits.astype(np.float64)
    by_hand = -3.0 * np.logaddexp.reduce((z - formula.shift) * formula.factor, axis=1)  # type: ignore[union-attr]
    np.testing.assert_allclose(detector.score(SAMPLE.test), by_hand, rtol=1e-9)


@pytest.mark.parametrize("name", ("react", "react+msp", "norm_scaling+max_logit", "react+norm_scaling+energy"))
def test_names_lead_back_to_themselves(name: str, tmp_path: Path) -> None:
    detector = ns.make_detector(name).fit(SAMPLE.train)
    assert detector.name == name
    detector.stream(SAMPLE.test)
    detector.save(tmp_path / "detector.safetensors")
    loaded = ns.load_detector(tmp_path / "detector.safetensors")
    assert loaded.name == name
    assert loaded._runs == detector._runs
    assert np.array_equal(loaded.score(SAMPLE.test), detector.score(SAMPLE.test))


def test_parameters_find_their_place_and_mistakes_are_explained() -> None:
    detector = ns.make_detector("react+energy", percentile=80.0, temperature=2.0)
    assert isinstance(detector, ns.ReAct)
    assert (detector.percentile, detector.scorer.get_params()) == (80.0, {"temperature": 2.0})
    with pytest.raises(ns.InvalidInput, match=r"energy is not a step, .* in 'energy\+msp'; steps: .*react"):
        ns.make_detector("energy+msp")
    with pytest.raises(ns.InvalidInput, match="energy has no parameter 'size'"):
        ns.make_detector("react+energy", size=1)
    with pytest.raises(ns.UnknownDetector, match="unknown detector 'energi'"):
        ns.make_detector("react+energi")
    with pytest.raises(ns.InvalidInput, match="its score must read that; mahalanobis reads features"):
        ns.NormScaling(score="mahalanobis")
    with pytest.raises(ns.InvalidInput, match="score must be a detector or a detector's name; got float"):
        ns.NormScaling(score=1.0)  # type: ignore[arg-type]


def test_a_subclass_that_scores_otherwise_has_no_formula() -> None:
    class Shifted(ns.Energy):
        name = "shifted"

        def _score(self, outputs: ns.ModelOutputs, threads: int):  # type: ignore[no-untyped-def]
            return super()._score(outputs, threads) + outputs.logits[:, 0]

    with pytest.raises(ns.InvalidInput, match=r"shifted \(Shifted\) has no formula"):
        formula_of(Shifted())


def test_rows_from_several_threads_are_all_counted() -> None:
    detector = ns.NormScaling().fit(SAMPLE.train)
    rows = np.random.default_rng(0).normal(size=(200, 8))
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(250):
            detector.stream(rows)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert detector.n_streamed_ == 4 * 250 * 200


def test_the_training_moments_are_stored_once(tmp_path: Path) -> None:
    from normscale.state import load_state

    detector = ns.NormScaling().fit(SAMPLE.train)
    detector.save(tmp_path / "detector.safetensors")
    _, tensors = load_state(tmp_path / "detector.safetensors")
    assert sorted(tensors) == [
        "baseline.extremes", "baseline.kept.logits",
        "baseline.of_logits.m2", "baseline.of_logits.mean", "baseline.of_logits.weight", "baseline.predicted",
        "state.moments.m2", "state.moments.mean", "state.moments.weight", "state.training",
    ]  # fmt: skip
    assert detector._baseline is not None
    assert detector.training_ == detector._baseline.moments


def test_parameters_of_a_joined_name_are_not_lost() -> None:
    inner = ns.make_detector("react+norm_scaling", score="energy")
    assert inner.name == "react+norm_scaling+energy"
    with pytest.raises(ns.InvalidInput, match="energy has no parameter 'score'"):
        ns.make_detector("react+energy", score="msp")


@pytest.mark.parametrize("name", ("react+odin", "react+mahalanobis"))
def test_a_score_that_does_not_read_what_the_step_passes_on_is_refused(name: str) -> None:
    with pytest.raises(
        ns.InvalidInput, match=r"react passes logits on, so its score must read that; .* Try react\+energy"
    ):
        ns.make_detector(name)


def test_labels_reach_the_scorer_in_fit_and_trouble_nobody_in_score() -> None:
    on_logits = ns.NormScaling(ns.Mahalanobis(layers="logits", shrinkage="oas")).fit(SAMPLE.train)
    assert on_logits._needs_labels
    assert np.isfinite(on_logits.score(SAMPLE.test)).all()
    foreign = ns.ModelOutputs(features=SAMPLE.test.features, labels=np.arange(len(SAMPLE.test)))
    assert len(ns.ReAct().fit(SAMPLE.train).score(foreign)) == len(foreign)


@pytest.mark.parametrize("score", ({"detector": "energy"}, ns.Energy, None))
def test_what_cannot_be_a_score_is_explained(score: object) -> None:
    with pytest.raises(ns.InvalidInput, match="score must be a detector or a detector's name"):
        ns.ReAct(score)  # type: ignore[arg-type]


def test_scores_while_another_thread_streams_are_of_one_moment() -> None:
    detector = ns.NormScaling().fit(SAMPLE.train)
    row, block = SAMPLE.test.logits[:1], SAMPLE.ood["uniform_noise"].logits
    before = float(detector.score(row)[0])
    detector.stream(block)
    possible = {before, float(detector.score(row)[0])}
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            detector.reset()
            detector.stream(block)

    thread = threading.Thread(target=work)
    thread.start()
    found = {float(detector.score(row)[0]) for _ in range(3000)}
    stop.set()
    thread.join(60)
    assert found <= possible
