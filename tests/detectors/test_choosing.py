"""The default detector: by the arrays alone, and the same everywhere."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from normscale.cli import app
from normscale.detectors.choosing import default_detector


@pytest.fixture(name="train", scope="module")
def _train() -> ns.ModelOutputs:
    return ns.load_sample().train


def members(*arrays: str, head: bool) -> list[str]:
    return [one.name for one in default_detector(arrays, head=head).scorer.members_]  # type: ignore[attr-defined]


def test_the_arrays_decide() -> None:
    assert members("logits", "features", head=True) == ["centred+present_classes", "centred", "unit", "fdbd"]
    assert members("logits", "features", head=False) == ["centred+present_classes", "centred", "unit"]
    assert members("logits", head=True) == ["centred+present_classes", "centred"]
    assert default_detector(["logits"], head=True).name == "robust_norm_scaling"
    assert default_detector(["features"], head=True).name == "knn"


def test_no_default_needs_labels_or_all_rows_at_once(train: ns.ModelOutputs) -> None:
    for arrays in (("logits",), ("logits", "features")):
        for head in (False, True):
            detector = default_detector(arrays, head=head)
            assert not detector._needs_labels
            assert not detector._why_all_rows()
    unlabelled = train.replace(labels=np.full(len(train), -1))
    assert np.isfinite(ns.fit(unlabelled).score(train)).all()


@pytest.mark.parametrize("arrays", (None, "logits"))
def test_on_the_command_line_in_python_and_in_the_file(arrays: str | None, tmp_path: Path) -> None:
    sample, path = ns.load_sample(), tmp_path / "d.safetensors"
    options = [] if arrays is None else ["--arrays", arrays]
    fit = CliRunner().invoke(app, ["fit", "sample:train", "-o", str(path), *options])
    assert fit.exit_code == 0, fit.output
    name, reason = (
        ("stream_aware+ensemble", "there are logits, features and the head")
        if arrays is None
        else ("robust_norm_scaling", "there are logits alone")
    )
    assert f"{name} is the default: {reason}" in fit.output
    detector = ns.load_detector(path)
    expected = ns.fit(sample.train if arrays is None else sample.train.logits)
    assert (
        (detector.name, detector.about.reason)
        == (name, f"the default: {reason}")
        == (expected.name, expected.about.reason)
    )
    np.testing.assert_allclose(detector.stream(sample.test), expected.stream(sample.test), rtol=1e-9)
    auto = CliRunner().invoke(app, ["fit", "sample:train", "-o", str(path), "-d", "auto", *options])
    assert auto.exit_code == 0, auto.output
    assert ns.load_detector(path)._pack() == detector.reset()._pack()


def test_the_same_word_in_a_comparison_from_python() -> None:
    sample = ns.load_sample()
    noise = {"noise": sample.ood["uniform_noise"]}
    rows = ns.compare(sample.test, noise, train=ns.ModelOutputs(sample.train.logits), detectors=["auto"])
    assert {row.method for row in rows} == {"robust_norm_scaling"}
    with pytest.raises(ns.InvalidInput, match="auto chooses a detector for the training outputs; pass train="):
        ns.compare(sample.test, noise, detectors=["auto"])
    assert set(inspect.signature(ns.compare).parameters) == {
        "id_test", "ood_sets", "train", "validation", "detectors", "seed", "shifted"
    }  # fmt: skip


def test_in_a_comparison(tmp_path: Path) -> None:
    both = ["eval", "--id", "sample:test", "--ood", "sample:unseen_digits", "-d", "auto", "-d", "msp"]
    found = CliRunner().invoke(app, [*both, "--train", "sample:train", "-f", "csv"])
    assert found.exit_code == 0, found.output
    assert "stream_aware+ensemble" in found.output
    refused = CliRunner().invoke(app, both)
    assert refused.exit_code == 1
    assert "pass train=... (--train)" in str(refused.output) + str(refused.exception)
