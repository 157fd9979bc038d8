"""Inside a model every detector gives numpy's scores and verdicts: any precision, any opset, any row."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import normscale as ns
from export.exported_detectors import DETECTORS
from export.onnx_graphs.classifiers import CLASSES, logits, passing, run, taken, training, with_features
from normscale.detectors.baseline import FAR_SCORE
from normscale.detectors.formula import LogitFormula, SumFormula, formula_of, limits_of, plain_formula
from normscale.export.onnx import attach_detector, initial_state
from our_detectors import OUR_DETECTORS

SIMPLE = [name for name in DETECTORS if name in ns.list_detectors()]

pytestmark = pytest.mark.filterwarnings("ignore:.*far outside of what training showed")  # made-up rows are


def fitted(name: str, *, streamed: bool = True) -> ns.Detector:
    detector = DETECTORS[name].fit(training())
    if streamed:  # so that running statistics are not those of the training
        detector.stream(taken(logits(60, seed=9) - 2.0))
    return detector


def same(got: np.ndarray, expected: np.ndarray, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)


def test_every_detector_with_a_formula_is_here() -> None:
    for name in {*OUR_DETECTORS} - {*SIMPLE, "mahalanobis", "unit"}:
        detector = ns.make_detector(name)
        if set(detector.reads) <= set(training().names) and not detector._needs_head:
            with pytest.raises(ns.InvalidInput, match="no formula"):
                formula_of(detector.fit(training()))


@pytest.mark.parametrize(
    ("dtype", "per_class"), ((np.float16, True), (np.float32, False), (np.float32, True), (np.float64, False))
)
@pytest.mark.parametrize("name", DETECTORS)
def test_scores_and_verdicts_are_numpys(name: str, dtype: type[np.generic], per_class: bool) -> None:
    detector = fitted(name).set_threshold(training(300, seed=5), 0.7, per_class=per_class)
    graph = attach_detector(passing(dtype), detector)
    onnx.checker.check_model(graph.model, full_check=True)
    rows = logits(80, dtype)
    result = run(graph.model, image=rows)
    assert np.array_equal(result["logits"], rows)
    assert result["ood_score"].dtype == np.float64
    same(result["ood_score"], detector.score(rows))
    assert np.array_equal(result["is_ood"], detector.predict(taken(rows)))
    assert 5 < result["is_ood"].sum() < 75, "both answers must occur, or nothing was tested"


@pytest.mark.parametrize("opset", (11, 13, 18, 21))
@pytest.mark.parametrize("name", ("norm_scaling", "robust_norm_scaling"))
def test_any_opset(name: str, opset: int) -> None:
    """Below 11 the model is raised; reductions take their axes differently from 13 and from 18 on."""
    detector = fitted(name).set_threshold(training(300, seed=5), 0.7, per_class=True)
    model = passing(opset=opset, ir_version=3 if opset == 11 else 8)
    stateful = name == "norm_scaling"
    graph = attach_detector(model, detector, stateful=stateful).model
    onnx.checker.check_model(graph, full_check=True)
    assert {entry.version for entry in graph.opset_import} == {opset}
    assert graph.ir_version == model.ir_version
    rows = logits(30, np.float32)
    result = run(graph, image=rows, **(initial_state(graph) if stateful else {}))
    expected = detector.stream(rows) if stateful else detector.score(rows)
    same(result["ood_score"], expected)
    assert np.array_equal(result["is_ood"], detector.predict(taken(rows), scores=expected))


@pytest.mark.parametrize("score", ("msp", "max_logit", "energy"))
def test_large_logits_with_tiny_deviations(score: str) -> None:
    rng = np.random.default_rng(0)
    train = 1e4 + 1e-3 * rng.normal(size=(200, CLASSES))
    detector = ns.NormScaling(score).fit(train)
    rows = np.concatenate([1e4 + 1e-3 * rng.normal(size=(20, CLASSES)), 1e4 * rng.normal(size=(20, CLASSES))])
    same(
        run(attach_detector(passing(np.float64), detector).model, image=rows)["ood_score"],
        detector.score(rows),
        rtol=1e-11,
    )


@pytest.mark.parametrize("name", ("msp", "energy", "norm_scaling"))
def test_confident_rows_do_not_saturate(name: str) -> None:
    detector = fitted(name)
    detector._marks_far_rows = False
    rows = np.diag([30.0, 60.0, 800.0, 1e4, 1e6])
    got = run(attach_detector(passing(np.float64), detector).model, image=rows)["ood_score"]
    same(got, detector.score(rows))
    assert len(set(got.tolist())) == len(rows)


def test_a_class_that_never_varied_tells_nothing() -> None:
    train = training().logits.copy()
    train[:, 2] = 0.1
    detector = ns.NormScaling().fit(train)
    rows = logits(30)
    got = run(attach_detector(passing(np.float64), detector).model, image=rows)["ood_score"]
    same(got, detector.score(rows))
    rows[:, 2] = 50.0
    same(run(attach_detector(passing(np.float64), detector).model, image=rows)["ood_score"], detector.score(rows))


@pytest.mark.parametrize("name", SIMPLE)
def test_bad_rows_score_nan_and_are_flagged_without_touching_others(name: str) -> None:
    detector = fitted(name).set_threshold(training(300, seed=5), per_class=True)
    rows = logits(9, np.float32)
    rows[1, 2], rows[4, 0], rows[7] = np.nan, np.inf, -np.inf
    result = run(attach_detector(passing(), detector).model, image=rows)
    expected = detector.score(rows, on_invalid="skip")
    assert np.isnan(expected).sum() == 3
    same(result["ood_score"], expected)
    assert np.array_equal(result["is_ood"], detector.predict(taken(rows), scores=expected))


@pytest.mark.parametrize("name", SIMPLE)
def test_equal_logits_are_broken_as_numpy_does(name: str) -> None:
    detector = fitted(name).set_threshold(training(300, seed=5), 0.7, per_class=True)
    rows = np.random.default_rng(0).integers(-1, 2, (60, CLASSES)).astype(np.float32) * 4
    result = run(attach_detector(passing(), detector).model, image=rows)
    same(result["ood_score"], detector.score(rows))
    assert np.array_equal(result["is_ood"], detector.predict(taken(rows)))


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("per_class", (False, True))
def test_the_row_the_threshold_was_set_on_is_accepted(name: str, per_class: bool) -> None:
    """A threshold is the score of some row; there the last bit decides, and it may come out differently."""
    validation = training(200, seed=5)
    detector = fitted(name, streamed=False).set_threshold(validation, 0.5, per_class=per_class)
    result = run(attach_detector(passing(np.float64), detector).model, image=validation.logits)
    assert np.array_equal(result["is_ood"], detector.predict(validation))


@pytest.mark.parametrize("limit", (-math.inf, math.inf))
def test_thresholds_that_accept_all_or_nothing(limit: float) -> None:
    detector = ns.MSP()
    detector.threshold_ = ns.Threshold(limit)
    rows = logits(5, np.float32)
    assert np.array_equal(
        run(attach_detector(passing(), detector).model, image=rows)["is_ood"], detector.predict(taken(rows))
    )


@pytest.mark.parametrize(("name", "per_class"), (("mahalanobis", False), ("mahalanobis", True), ("unit", True)))
def test_mahalanobis_reads_a_layer_inside(name: str, per_class: bool) -> None:
    detector = ns.make_detector(name).fit(training()).set_threshold(training(300, seed=5), 0.7, per_class=per_class)
    model = with_features()
    graph = attach_detector(model, detector, features="hidden").model
    assert [item.name for item in graph.graph.output] == ["logits", "ood_score", "is_ood"]
    onnx.checker.check_model(graph, full_check=True)
    image = np.random.default_rng(0).normal(3.0, 1.0, (50, 4)).astype(np.float32)
    image[3, 1] = np.inf
    result = run(graph, image=image)
    outputs = ns.ModelOutputs(result["logits"], np.maximum(image, 0.0))
    expected = detector.score(outputs, on_invalid="skip")
    same(result["ood_score"], expected, rtol=1e-10)
    assert np.array_equal(result["is_ood"], detector.predict(outputs, scores=expected))
    assert 5 < result["is_ood"].sum() < 40


@pytest.mark.parametrize("score", ("energy", "msp", "max_logit", "norm_scaling", "multi_threshold"))
@pytest.mark.parametrize("per_class", (False, True))
def test_a_step_that_cuts_features_off_before_the_last_layer(score: str, per_class: bool) -> None:
    model = with_features()
    weights = onnx.numpy_helper.to_array(model.graph.initializer[0])
    rng = np.random.default_rng(0)

    def outputs(image: np.ndarray, labels: bool = False) -> ns.ModelOutputs:
        hidden = np.maximum(image, 0.0)
        logits = np.einsum("nd,dc->nc", hidden, weights)  # on some processors BLAS calls finite numbers invalid
        known = logits.argmax(axis=1) if labels else None
        return ns.ModelOutputs(logits, hidden, known, head=(weights.T, np.zeros(CLASSES)))

    train, validation = (outputs(rng.normal(2.0, 1.0, (300, 4)).astype(np.float32), labels=True) for _ in range(2))
    detector = ns.ReAct(score, percentile=70.0).fit(train).set_threshold(validation, 0.5, per_class=per_class)
    graph = attach_detector(model, detector, features="hidden").model
    onnx.checker.check_model(graph, full_check=True)
    image = rng.normal(2.0, 2.0, (60, 4)).astype(np.float32)
    image[3, 1] = np.inf
    result = run(graph, image=image)
    expected = detector.score(outputs(image), on_invalid="skip")
    assert np.isnan(expected[3])
    same(result["ood_score"], expected, rtol=1e-10)
    assert np.array_equal(result["is_ood"], detector.predict(outputs(image), scores=expected))
    assert 5 < result["is_ood"].sum() < 55


@pytest.mark.parametrize(("name", "per_class"), (("default", True), ("default", False), ("fdbd", False)))
def test_the_default_reads_logits_and_a_layer_inside(name: str, per_class: bool) -> None:
    """All four members and what the stream has taught, in one graph."""
    model = with_features()
    weights = onnx.numpy_helper.to_array(model.graph.initializer[0])

    def outputs(n: int, seed: int) -> tuple[np.ndarray, ns.ModelOutputs]:
        image = np.random.default_rng(seed).normal(1.0, 2.0, (n, 4)).astype(np.float32)
        hidden = np.maximum(image, 0.0)
        logits = np.einsum("nd,dc->nc", hidden, weights)
        return image, ns.ModelOutputs(logits, hidden, head=(weights.T, np.zeros(CLASSES)))

    train, validation = outputs(400, 0)[1], outputs(200, 1)[1]
    detector = ns.fit(train) if name == "default" else ns.make_detector(name).fit(train)
    detector.stream(outputs(80, 2)[1])
    detector.set_threshold(validation, 0.7, per_class=per_class)
    graph = attach_detector(model, detector, features="hidden").model
    onnx.checker.check_model(graph, full_check=True)
    image, rows = outputs(60, 3)
    result = run(graph, image=image)
    expected = detector.score(ns.ModelOutputs(result["logits"], rows.features))
    same(result["ood_score"], expected, rtol=1e-9)
    assert np.array_equal(result["is_ood"], detector.predict(rows, scores=expected))
    assert 5 < result["is_ood"].sum() < 55


def test_features_too_large_to_be_squared_are_not_taken_for_normal() -> None:
    detector = ns.Mahalanobis().fit(training()).set_threshold(training(300, seed=5))
    graph = attach_detector(with_features(np.float64), detector, features="hidden").model
    assert run(graph, image=np.full((1, 4), 1e300))["is_ood"].all()


def test_one_row_no_row_and_a_fixed_batch() -> None:
    detector = fitted("norm_scaling").set_threshold(training(300, seed=5))
    graph = attach_detector(passing(), detector).model
    rows = logits(7, np.float32)
    whole = run(graph, image=rows)
    for i in range(7):
        assert run(graph, image=rows[i : i + 1])["ood_score"] == pytest.approx(whole["ood_score"][i], rel=1e-13)
    assert run(graph, image=rows[:0])["is_ood"].shape == (0,)
    fixed = attach_detector(passing(batch=7), detector).model
    assert [d.dim_value for d in fixed.graph.output[1].type.tensor_type.shape.dim] == [7]
    assert np.array_equal(run(fixed, image=rows)["ood_score"], whole["ood_score"])


def test_bfloat16_logits() -> None:
    """onnxruntime has no such arrays in Python, so the model itself makes and unmakes them."""
    detector = fitted("norm_scaling").set_threshold(training(300, seed=5), 0.7)
    rows = logits(40, np.float32)
    model = passing(
        tail=(
            helper.make_node("Cast", ["logits"], ["short"], to=TensorProto.BFLOAT16),
            helper.make_node("Cast", ["short"], ["seen"], to=TensorProto.FLOAT),
        ),
        outputs=("logits", "seen"),
    )
    result = run(attach_detector(model, detector, logits="short").model, image=rows)
    assert not np.array_equal(result["seen"], rows)
    same(result["ood_score"], detector.score(result["seen"]))


@pytest.mark.parametrize("base", (ns.MSP, ns.RobustNormScaling, ns.Mahalanobis))
def test_what_scores_otherwise_than_its_formula_is_refused(base: type[ns.Detector]) -> None:
    def score(self: ns.Detector, outputs: ns.ModelOutputs, threads: int) -> np.ndarray:
        return np.zeros(len(outputs))

    mine = type("Mine", (base,), {"name": "mine", "_score": score})().fit(training())
    with pytest.raises(ns.InvalidInput, match=r"mine \(Mine\) has no formula .* Score its outputs in Python"):
        attach_detector(passing(), mine)


def test_a_formula_is_all_that_a_detector_of_somebody_else_needs() -> None:
    class Spread(ns.Detector):
        name = "spread"

        def _fit(self, chunks: Iterator[ns.ModelOutputs]) -> None:
            self.centre = np.concatenate([chunk.logits for chunk in chunks]).mean(axis=0)

        def _score(self, outputs: ns.ModelOutputs, threads: int) -> np.ndarray:
            if not np.isfinite(outputs.logits).all():
                raise ns.InvalidInput("bad row")
            shifted = outputs.logits.astype(np.float64) - self.centre
            scores: np.ndarray = -3.0 * shifted.max(axis=1) - 0.5 * outputs.logits.max(axis=1)
            return scores

        def _formula(self) -> SumFormula:
            terms = (1.0, LogitFormula("max", self.centre, np.ones(1), 3.0)), (0.5, plain_formula("max"))
            return SumFormula(terms, np.zeros(1))

    detector = Spread().fit(training()).set_threshold(training(300, seed=5), 0.7, per_class=True)
    rows = logits(50, np.float32)
    rows[4, 2] = np.nan
    result = run(attach_detector(passing(), detector).model, image=rows)
    expected = detector.score(rows, on_invalid="skip")
    same(result["ood_score"], expected)
    assert np.array_equal(result["is_ood"], detector.predict(rows, scores=expected))


def test_a_formula_of_a_layer_reads_the_tensor_named_as_features() -> None:
    train = training()
    detector = ns.Mahalanobis(layers=["stage1"]).fit(ns.ModelOutputs(stage1=train.features, labels=train.labels))
    graph = attach_detector(with_features(), detector, features="hidden")
    image = np.random.default_rng(0).normal(3.0, 1.0, (50, 4)).astype(np.float32)
    same(run(graph.model, image=image)["ood_score"], detector.score(np.maximum(image, 0.0)), rtol=1e-10)


def test_what_is_not_fitted_is_refused() -> None:
    with pytest.raises(ns.NotFitted, match="NormScaling is not fitted"):
        attach_detector(passing(), ns.NormScaling())


def test_the_slack_of_a_threshold_is_a_rounding_error() -> None:
    detector = fitted("multi_threshold")
    limits = limits_of(detector)
    assert limits is not None
    assert 0.0 < limits[0] < 1e-10
    detector.fit(1e6 * logits(50))  # its score is a difference; what rounds is the size of the log-odds, not of 0
    larger = limits_of(detector)
    assert larger is not None
    assert 1e-7 < larger[0] < 1e-4
    detector.threshold_ = None
    assert limits_of(detector) is None
    assert "is_ood" not in attach_detector(passing(), detector).added
    assert formula_of(detector).terms[0][1].kind == "log_odds"  # type: ignore[union-attr]


@pytest.mark.parametrize("stateful", [False, True])
def test_rows_far_outside_of_training_get_the_highest_score(stateful: bool) -> None:
    rows = training().logits[:4].astype(np.float32)
    rows[0, 0], rows[2, 2] = 1e6, -1e6
    detector = ns.NormScaling().fit(training()).set_threshold(training(), keep=1.0)
    graph = attach_detector(passing(), detector, stateful=stateful).model
    found = run(graph, image=rows, **(initial_state(graph) if stateful else {}))
    with pytest.warns(ns.NumericalWarning, match="2 of 4 rows"):
        expected = detector.stream(rows) if stateful else detector.score(rows)
    same(found["ood_score"], expected)
    assert (found["ood_score"] == FAR_SCORE).tolist() == found["is_ood"].tolist() == [True, False, True, False]
