"""The choice of a detector looks at in-distribution rows alone."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from normscale.cli import app
from normscale.detectors.choosing import choose_detector


@pytest.fixture(name="train", scope="module")
def _train() -> ns.ModelOutputs:
    return ns.load_sample().train


def members(outputs: ns.ModelOutputs) -> list[str]:
    return [one.name for one in choose_detector(outputs).detector.scorer.members_]  # type: ignore[attr-defined]


def test_the_arrays_decide(train: ns.ModelOutputs) -> None:
    assert members(train) == ["present_classes", "centred", "knn", "vim"]
    assert members(ns.ModelOutputs(train.logits, train.features)) == ["present_classes", "centred", "knn"]
    assert choose_detector(ns.ModelOutputs(train.logits)).detector.name == "robust_norm_scaling"
    assert choose_detector(ns.ModelOutputs(features=train.features)).detector.name == "knn"


def test_logits_of_a_classifier_that_is_mostly_wrong_are_left_out(train: ns.ModelOutputs) -> None:
    wrong = np.where(np.arange(len(train)) % 10 < 6, (train.predicted + 1) % 8, train.predicted)
    choice = choose_detector(ns.ModelOutputs(train.logits, train.features, labels=wrong, head=train.head))
    assert [one.name for one in choice.detector.scorer.members_] == ["knn", "vim"]  # type: ignore[attr-defined]
    assert "wrong on 60 % of the rows" in choice.reason
    unknown = np.full(len(train), -1)
    assert len(members(ns.ModelOutputs(train.logits, train.features, labels=unknown, head=train.head))) == 4


def test_on_the_command_line_and_in_the_file(tmp_path: Path, train: ns.ModelOutputs) -> None:
    path = tmp_path / "d.safetensors"
    fit = CliRunner().invoke(
        app, ["fit", "sample:train", "-o", str(path), "-d", "auto", "--threshold-on", "sample:validation"]
    )
    assert fit.exit_code == 0, fit.output
    assert "auto: stream_aware+ensemble, because there are logits, features and the head" in fit.output
    detector = ns.load_detector(path)
    assert detector.choice == "chosen by auto: there are logits, features and the head"
    expected = choose_detector(train).detector.fit(train)
    sample = ns.load_sample()
    np.testing.assert_allclose(
        detector.stream(sample.test),
        expected.set_threshold(sample.validation).stream(sample.test),
        rtol=1e-9,
    )
    assert CliRunner().invoke(app, ["score", str(path), "sample:test", "--stream"]).exit_code == 0
    plain = CliRunner().invoke(app, ["fit", "sample:train", "-o", str(path)])
    assert "to have one chosen by the arrays of the rows: fit -d auto" in plain.output
    assert ns.load_detector(path).choice is None


def test_python_has_the_same_default_and_the_same_word() -> None:
    sample = ns.load_sample()
    detector = ns.fit(sample.train)
    assert (detector.name, detector.choice) == (
        "stream_aware+ensemble",
        "chosen by auto: there are logits, features and the head",
    )
    assert ns.fit(sample.train.logits).name == "robust_norm_scaling"
    noise = {"noise": sample.ood["uniform_noise"]}
    rows = ns.compare(sample.test, noise, train=ns.ModelOutputs(sample.train.logits), detectors=["auto"])
    assert {row.method for row in rows} == {"robust_norm_scaling"}
    with pytest.raises(ns.InvalidInput, match="auto chooses a detector for the training outputs; pass train="):
        ns.compare(sample.test, noise, detectors=["auto"])
    assert set(inspect.signature(ns.compare).parameters) == {
        "id_test", "ood_sets", "train", "validation", "detectors", "seed"
    }  # fmt: skip


def test_the_page_says_what_was_measured() -> None:
    root = Path(__file__).parents[2] / "docs"
    record = json.loads((root / "results" / "choice.json").read_text())
    table = {line.split(" | ")[0].strip("| *"): line for line in (root / "choosing.md").read_text().splitlines()}
    found = {
        "auto": [entry["auto"] for entry in record.values()],
        "always ensemble": [entry["candidates"]["ensemble"] for entry in record.values()],
        "auto with logits alone": [entry["auto_logits_alone"] for entry in record.values()],
    }
    for title, numbers in found.items():
        measured = [one["frozen"] for one in numbers]
        shown = [float(cell) for cell in table[title].strip("| ").split(" | ")[1:]]
        np.testing.assert_allclose(shown[: len(measured)], measured, atol=6e-4)
        np.testing.assert_allclose(shown[len(measured)], np.mean(measured), atol=6e-4)


def test_in_a_comparison(tmp_path: Path) -> None:
    both = ["eval", "--id", "sample:test", "--ood", "sample:unseen_digits", "-d", "auto", "-d", "msp"]
    found = CliRunner().invoke(app, [*both, "--train", "sample:train", "-f", "csv"])
    assert found.exit_code == 0, found.output
    assert "stream_aware+ensemble" in found.output
    refused = CliRunner().invoke(app, both)
    assert refused.exit_code == 1
    assert "give --train" in str(refused.output) + str(refused.exception)
