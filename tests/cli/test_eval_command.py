"""``normscale eval``: rows that every strict parser reads, and none that were not measured."""

from __future__ import annotations

import csv
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from normscale.bench.experiments.comparison import compare, swapped_sides
from normscale.bench.experiments.measurement import Measurement
from normscale.cli import app
from normscale.rows import write_table

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
def test_swapped_sides_are_judged_by_most_detectors(found: list[float], noted: bool) -> None:
    sample = ns.load_sample()
    (row,) = compare(sample.test, {"noise": sample.ood["uniform_noise"]}, detectors=[ns.MSP()])
    said = list(swapped_sides([row._replace(metrics={**row.metrics, "auroc": auroc}) for auroc in found]))
    assert ("swapped" in "".join(said)) == noted


CLASSES = ("cat", "dog", "owl")


def asymmetric(n: int, seed: int, certainty: float) -> ns.ModelOutputs:
    """Three classes whose logits lie elsewhere and spread otherwise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    logits = rng.normal(size=(n, 3)) * [0.5, 1.0, 3.0] + [-4.0, 0.0, 6.0]
    logits[np.arange(n), labels] += certainty * np.array([0.5, 1.0, 3.0])[labels]
    return ns.ModelOutputs(logits, labels=labels)


@pytest.fixture(name="tables", scope="module")
def _tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows twice, with columns as they are (_n) and in another order (_p), and a detector of each."""
    folder = tmp_path_factory.mktemp("orders")
    for name, rows in {
        "train": asymmetric(600, 0, 5),
        "test": asymmetric(120, 1, 5),
        "odd": asymmetric(80, 2, 1),
    }.items():
        for suffix, order in (("n", [0, 1, 2]), ("p", [2, 0, 1])):
            lines = [",".join(CLASSES[i] for i in order), *(",".join(map(repr, row)) for row in rows.logits[:, order])]
            (folder / f"{name}_{suffix}.csv").write_text("\n".join(lines).replace("np.float64(", "").replace(")", ""))
    for suffix in "np":
        arguments = ["-o", str(folder / f"of_{suffix}.safetensors"), "-d", "norm_scaling:prior_weight=inf"]
        assert CliRunner().invoke(app, ["fit", str(folder / f"train_{suffix}.csv"), *arguments]).exit_code == 0
    return folder


def test_detectors_with_other_class_orders_are_not_compared_on_one_order(tables: Path) -> None:
    sets = ["--id", str(tables / "test_n.csv"), "--ood", f"x={tables / 'odd_n.csv'}", "-f", "csv"]
    saved = [str(tables / f"of_{suffix}.safetensors") for suffix in "np"]
    refused = CliRunner().invoke(app, ["eval", "--saved", saved[0], "--saved", saved[1], *sets])
    assert isinstance(refused.exception, ns.InvalidInput)
    assert "the columns of logits cannot be in both orders" in str(refused.exception)
    found = set()
    for one in saved:
        done = CliRunner().invoke(app, ["eval", "--saved", one, *sets])
        found |= {round(float(row["auroc"]), 12) for row in csv.DictReader(done.stdout.splitlines())}
    assert len(found) == 1
    detectors = [ns.load_detector(one) for one in saved]
    with pytest.raises(ns.InvalidInput, match="cannot be in both orders"):
        compare(asymmetric(20, 1, 5), {"x": asymmetric(20, 2, 1)}, detectors=detectors)


def test_stress_matches_columns_by_the_names_of_a_saved_detector(tables: Path) -> None:
    found = []
    for suffix in "np":
        train, test, odd = (str(tables / f"{name}_{suffix}.csv") for name in ("train", "test", "odd"))
        saved = str(tables / "of_n.safetensors")
        words = ["--train", train, "--id", test, "--ood", f"x={odd}", "-d", saved, "-f", "csv"]
        done = CliRunner().invoke(app, ["stress", *words])
        assert done.exit_code == 0, done.output
        rows = csv.DictReader(done.stdout.splitlines())
        found.append([float(row["auroc"]) for row in rows if row["method"] == saved and row["auroc"]])
    assert found[0]
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-12)


def test_two_detectors_of_a_kind_have_the_names_of_their_files(tables: Path, tmp_path: Path) -> None:
    for name, rows in (("monday", asymmetric(300, 4, 5)), ("tuesday", asymmetric(300, 5, 1))):
        ns.NormScaling().fit(rows).save(tmp_path / f"{name}.safetensors")
    saved = [word for name in ("monday", "tuesday") for word in ("--saved", str(tmp_path / f"{name}.safetensors"))]
    sets = ["--id", str(tables / "test_n.csv"), "--ood", f"[near]={tables / 'odd_n.csv'}", "-d", "energy"]
    done = CliRunner().invoke(app, ["eval", *saved, *sets, "-f", "csv"])
    methods = [row["method"] for row in csv.DictReader(done.stdout.splitlines())]
    assert sorted(set(methods)) == ["energy", "monday", "tuesday"]
    assert "[near]: 80 OoD inputs" in CliRunner().invoke(app, ["eval", *saved, *sets]).stdout
    found = compare(asymmetric(20, 1, 5), {"x": asymmetric(20, 2, 1)}, detectors=[ns.MSP(), ns.MSP(), "energy"])
    assert [row.method for row in found] == ["msp", "msp (2)", "energy"]
    found = compare(asymmetric(20, 1, 5), {"x": asymmetric(20, 2, 1)}, detectors={"mine": ns.MSP(), "theirs": "msp"})
    assert [row.method for row in found] == ["mine", "theirs"]


def test_an_ood_set_called_test_does_not_stand_in_for_the_test_set(tables: Path, tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_bytes((tables / "odd_n.csv").read_bytes())
    words = ["--id", str(tables / "test_n.csv"), "--ood", str(tmp_path / "test.csv"), "-d", "msp"]
    assert CliRunner().invoke(app, ["eval", *words]).exit_code == 0
    refused = CliRunner().invoke(app, ["eval", *words, "--report", str(tmp_path / "page")])
    assert "another table is called 'test'; name this one: OTHER=" in str(refused.exception)
    assert not (tmp_path / "page").exists()


def test_the_default_detector_is_fitted_from_a_pipe_and_with_labels_that_are_not_known(tmp_path: Path) -> None:
    rows = asymmetric(300, 4, 5)
    labels = np.asarray(rows.labels).copy()
    labels[:5] = -1
    write_table(tmp_path / "train.npz", ns.ModelOutputs(rows.logits, labels=labels))
    out = tmp_path / "detector.safetensors"
    assert CliRunner().invoke(app, ["fit", str(tmp_path / "train.npz"), "-o", str(out)]).exit_code == 0
    out.unlink()
    os.mkfifo(tmp_path / "pipe.csv")
    text = "\n".join(",".join(f"{value:.6f}" for value in row) for row in rows.logits.tolist())
    writer = threading.Thread(target=(tmp_path / "pipe.csv").write_text, args=(text + "\n",), daemon=True)
    writer.start()
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "pipe.csv"), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert ns.load_detector(out)._is_fitted
    writer.join(10)
