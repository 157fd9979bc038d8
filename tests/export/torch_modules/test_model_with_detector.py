"""A model with a detector gives the numpy detector's answers: eager, compiled, exported, stored, and in onnxruntime."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import normscale as ns
from export.exported_detectors import DETECTORS
from normscale._kernels import BlockState
from normscale.detectors.baseline import FAR_SCORE
from normscale.detectors.formula import LogitFormula, MomentFormula, formula_of
from normscale.export.torch import ModelWithDetector, ScoredOutput
from normscale.export.torch.scorers import MomentScorer
from our_detectors import OUR_DETECTORS

torch.set_num_threads(1)

CLASSES = 6


def network(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    first, last = nn.Linear(16, 12), nn.Linear(12, CLASSES)
    with torch.no_grad():
        last.weight *= 6.0
    model = nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Dropout(dropout), last)
    return model.eval().requires_grad_(False)


def images(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, 4, 4, generator=torch.Generator().manual_seed(seed))


def outputs(n: int, seed: int) -> ns.ModelOutputs:
    logits = network()(images(n, seed)).numpy()
    noise = np.random.default_rng(seed).normal(size=logits.shape)
    return taken(logits).replace(labels=(logits + noise).argmax(axis=1))


def taken(logits: np.ndarray) -> ns.ModelOutputs:
    """Rows under every name that a detector of logits may read them by."""
    return ns.ModelOutputs(logits, perturbed_logits=logits)


def fitted(name: str, *, per_class: bool = False) -> ns.Detector:
    detector = copy.copy(DETECTORS[name]).fit(outputs(300, 2))
    detector.stream(taken(outputs(50, 3).logits * 0.6))
    return detector.set_threshold(outputs(200, 4), 0.7, per_class=per_class)


def agrees(result: ScoredOutput, detector: ns.Detector, rtol: float = 1e-12) -> None:
    assert result.is_ood is not None
    rows = result.logits.numpy()
    assert result.ood_score.dtype == torch.float64
    np.testing.assert_allclose(result.ood_score.numpy(), detector.score(rows), rtol=rtol, atol=rtol)
    assert np.array_equal(result.is_ood.numpy(), detector.predict(taken(rows)))


def test_every_detector_of_logits_with_a_formula_is_here() -> None:
    here = {name.split(",")[0] for name in DETECTORS}
    for name in {*OUR_DETECTORS} - here:
        detector = ns.make_detector(name)
        if all(array.endswith("logits") for array in detector.reads):
            with pytest.raises(ns.InvalidInput, match="no formula"):
                formula_of(detector.fit(outputs(300, 2)))


@pytest.mark.parametrize("per_class", (False, True))
@pytest.mark.parametrize("name", DETECTORS)
def test_scores_and_verdicts_are_numpys(name: str, per_class: bool) -> None:
    detector = fitted(name, per_class=per_class)
    with_detector = ModelWithDetector(network(), detector)
    result = with_detector(images(60))
    agrees(result, detector)
    assert torch.equal(result.logits, network()(images(60)))
    assert result.is_ood is not None
    assert 3 < int(result.is_ood.sum()) < 57, "both answers must occur, or nothing was tested"


@pytest.mark.parametrize("name", DETECTORS)
def test_bad_rows_score_nan_and_are_flagged_without_touching_others(name: str) -> None:
    detector = fitted(name, per_class=True)
    rows = outputs(7, 5).logits.copy()
    rows[1, 2], rows[3, 0], rows[5] = math.nan, math.inf, -math.inf
    result = ModelWithDetector(nn.Identity(), detector)(torch.from_numpy(rows))
    expected = detector.score(rows, on_invalid="skip")
    np.testing.assert_allclose(result.ood_score.numpy(), expected, rtol=1e-12, atol=1e-12)
    assert result.is_ood is not None
    assert np.array_equal(result.is_ood.numpy(), detector.predict(taken(rows), scores=expected))


class SomebodysDetector(ns.Detector):
    """Not of this package; it says how it scores, and that is enough."""

    name = "margin_to_the_mean"

    class Fitted(NamedTuple):
        moments: BlockState

    def _fit(self, chunks: Iterator[ns.ModelOutputs]) -> None:
        moments = ns.RunningMoments(CLASSES)
        for chunk in chunks:
            moments.update(chunk.logits)
        self._learn(self.Fitted(moments.state))

    def _start(self) -> BlockState:
        state: BlockState = self.fitted_.moments
        return state

    def _score_at(self, state: BlockState, outputs: ns.ModelOutputs, threads: int) -> np.ndarray:
        moments = ns.RunningMoments.wrap(state)
        scores: np.ndarray = -2.0 * ((outputs.logits - moments.mean) / moments.std).max(axis=1)
        return scores

    def _step(self, state: BlockState, prepared: ns.ModelOutputs, threads: int) -> tuple[np.ndarray, BlockState]:
        moments, scores = ns.RunningMoments.from_state(*state), []
        for row in prepared:
            moments.update(row.logits)
            scores.append(self._score_at(moments.state, row, threads))
        return np.concatenate(scores), moments.state

    def _formula(self) -> LogitFormula:
        moments = ns.RunningMoments.wrap(self._current())
        return LogitFormula("max", moments.mean, 1.0 / moments.std, 2.0)

    def _moment_formula(self) -> MomentFormula:
        return MomentFormula("max", 1.0, 2.0, self._current())


def test_a_detector_of_somebody_else() -> None:
    detector = SomebodysDetector().fit(outputs(300, 2)).set_threshold(outputs(200, 4), 0.7)
    with_detector = ModelWithDetector(network(), detector)
    assert isinstance(with_detector, ModelWithDetector)
    agrees(with_detector(images(60)), detector)
    moving = ModelWithDetector(network(), detector, stateful=True)
    for part in torch.tensor_split(images(30), (1, 13)):
        result = moving(part)
        np.testing.assert_allclose(result.ood_score.numpy(), detector.stream(result.logits.numpy()), rtol=1e-10)


def test_a_subclass_that_scores_otherwise_is_refused() -> None:
    class Other(SomebodysDetector):
        def _score_at(self, state: BlockState, outputs: ns.ModelOutputs, threads: int) -> np.ndarray:
            return np.zeros(len(outputs))

        def _step(self, state: BlockState, prepared: ns.ModelOutputs, threads: int) -> tuple[np.ndarray, BlockState]:
            return np.zeros(len(prepared)), state

    detector = Other().fit(outputs(300, 2))
    with pytest.raises(ns.InvalidInput, match=r"\(Other\) has no formula"):
        ModelWithDetector(network(), detector)
    with pytest.raises(ns.InvalidInput, match=r"stateful needs .*got margin_to_the_mean: .* not just moments"):
        ModelWithDetector(network(), detector, stateful=True)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_halving_the_model_leaves_the_detector_as_it_was(dtype: torch.dtype) -> None:
    for name in ("norm_scaling", "robust_norm_scaling", "multi_threshold"):
        detector = fitted(name, per_class=True)
        with_detector = ModelWithDetector(network(), detector).to(dtype)
        result = with_detector(images(40).to(dtype))
        assert result.logits.dtype == dtype
        assert with_detector.limits is not None
        assert with_detector.limits.dtype == torch.float64
        assert result.is_ood is not None
        rows = result.logits.float().numpy()
        np.testing.assert_allclose(result.ood_score.numpy(), detector.score(rows), rtol=1e-12, atol=1e-12)
        assert np.array_equal(result.is_ood.numpy(), detector.predict(rows))


def test_the_mode_is_the_models_business() -> None:
    model = network(dropout=0.5).train()
    detector = fitted("norm_scaling")
    with_detector = ModelWithDetector(model, detector)
    assert with_detector.training
    first, second = with_detector(images(30)), with_detector(images(30))
    assert not torch.equal(first.logits, second.logits), "dropout is at work"
    for result in (first, second):
        agrees(result, detector)
    assert not with_detector.eval().model.training
    agrees(with_detector(images(30)), detector)


def test_gradients_pass() -> None:
    model = network().requires_grad_(True)
    ModelWithDetector(model, fitted("norm_scaling"))(images(8)).ood_score.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)
    assert any(gradient is not None and bool(gradient.any()) for gradient in gradients)


def test_statistics_move_only_when_asked() -> None:
    frozen = fitted("norm_scaling")
    assert isinstance(frozen, ns.NormScaling)
    moving = copy.copy(frozen)
    still, alive = ModelWithDetector(network(), frozen), ModelWithDetector(network(), moving, stateful=True)
    for part in torch.tensor_split(images(50), (1, 21)):
        agrees(still(part), frozen)
        result = alive(part)
        assert result.is_ood is not None
        expected = moving.stream(result.logits.numpy())
        np.testing.assert_allclose(result.ood_score.numpy(), expected, rtol=1e-10)
        assert np.array_equal(result.is_ood.numpy(), moving.predict(result.logits.numpy(), scores=expected))
    assert isinstance(alive.scorer, MomentScorer)
    np.testing.assert_allclose(alive.scorer.moments.m2, moving.running_.m2, rtol=1e-12)
    bad = images(3)
    bad[1] = math.nan
    result = alive(bad)
    assert result.ood_score.isnan().tolist() == [False, True, False]
    assert result.is_ood is not None
    assert result.is_ood[1]
    moving.stream(result.logits[[0, 2]].numpy())
    np.testing.assert_allclose(alive.scorer.moments.m2, moving.running_.m2, rtol=1e-12)


@pytest.mark.parametrize("name", ("norm_scaling", "robust_norm_scaling", "multi_threshold"))
def test_state_dict_keeps_every_bit(name: str, tmp_path: Path) -> None:
    with_detector = ModelWithDetector(network(), fitted(name, per_class=True))
    save_file(with_detector.state_dict(), tmp_path / "with_detector.safetensors")
    others = copy.copy(DETECTORS[name]).fit(outputs(90, 8))
    others.stream(outputs(20, 7))
    other = ModelWithDetector(network(), others.set_threshold(outputs(90, 9), per_class=True))
    assert not torch.equal(other(images(20)).ood_score, with_detector(images(20)).ood_score)
    other.load_state_dict(load_file(tmp_path / "with_detector.safetensors"))
    for a, b in zip(other(images(20)), with_detector(images(20)), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ("norm_scaling", "robust_norm_scaling"))
def test_survives_torch_export(name: str) -> None:
    detector = fitted(name, per_class=True)
    with_detector = ModelWithDetector(network(), detector)
    shapes = {"inputs": ({0: torch.export.Dim.DYNAMIC},)}
    program = torch.export.export(with_detector, (images(4),), dynamic_shapes=shapes).module()
    for n in (1, 33):
        result = program(images(n))
        assert isinstance(result, ScoredOutput)
        agrees(result, detector)


def test_survives_torch_compile() -> None:
    detector = fitted("norm_scaling", per_class=True)
    torch.compiler.reset()
    result = torch.compile(ModelWithDetector(network(), detector), backend="aot_eager", fullgraph=True)(images(33))
    assert isinstance(result, ScoredOutput)
    agrees(result, detector)


def test_a_program_that_moves_its_statistics() -> None:
    detector = fitted("norm_scaling")
    assert isinstance(detector, ns.NormScaling)
    shapes = {"inputs": ({0: torch.export.Dim.DYNAMIC},)}
    with_detector = ModelWithDetector(network(), detector, stateful=True)
    program = torch.export.export(with_detector, (images(4),), dynamic_shapes=shapes).module()
    for part in torch.tensor_split(images(30), (1, 13)):
        result = program(part)
        np.testing.assert_allclose(result.ood_score.numpy(), detector.stream(result.logits.numpy()), rtol=1e-10)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's exporter about itself
def test_survives_the_way_to_onnx() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    detector = fitted("norm_scaling", per_class=True)
    shapes = {"inputs": ({0: torch.export.Dim.DYNAMIC},)}
    program = torch.onnx.export(
        ModelWithDetector(network(), detector),
        (images(4),),
        dynamo=True,
        verbose=False,
        dynamic_shapes=shapes,
        output_names=["logits", "ood_score", "is_ood"],
    )
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = ["logits", "ood_score", "is_ood"]
    for n in (1, 50):
        answers = session.run(names, {session.get_inputs()[0].name: images(n).numpy()})
        agrees(ScoredOutput(*map(torch.from_numpy, answers)), detector)


def test_moving_statistics_do_not_get_lost_on_the_way_to_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = ModelWithDetector(network(), fitted("norm_scaling"), stateful=True)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(ns.InvalidInput, match=r"an ONNX graph has no memory.*normscale export --stateful"):
        moving(images(4))


class Answering(nn.Module):
    """A model with more to say than its logits."""

    def forward(self, rows: Tensor, *, scale: float = 1.0) -> dict[str, Tensor | list[Tensor]]:
        return {"logits": rows * scale, "hidden": [rows]}


def test_logits_anywhere_in_the_output() -> None:
    rows = torch.from_numpy(outputs(20, 5).logits)
    detector = fitted("energy")
    agrees(ModelWithDetector(Answering(), detector, logits="logits")(rows), detector)
    doubled = ModelWithDetector(Answering(), detector, logits=lambda answer: answer["logits"])(rows, scale=2.0)
    assert torch.equal(doubled.logits, 2.0 * rows)
    agrees(doubled, detector)

    class Pair(nn.Module):
        def forward(self, x: Tensor) -> ScoredOutput:
            return ScoredOutput(x, -x, None)

    agrees(ModelWithDetector(Pair(), detector, logits=1)(rows), detector)
    agrees(ModelWithDetector(Pair(), detector, logits="ood_score")(rows), detector)


def test_without_a_threshold_there_is_no_verdict() -> None:
    detector = ns.MaxLogit()
    result = ModelWithDetector(nn.Identity(), detector)(torch.eye(3))
    assert result.is_ood is None
    assert result.ood_score.tolist() == [-1.0, -1.0, -1.0]


def test_mistakes_are_explained() -> None:
    rows = torch.zeros(2, CLASSES)
    energy = fitted("energy")
    with pytest.raises(ns.InvalidInput, match=r"shape \(n, 6\); the model gave a dict. Pass logits=KEY"):
        ModelWithDetector(Answering(), energy)(rows)
    with pytest.raises(ns.InvalidInput, match="output, a dict, has no 'scores'"):
        ModelWithDetector(Answering(), energy, logits="scores")(rows)
    with pytest.raises(ns.InvalidInput, match=r"shape \(n, 6\); the model gave shape \(2, 7\)"):
        ModelWithDetector(nn.Identity(), energy)(torch.zeros(2, 7))
    never_fitted = ns.MSP().set_threshold(outputs(200, 4), per_class=True)  # only its thresholds know how many classes
    with pytest.raises(ns.InvalidInput, match=r"shape \(n, 6\); the model gave shape \(2, 7\)"):
        ModelWithDetector(nn.Identity(), never_fitted)(torch.zeros(2, 7))
    with pytest.raises(ns.InvalidInput, match=r"stateful needs .*; got energy: it has no running statistics"):
        ModelWithDetector(network(), energy, stateful=True)
    with pytest.raises(ns.InvalidInput, match="got norm_scaling: it has no running statistics"):
        ModelWithDetector(network(), ns.NormScaling(prior_weight=math.inf).fit(outputs(90, 2)), stateful=True)
    with pytest.raises(ns.InvalidInput, match=r"got robust_norm_scaling: .* not just moments of the logits"):
        ModelWithDetector(network(), ns.RobustNormScaling().fit(outputs(90, 2)), stateful=True)
    with pytest.raises(ns.NotFitted, match="NormScaling is not fitted"):
        ModelWithDetector(network(), ns.NormScaling())
    features = np.random.default_rng(0).normal(size=(50, 3))
    train = ns.ModelOutputs(np.eye(2)[np.arange(50) % 2], features, np.arange(50) % 2)
    with pytest.raises(ns.InvalidInput, match="mahalanobis reads features; pass features=KEY, PLACE or a function"):
        ModelWithDetector(network(), ns.Mahalanobis().fit(train))
    assert "stateful=False, threshold=set" in repr(ModelWithDetector(network(), energy))


class WithFeatures(nn.Module):
    """The network above, which also gives what goes into its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()[:-1]
        self.last = nn.Linear(12, CLASSES).requires_grad_(False)
        self.last.load_state_dict(network()[-1].state_dict())

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        features = self.body(image)
        return {"logits": self.last(features), "features": features}


@pytest.mark.parametrize("name", ("default", "unit", "fdbd", "mahalanobis", "react+energy"))
def test_detectors_of_features_and_the_default_with_what_its_stream_taught(name: str) -> None:
    model = WithFeatures()
    head = (model.last.weight.numpy(), model.last.bias.numpy())

    def rows(n: int, seed: int) -> ns.ModelOutputs:
        found = {key: value.numpy() for key, value in model(images(n, seed)).items()}
        return ns.ModelOutputs(**found, labels=found["logits"].argmax(axis=1), head=head)

    detector = ns.fit(rows(300, 2)) if name == "default" else ns.make_detector(name).fit(rows(300, 2))
    detector.stream(rows(60, 3))
    detector.set_threshold(rows(200, 4), 0.7, per_class=True)
    with_detector = ModelWithDetector(model, detector, logits="logits", features="features")
    expected, test = detector.score(rows(60, 1)), rows(60, 1)
    for compiled in (with_detector, torch.export.export(with_detector, (images(60),)).module()):
        result = compiled(images(60))
        np.testing.assert_allclose(result.ood_score.numpy(), expected, rtol=1e-9, atol=1e-9)
        assert np.array_equal(result.is_ood.numpy(), detector.predict(test, scores=expected))
        assert 3 < int(result.is_ood.sum()) < 57, "both answers must occur, or nothing was tested"
    bad = (torch.full((1, CLASSES), 1.0), torch.full((1, 12), math.nan))
    assert ModelWithDetector(nn.Identity(), detector, logits=0, features=1)(bad).ood_score.isnan().all()
    with pytest.raises(
        ns.InvalidInput, match=r"the features must be a tensor of shape \(n, 12\); the model gave shape"
    ):
        ModelWithDetector(model, detector, logits="logits", features="logits")(images(3))


@pytest.mark.parametrize("stateful", [False, True])
def test_rows_far_outside_of_training_get_the_highest_score(stateful: bool) -> None:
    train = np.random.default_rng(0).normal(size=(60, 3))
    rows = np.array([[1e6, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, -1e6, 0.0], [0.0, 1.0, 0.0]])
    detector = ns.NormScaling().fit(train).set_threshold(train, keep=1.0)
    found = ModelWithDetector(nn.Identity(), detector, stateful=stateful)(torch.tensor(rows))
    with pytest.warns(ns.NumericalWarning, match="2 of 4 rows"):
        expected = detector.stream(rows) if stateful else detector.score(rows)
    np.testing.assert_allclose(found.ood_score.numpy(), expected, rtol=1e-9)
    assert (found.ood_score.numpy() == FAR_SCORE).tolist() == found.is_ood.tolist() == [True, False, True, False]
