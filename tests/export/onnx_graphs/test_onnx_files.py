"""From files to a file: where the logits are, what is kept, what is refused, and that nothing appears half done."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import normscale as ns
from export.onnx_graphs.classifiers import CLASSES, FEATURES, logits, passing, run, training, with_features
from normscale.export.onnx import (
    DetectorSession,
    Exported,
    attach_detector,
    classifier_output,
    export_with_detector,
    exporting,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*far outside of what training showed")  # made-up rows are


def fitted() -> ns.NormScaling:
    return ns.NormScaling().fit(training()).set_threshold(training(300, seed=5), 0.7)


def saved(model: ModelProto, folder: Path, name: str = "classifier.onnx") -> Path:
    onnx.save(model, folder / name)
    return folder / name


def names(items: object) -> list[str]:
    return [item.name for item in items]  # type: ignore[attr-defined]


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}


def test_everything_of_the_model_stays(tmp_path: Path) -> None:
    tail = (helper.make_node("ArgMax", ["logits"], ["label"], axis=1), helper.make_node("Exp", ["logits"], ["odds"]))
    model = passing(tail=tail)
    model.graph.output.append(helper.make_tensor_value_info("label", TensorProto.INT64, ["n", 1]))
    model.producer_name, model.doc_string = "somebody", "a classifier"
    entry = model.metadata_props.add()
    entry.key, entry.value = "author", "me"
    before = model.SerializeToString()
    source = saved(model, tmp_path)
    done = export_with_detector(source, fitted(), tmp_path / "with_detector.onnx")
    assert model.SerializeToString() == before
    assert source.read_bytes() == before
    assert isinstance(done, Exported)
    assert done.added == ("ood_score", "is_ood")
    assert done.agreement.difference < 1e-12
    assert done.agreement.rows == 16
    graph = onnx.load(tmp_path / "with_detector.onnx")
    assert names(graph.graph.output) == ["logits", "label", "ood_score", "is_ood"]
    assert names(graph.graph.input) == ["image"]
    assert graph.graph.output[2].type.tensor_type.shape.dim[0].dim_param == "n"
    assert (graph.ir_version, graph.producer_name, graph.doc_string) == (8, "somebody", "a classifier")
    assert list(graph.graph.node)[: len(model.graph.node)] == list(model.graph.node)
    assert all(node.name.startswith("normscale/") for node in list(graph.graph.node)[len(model.graph.node) :])
    assert metadata(tmp_path / "with_detector.onnx")["author"] == "me"
    assert sorted(os.listdir(tmp_path)) == ["classifier.onnx", "with_detector.onnx"]


def test_the_model_says_where_its_detector_came_from(tmp_path: Path) -> None:
    detector = fitted()
    detector.class_names = tuple("abcde")
    file = tmp_path / "detector.safetensors"
    detector.save(file)
    source = saved(passing(), tmp_path)
    export_with_detector(source, file, tmp_path / "a.onnx")
    export_with_detector(source, detector, tmp_path / "b.onnx")
    export_with_detector(source, detector, tmp_path / "c.onnx", threshold=1.25)
    notes = metadata(tmp_path / "a.onnx")
    assert notes["normscale.version"] == ns.__version__
    assert notes["normscale.detector_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    header = json.loads(notes["normscale.detector"])
    assert (header["detector"], header["widths"], header["class_names"]) == (
        "norm_scaling",
        {"": {"logits": CLASSES}, "scorer.": None},
        list("abcde"),
    )
    assert detector.threshold_ is not None
    assert json.loads(notes["normscale.threshold"])["value"] == detector.threshold_.value
    assert metadata(tmp_path / "b.onnx") == notes
    assert json.loads(metadata(tmp_path / "c.onnx")["normscale.threshold"])["value"] == 1.25
    rows = logits(40, np.float32)
    result = run(onnx.load(tmp_path / "c.onnx"), image=rows)
    assert np.array_equal(result["is_ood"], result["ood_score"] > 1.25)
    assert detector.threshold_.value != 1.25


def test_names_inside_give_way_to_the_models_own() -> None:
    model = passing()
    model.graph.node[0].name = "normscale/Cast_0"
    graph = attach_detector(model, fitted()).model
    every = [node.name for node in graph.graph.node]
    assert len(set(every)) == len(every)
    assert run(graph, image=logits(3, np.float32))["ood_score"].shape == (3,)


@pytest.mark.parametrize("tail_op", ("Softmax", "Log", "Sigmoid"))
def test_the_tensor_before_a_softmax_is_taken_by_itself(tail_op: str, tmp_path: Path) -> None:
    ending = "Softmax" if tail_op == "Log" else tail_op
    nodes = [helper.make_node(ending, ["logits"], ["raw"]), helper.make_node("Identity", ["raw"], ["kept"])]
    tail = (*nodes, helper.make_node("Log" if tail_op == "Log" else "Identity", ["kept"], ["probability"]))
    source = saved(passing(tail=tail, outputs=("probability",)), tmp_path)
    done = export_with_detector(source, fitted(), tmp_path / "with_detector.onnx")
    assert done.reads == ("logits",)
    assert done.agreement.of == "the model on random inputs"
    (note,) = done.notes
    assert f"'probability' (n, 5) comes out of a {ending}" in note
    assert "the detector reads 'logits'" in note
    rows = logits(20, np.float32)
    result = run(onnx.load(tmp_path / "with_detector.onnx"), image=rows)
    assert "logits" not in result
    np.testing.assert_allclose(result["ood_score"], fitted().score(rows), rtol=1e-12)
    probable = export_with_detector(source, fitted(), tmp_path / "asked_for.onnx", logits="probability")
    assert probable.reads == ("probability",)
    (note,) = probable.notes
    assert f"'probability' comes out of a {ending}" in note
    assert "right only where the detector was fitted on such numbers; else pass logits='logits'" in note
    found, opened = classifier_output(source, CLASSES)
    assert found.name == "logits"
    assert isinstance(opened, bytes)
    shown = run(onnx.load_from_string(opened), image=rows)
    assert np.array_equal(shown["logits"], rows)
    plain = saved(passing(), tmp_path)
    found, opened = classifier_output(plain, CLASSES)
    assert (found.name, found.note, found.is_asked_for, opened) == ("logits", "", False, str(plain))


@pytest.mark.parametrize("operator", ("Softplus", "Exp"))
def test_probabilities_made_in_another_way_are_seen_in_what_the_model_says(operator: str, tmp_path: Path) -> None:
    axes = numpy_helper.from_array(np.array([1]), "axes")
    tail = (
        helper.make_node(operator, ["logits"], ["positive"]),
        helper.make_node("ReduceSum", ["positive", "axes"], ["total"], keepdims=1),
        helper.make_node("Div", ["positive", "total"], ["share"]),
    )
    model = passing(tail=tail, outputs=("share",))
    model.graph.initializer.append(axes)
    source = saved(model, tmp_path)
    with pytest.raises(ns.InvalidInput, match=r"'share' holds probabilities, not logits: .*--logits NAME"):
        export_with_detector(source, fitted(), tmp_path / "with_detector.onnx")
    assert not (tmp_path / "with_detector.onnx").exists()
    assert export_with_detector(source, fitted(), tmp_path / "asked_for.onnx", logits="share").reads == ("share",)


def test_two_candidates_need_a_word(tmp_path: Path) -> None:
    tail = (helper.make_node("Neg", ["logits"], ["other"]),)
    model = passing(tail=tail, outputs=("logits", "other"))
    with pytest.raises(
        ns.InvalidInput,
        match=r"several outputs .* 'logits' \(n, 5\), 'other' \(n, 5\); pass logits=NAME \(--logits NAME\)",
    ):
        attach_detector(model, fitted())
    rows = logits(20, np.float32)
    result = run(attach_detector(model, fitted(), logits="other").model, image=rows)
    np.testing.assert_allclose(result["ood_score"], fitted().score(-rows), rtol=1e-12)


def test_probabilities_beside_the_logits_raise_no_doubt() -> None:
    tail = (helper.make_node("Softmax", ["logits"], ["probability"]),)
    found = attach_detector(passing(tail=tail, outputs=("probability", "logits")), fitted()).read["logits"]
    assert found is not None
    assert found.name == "logits"


def test_a_model_that_hides_its_shapes() -> None:
    """No shape declared at all: the only output of real numbers is taken, and its width is found out."""
    model = passing()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = attach_detector(model, fitted())
    rows = logits(8, np.float32)
    np.testing.assert_allclose(run(graph.model, image=rows)["ood_score"], fitted().score(rows), rtol=1e-12)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    (
        (passing(width=7), {}, r"no output of the model has the shape \(n, 5\) .* it has 'logits' \(n, 7\)\."),
        (with_features(), {"logits": "logit"}, "no tensor called 'logit'; .* Did you mean 'logits'"),
        (with_features(), {"logits": "weights"}, "no tensor called 'weights'"),
        (with_features(), {"logits": "hidden"}, r"logits must have the shape \(n, 5\); got 'hidden' \(n, 4\)"),
        (with_features(), {"features": "hidden"}, "norm_scaling reads logits alone; got features='hidden'"),
        (
            attach_detector(passing(), fitted()).model,
            {},
            "already has 'is_ood', 'ood_score', .*carry a detector already",
        ),
        (
            passing(tail=(helper.make_node("Identity", ["logits"], ["detector_mean"]),)),
            {"stateful": True},
            "already has 'detector_mean'",
        ),
    ),
)
def test_mistakes_are_named(model: ModelProto, options: dict[str, str], says: str) -> None:
    with pytest.raises(ns.InvalidInput, match=says):
        attach_detector(model, fitted(), **options)  # type: ignore[arg-type]


def test_thresholds_alone_may_tell_how_many_classes() -> None:
    never_fitted = ns.MSP().set_threshold(training(), per_class=True)
    with pytest.raises(ns.InvalidInput, match=r"the shape \(n, 5\) .* it has 'logits' \(n, 7\)"):
        attach_detector(passing(width=7), never_fitted)
    assert attach_detector(passing(width=7), ns.MSP()).added == ("ood_score",)


def test_mahalanobis_is_told_which_layers_fit() -> None:
    detector = ns.Mahalanobis().fit(training())
    square = with_features()
    square.graph.value_info.append(helper.make_tensor_value_info("weights", TensorProto.FLOAT, [7, FEATURES]))
    with pytest.raises(ns.InvalidInput) as error:
        attach_detector(square, detector)
    assert "weights" not in str(error.value)
    with pytest.raises(
        ns.InvalidInput, match=r"\(n, 4\) of the detector's features.*inside it: 'image' .*'hidden' \(n, 4\); pass f"
    ):
        attach_detector(with_features(), detector)
    model = with_features()
    model.graph.output.append(helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["n", FEATURES]))
    found = attach_detector(model, detector).read["features"]
    assert found is not None
    assert found.name == "hidden"


def test_an_input_of_unknown_shape_is_checked_without_the_model(tmp_path: Path) -> None:
    model = passing()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "pixels"
    source = saved(model, tmp_path)
    for stateful in (False, True):
        found = export_with_detector(source, fitted(), tmp_path / "with_detector.onnx", stateful=stateful).agreement
        assert found.of == "the detector alone on random rows"
        assert found.difference < 1e-12
    features = with_features()
    features.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "pixels"
    maha = ns.Mahalanobis().fit(training()).set_threshold(training(300, seed=5), per_class=True)
    source = saved(features, tmp_path)
    found = export_with_detector(source, maha, tmp_path / "with_detector.onnx", features="hidden").agreement
    assert (found.of, found.rows) == ("the detector alone on random rows", 16)
    head = (np.random.default_rng(0).normal(size=(CLASSES, FEATURES)), np.zeros(CLASSES))
    react = ns.ReAct().fit(training().replace(head=head))
    found = export_with_detector(source, react, tmp_path / "with_detector.onnx", features="hidden").agreement
    assert (found.of, found.rows) == ("the detector alone on random rows", 16)


def test_a_file_that_disagrees_with_numpy_never_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "with_detector.onnx"
    target.write_bytes(b"old")
    source = saved(passing(), tmp_path)
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(ns.NormscaleError, match=r"differ from numpy's by .*; nothing was written"):
        export_with_detector(source, fitted(), target)
    assert target.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["classifier.onnx", "with_detector.onnx"]


@pytest.mark.parametrize("wrong", ("scores", "flags", "nan"))
def test_the_comparison_sees_what_is_wrong(tmp_path: Path, wrong: str) -> None:
    """The right graph beside another detector than the one it was made from."""
    detector = fitted()
    graph = attach_detector(passing(), detector)
    path = saved(graph.model, tmp_path)
    assert exporting.compare(str(path), graph, detector).difference < 1e-12
    other = fitted()
    if wrong == "scores":
        other.stream(np.full((1, CLASSES), 0.01))
    elif wrong == "flags":
        other.threshold_ = ns.Threshold(other.score(np.random.default_rng(0).normal(size=(16, CLASSES))).mean() + 1.0)
    else:
        graph.model.graph.node[0].input[0] = "image"
        nodes = [node for node in graph.model.graph.node if node.op_type == "Exp"]
        nodes[0].op_type = "Log"
        path = saved(graph.model, tmp_path)
    with pytest.raises(ns.NormscaleError, match="differ from numpy"):
        exporting.compare(str(path), graph, other)


def test_the_comparison_sees_a_bad_row_that_was_given_a_score() -> None:
    detector = fitted()
    graph = attach_detector(passing(), detector)
    rows = logits(6)
    rows[2, 1] = np.nan
    result = {"logits": rows, "ood_score": detector.score(rows, on_invalid="skip")}
    assert exporting._agreement(result, graph, detector, "").difference == 0.0
    result["ood_score"][2] = 0.0
    assert exporting._agreement(result, graph, detector, "").difference == np.inf


def external(folder: Path) -> Path:
    folder.mkdir()
    model = passing(width=CLASSES)
    onnx.save(model, folder / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=0)
    assert (folder / "big.data").stat().st_size == CLASSES * CLASSES * 4
    return folder / "big.onnx"


def test_weights_in_files_of_their_own_come_along(tmp_path: Path) -> None:
    source, elsewhere = external(tmp_path / "a"), tmp_path / "b"
    elsewhere.mkdir()
    rows = logits(9, np.float32)
    for target in (source.parent / "with_detector.onnx", elsewhere / "with_detector.onnx", elsewhere / "again.onnx"):
        export_with_detector(source, fitted(), target, stateful=True)
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        state = {item.name: np.ones(item.shape) for item in session.get_inputs()[1:]}
        assert np.array_equal(session.run(["logits"], {"image": rows, **state})[0], rows)
    assert sorted(os.listdir(source.parent)) == ["big.data", "big.onnx", "with_detector.onnx"]
    assert sorted(os.listdir(elsewhere)) == ["again.onnx", "big.data", "with_detector.onnx"]


def test_weights_of_another_model_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, elsewhere = external(tmp_path / "a"), tmp_path / "b"
    elsewhere.mkdir()
    (elsewhere / "big.data").write_bytes(b"precious")
    with pytest.raises(ns.InvalidInput, match=r"big.data' exists and holds other weights"):
        export_with_detector(source, fitted(), elsewhere / "with_detector.onnx")
    assert os.listdir(elsewhere) == ["big.data"]
    (elsewhere / "big.data").unlink()
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)  # found wrong after the weights were copied
    with pytest.raises(ns.NormscaleError, match="differ"):
        export_with_detector(source, fitted(), elsewhere / "with_detector.onnx")
    assert os.listdir(elsewhere) == []


def test_weights_outside_the_models_folder(tmp_path: Path) -> None:
    source = external(tmp_path / "a")
    model = onnx.load(source, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../a/big.data"
    source.write_bytes(model.SerializeToString())
    (tmp_path / "b").mkdir()
    with pytest.raises(ns.InvalidInput, match="outside its own folder"):
        export_with_detector(source, fitted(), tmp_path / "b" / "with_detector.onnx")


@pytest.mark.parametrize(
    ("content", "says"),
    ((None, "no model file at"), (b"\x89PNG\r\n", "not a readable ONNX model"), (b"", "it holds no nodes")),
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ns.FileFormatError, match=says):
        export_with_detector(path, fitted(), tmp_path / "with_detector.onnx")
    assert not (tmp_path / "with_detector.onnx").exists()


def test_an_invalid_model_is_refused_by_the_checker(tmp_path: Path) -> None:
    model = passing()
    model.graph.node.append(helper.make_node("Relu", ["nowhere"], ["lost"]))
    source = saved(model, tmp_path)
    with pytest.raises(ns.FileFormatError, match=r"onnx\.checker refuses"):
        export_with_detector(source, fitted(), tmp_path / "with_detector.onnx")
    with pytest.raises(ns.InvalidInput, match=r"a model file ends in \.onnx; got 'with_detector.pb'"):
        export_with_detector(source, fitted(), "with_detector.pb")


def test_an_opset_of_before_2020_is_refused() -> None:
    with pytest.raises(ns.InvalidInput, match=r"opset 8; a detector needs 11 or later\. Export it again"):
        attach_detector(passing(opset=8), fitted())


@pytest.mark.parametrize("package", ("onnx", "onnxruntime"))
def test_a_missing_package_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    source = saved(passing(), tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ns.MissingExtra, match=rf"need {package} .*pip install 'normscale\[onnx\]'"):
        export_with_detector(source, fitted(), tmp_path / "with_detector.onnx")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_network_of_ours_exported_by_torch(tmp_path: Path) -> None:
    """By torch's older exporter, which takes a tenth of the time; tests/export/torch_modules uses the newer one."""
    torch = pytest.importorskip("torch")
    from normscale.bench.train import resnet20
    from normscale.extraction import extract

    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = resnet20(CLASSES, 2, 1).eval()
    images = torch.randn(60, 1, 8, 8)
    source = tmp_path / "resnet.onnx"
    torch.onnx.export(
        network,
        (images[:2],),
        source,
        dynamo=False,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "n"}, "logits": {0: "n"}},
    )
    outputs = extract(network, images)
    detector = ns.NormScaling().fit(outputs).set_threshold(outputs, 0.7)
    done = export_with_detector(source, detector, tmp_path / "with_detector.onnx", stateful=True)
    assert done.agreement.of == "the model on random inputs"
    result = DetectorSession(tmp_path / "with_detector.onnx").run({"image": images.numpy()})
    np.testing.assert_allclose(result["logits"], outputs.logits, rtol=1e-4, atol=1e-4)
    expected = detector.stream(result["logits"])
    np.testing.assert_allclose(result["ood_score"], expected, rtol=1e-10)
    assert np.array_equal(result["is_ood"], detector.predict(result["logits"], scores=expected))
