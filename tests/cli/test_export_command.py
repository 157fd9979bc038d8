"""``normscale export`` as a person starts it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale.cli import main
from program import normscale

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

Say = Callable[..., tuple[int, str]]


@pytest.fixture(name="say")
def _say(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """The same program in this process, for the many small questions: exit code and what it said."""

    def say(*arguments: object) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["normscale", *map(str, arguments)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), " ".join(capsys.readouterr().err.split())

    return say


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last layer of the sample's network as a model, and two detectors."""
    folder = tmp_path_factory.mktemp("export")
    sample = ns.load_sample()
    weights = np.linalg.lstsq(sample.train.features, sample.train.logits, rcond=None)[0].astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> head (float[n, 32] features) => (float[n, 8] logits) '
        "{ logits = MatMul(features, weights) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "weights"))
    onnx.save(model, folder / "net.onnx")
    ns.NormScaling().fit(sample.train).set_threshold(sample.validation).save(folder / "detector.safetensors")
    ns.Energy().save(folder / "energy.safetensors")
    return folder


def test_a_model_with_its_detector_is_written_and_checked(folder: Path, say: Say) -> None:
    asked = ("export", "--model", "net.onnx", "--detector", "detector.safetensors")
    done = normscale(*asked, "-o", "with_detector.onnx", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert (
        "with_detector.onnx: added ood_score, is_ood (norm_scaling of 'logits'); largest difference from numpy"
        in done.stderr
    )
    assert "the model on random inputs, 16 rows" in done.stderr
    code, said = say(*asked, "-o", "stateful.onnx", "--stateful")
    assert code == 0
    assert "detector_weight_next, detector_mean_next, detector_m2_next" in said

    from normscale.export.onnx import DetectorSession

    test, detector = ns.load_sample().test, ns.load_detector(folder / "detector.safetensors")
    for name, score in (("with_detector", detector.score), ("stateful", detector.stream)):
        result = DetectorSession(folder / f"{name}.onnx").run({"features": np.asarray(test.features)})
        expected = score(result["logits"])
        np.testing.assert_allclose(result["ood_score"], expected, rtol=1e-10, atol=1e-10)
        assert np.array_equal(result["is_ood"], detector.predict(result["logits"], scores=expected))


def test_a_detector_without_a_threshold_says_so(say: Say) -> None:
    asked = ("export", "--model", "net.onnx", "--detector", "energy.safetensors", "-o", "energy.onnx")
    code, said = say(*asked)
    assert code == 0
    assert "added ood_score (energy" in said
    assert "no is_ood: the detector has no threshold; pass --threshold X" in said
    assert "added ood_score, is_ood" in say(*asked, "--threshold", "-3.5")[1]


@pytest.mark.parametrize(
    ("options", "says"),
    (
        (("--model", "none.onnx"), "no model file at 'none.onnx'"),
        (("--model", "detector.safetensors"), "'detector.safetensors' is not a readable ONNX model"),
        (("--detector", "net.onnx"), "'net.onnx' is not a readable safetensors file"),
        (("--detector", "energy.safetensors", "--stateful"), "got energy: it has no running statistics"),
        (("--logits", "logit"), "Did you mean 'logits'?"),
        (("--features", "features"), "norm_scaling reads logits alone"),
        (("--threshold", "nan"), "threshold must be a number; got NaN"),
        (("-o", "no/such/folder/x.onnx"), "no/such/folder"),
    ),
)
def test_mistakes_are_answered_with_a_sentence(folder: Path, say: Say, options: tuple[str, ...], says: str) -> None:
    before = sorted(os.listdir(folder))
    asked = ("export", "--model", "net.onnx", "--detector", "detector.safetensors", "-o", "wrong.onnx", *options)
    code, said = say(*asked)
    assert code == 1
    assert says in said
    assert sorted(os.listdir(folder)) == before


def test_help_has_an_example(folder: Path) -> None:
    done = normscale("export", "--help", cwd=folder)
    assert done.returncode == 0
    assert "normscale export --model" in " ".join(done.stdout.split("Example:")[1].split())
