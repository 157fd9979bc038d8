"""``normscale eval``: rows that every strict parser reads, and none that were not measured."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from normscale.cli import app
from normscale.cli.evaluate import _warn_of_swapped_sides
from normscale.experiments.comparison import compare
from normscale.experiments.measurement import Measurement
from normscale.tables import write_table

TABLES = ("--train", "sample:train", "--id", "sample:test", "--ood", "near=sample:unseen_digits")


def evaluate(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["eval", *TABLES, *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.fixture(name="frozen", scope="module")
def _frozen(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("detectors") / "detector.safetensors"
    ns.NormScaling(prior_weight=math.inf).fit(ns.load_sample().train).save(path)
    return str(path)


def test_an_infinite_parameter_is_no_bare_word_in_json(frozen: str) -> None:
    (row,) = csv.DictReader(evaluate("--saved", frozen, "-f", "csv").splitlines())
    (record,) = map(strict, evaluate("--saved", frozen, "-f", "json").splitlines())
    assert strict(row["parameters"]) == record["parameters"]
    assert float(record["parameters"]["prior_weight"]) == math.inf
    assert float(row["auroc"]) == record["auroc"]


def test_rows_with_nan_are_refused_or_left_out_everywhere(tmp_path: Path) -> None:
    sample = ns.load_sample()
    sides = {"train": sample.train, "test": sample.test, "ood": sample.ood["unseen_digits"]}
    names = {}
    for name, side in sides.items():
        logits = np.insert(side.logits, 5, np.inf, axis=0)
        labels = None if side.labels is None else np.insert(side.labels, 5, 0)
        names[name] = str(tmp_path / f"{name}.npz")
        write_table(names[name], ns.ModelOutputs(logits, labels=labels))
    tables = ["--train", names["train"], "--id", names["test"], "--ood", "near=" + names["ood"], "-d", "norm_scaling"]
    refused = CliRunner().invoke(app, ["eval", *tables])
    assert isinstance(refused.exception, ns.InvalidInput)
    done = CliRunner().invoke(app, ["eval", *tables, "--on-invalid", "skip", "-f", "csv"])
    assert done.exit_code == 0, done.output
    clean, skipped = (
        [{**row, "seconds": None} for row in csv.DictReader(text.splitlines())]
        for text in (evaluate("-d", "norm_scaling", "-f", "csv"), done.stdout)
    )
    assert skipped == clean
    for name, side in sides.items():
        assert f"{name}.npz: 1 of {len(side) + 1} rows hold NaN or infinity and are left out" in done.stderr
    saved = [str(tmp_path / f"{which}.safetensors") for which in ("skipped", "clean")]
    for table, path in zip((names["train"], "sample:train"), saved, strict=True):
        arguments = [table, "-o", path, "-d", "norm_scaling", "--on-invalid", "skip"]
        assert CliRunner().invoke(app, ["fit", *arguments]).exit_code == 0
    scores = [ns.load_detector(path).score(sample.test) for path in saved]
    np.testing.assert_array_equal(scores[0], scores[1])


@pytest.mark.filterwarnings("ignore::normscale.NumericalWarning")  # the sample's features have no full rank
def test_no_odin_row_from_logits_alone() -> None:
    methods = {strict(line)["method"] for line in evaluate("-f", "json").splitlines()}
    assert {"msp", "energy", "norm_scaling", "mahalanobis"} <= methods
    assert not methods & {"odin", "mahalanobis_layers"}
    sample = ns.load_sample()

    def odin_rows(test: ns.ModelOutputs, ood: ns.ModelOutputs) -> list[Measurement]:
        return [row for row in compare(test, {"near": ood}, train=sample.train.only("logits")) if row.method == "odin"]

    near = sample.ood["unseen_digits"]
    assert odin_rows(sample.test, near) == []
    perturbed = [side.replace(perturbed_logits=1.5 * side.logits) for side in (sample.test, near)]
    (row,) = odin_rows(*perturbed)
    assert row.auroc == ns.evaluate(*(ns.ODIN().score(side) for side in perturbed)).auroc


def test_what_a_detector_asked_for_lacks_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["eval", *TABLES, "-d", "odin"])
    assert isinstance(done.exception, ns.MissingOutput)
    assert "the ID set has no perturbed_logits" in str(done.exception)
    with pytest.raises(ns.InvalidInput, match="temperature_scaling needs labelled validation outputs to fit on"):
        CliRunner().invoke(app, ["eval", *TABLES, "-d", "temperature_scaling"], catch_exceptions=False)


def test_detectors_that_one_set_does_not_suffice_for_are_left_out_and_named_when_asked_for(tmp_path: Path) -> None:
    sample = ns.load_sample()
    bare = tmp_path / "bare.npz"
    ns.write_table(bare, sample.ood["uniform_noise"].only("logits").replace(head=None))
    methods = {row["method"] for row in map(strict, evaluate("--ood", f"bare={bare}", "-f", "json").splitlines())}
    assert "energy" in methods
    assert "react" not in methods
    asked = ["eval", *TABLES, "--ood", f"bare={bare}", "-d", "react"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 1 or isinstance(done.exception, ns.InvalidInput)
    assert "bare has no features, which a detector reads" in done.output + str(done.exception)


@pytest.mark.filterwarnings("ignore::normscale.NumericalWarning")  # the sample's features have no full rank
@pytest.mark.parametrize("swapped", [True, False])
def test_swapped_sides_are_noticed_though_some_of_all_detectors_disagree(swapped: bool) -> None:
    sides = ("sample:unseen_digits", "sample:test") if swapped else ("sample:test", "sample:unseen_digits")
    done = CliRunner().invoke(
        app, ["eval", "--train", "sample:train", "--id", sides[0], "--ood", sides[1], "-f", "csv"]
    )
    frozen = [float(row["auroc"]) for row in csv.DictReader(done.stdout.splitlines()) if row["setting"] == "frozen"]
    assert min(frozen) < 0.5 < max(frozen)
    assert ("Are the two swapped?" in done.stderr) == swapped


@pytest.mark.parametrize(("found", "noted"), [([0.1, 0.6], False), ([0.1, 0.3], True), ([0.1, 0.3, 0.7], True)])
def test_swapped_sides_are_judged_by_most_detectors(
    found: list[float], noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = ns.load_sample()
    (row,) = compare(sample.test, {"noise": sample.ood["uniform_noise"]}, detectors=[ns.MSP()])
    _warn_of_swapped_sides([row._replace(metrics={**row.metrics, "auroc": auroc}) for auroc in found])
    assert ("swapped" in capsys.readouterr().err) == noted
