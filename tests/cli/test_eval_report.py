"""``eval`` on one's own tables: rows to a file, a report, rows that stay on disk, and what the terminal is told."""

from __future__ import annotations

import csv
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from normscale.bench.experiments import comparison, methods
from normscale.bench.experiments.comparison import compare, compare_each
from normscale.bench.experiments.measuring import Measured
from normscale.bench.report.own_outputs import report_on
from normscale.cli import app
from normscale.outputs import ModelOutputs
from normscale.rows.reader import gather
from program import python

SAMPLE = ns.load_sample()
NEAR = SAMPLE.ood["unseen_digits"]
ASKED = ("-d", "msp", "-d", "norm_scaling", "-d", "multi_threshold")
TABLES = ("eval", "--train", "sample:train", "--id", "sample:test", "--ood", "near=sample:unseen_digits", *ASKED)


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl"])
def test_rows_go_to_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    done = CliRunner().invoke(app, [*TABLES, "-f", "json", "-o", str(path)])
    assert done.exit_code == 0, done.exception
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    if suffix == "csv":
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert [float(row["auroc"]) for row in rows] == [row["auroc"] for row in shown]
    else:
        text = path.read_text()
        assert (json.loads(text) if suffix == "json" else [json.loads(line) for line in text.splitlines()]) == shown
    wrong = CliRunner().invoke(app, [*TABLES, "-o", str(tmp_path / "rows.xlsx")])
    assert "must end in .csv, .json or .jsonl" in str(wrong.exception)
    wrong = CliRunner().invoke(app, [*TABLES, "-o", str(tmp_path / "no" / "rows.csv")])
    assert "there is no folder" in str(wrong.exception)


def measured(ood: dict[str, ModelOutputs]) -> list[Measured]:
    detectors = [ns.MSP(), ns.NormScaling(), ns.MultiThreshold()]
    return list(compare_each(SAMPLE.test, ood, train=SAMPLE.train, detectors=detectors))


def test_a_report_on_anybodys_outputs(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = CliRunner().invoke(app, [*TABLES, "--report", f"{folder}/", "--no-figures"])
    assert done.exit_code == 0, done.exception
    assert f"written: {folder}/report.html, {folder}/tables\n" in done.stderr
    page = (folder / "report.html").read_text()
    assert "network (" not in page, "nothing is known about how the classifier was trained"
    rows = {
        row["Method"]: row for row in csv.DictReader((folder / "tables" / "comparison.csv").read_text().splitlines())
    }
    inside, outside = (ns.msp_score(side.logits) for side in (SAMPLE.test, NEAR))
    expected = ns.delong_interval(inside, outside)
    assert float(rows["MSP"]["AUROC ↑"]) == pytest.approx(ns.evaluate(inside, outside).auroc, abs=1e-4)
    assert float(rows["MSP"]["from"]) == pytest.approx(expected.low, abs=5e-3)  # resampled, and by a formula
    assert float(rows["MSP"]["to"]) == pytest.approx(expected.high, abs=5e-3)
    assert {"Norm-Scaling", "Norm-Scaling, frozen"} <= set(rows)
    for name in ("comparison", "per_set", "better_than"):
        for suffix in ("md", "tex", "csv"):
            assert (folder / "tables" / f"{name}.{suffix}").stat().st_size > 50


def test_a_second_report_forgets_the_first(tmp_path: Path) -> None:
    report_on(tmp_path, measured({"near": NEAR}), SAMPLE.test, {"near": NEAR}, figures=False, resamples=20)
    far = {"far": SAMPLE.ood["uniform_noise"]}
    report_on(tmp_path, measured(far), SAMPLE.test, far, figures=False, resamples=20)
    page = (tmp_path / "report.html").read_text().partition("</style>")[2]
    assert "far" in page
    assert "near" not in page
    with pytest.raises(ns.InvalidInput, match="nothing to report"):
        report_on(tmp_path / "x", [], SAMPLE.test, far)


def test_a_benchmark_is_not_written_over(tmp_path: Path) -> None:
    from normscale.bench.experiments.plan import Plan
    from normscale.bench.experiments.run_folder import RunFolder

    RunFolder.create(tmp_path, Plan("mine", "digits", {}))
    with pytest.raises(ns.InvalidInput, match="holds the run of a benchmark"):
        report_on(tmp_path, measured({"near": NEAR}), SAMPLE.test, {"near": NEAR}, figures=False)


def test_two_detectors_of_one_name_are_two_lines(tmp_path: Path) -> None:
    detectors = [ns.Energy(1.0), ns.Energy(5.0)]
    kept = list(compare_each(SAMPLE.test, {"near": NEAR}, detectors=detectors))
    report_on(tmp_path, kept, SAMPLE.test, {"near": NEAR}, figures=False, resamples=20)
    lines = list(csv.DictReader((tmp_path / "tables" / "comparison.csv").read_text().splitlines()))
    assert sorted(float(line["AUROC ↑"]) for line in lines) == pytest.approx(
        sorted(one.record.auroc for one in kept), abs=1e-4
    )


def test_gathered_rows_and_small_blocks_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [row.metrics for row in compare(SAMPLE.test, {"near": NEAR}, train=SAMPLE.train, detectors=some())]
    monkeypatch.setattr(methods, "BLOCK_ELEMENTS", 1000)
    sides = []
    for side in (SAMPLE.train, SAMPLE.test, NEAR):
        gathered = gather((side[start : start + 50] for start in range(0, len(side), 50)), len(side) + 7)
        assert gathered is not None
        assert np.array_equal(gathered.logits, side.logits)
        assert (gathered.labels is None) == (side.labels is None)
        sides.append(gathered)
    train, test, near = sides
    measured = list(compare_each(test, {"near": near}, train=train, detectors=some()))
    for found, wanted in zip((one.record.metrics for one in measured), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-9)
    assert gather([]) is None


def test_only_one_fitted_detector_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[ns.Detector] = weakref.WeakSet()
    most: list[int] = []
    fit_on = methods.fit_on

    def counted(*given: Any) -> ns.Detector:
        gc.collect()
        most.append(len(alive))
        fitted = fit_on(*given)
        alive.add(fitted)
        return fitted

    monkeypatch.setattr(comparison, "fit_on", counted)
    sets = {"near": NEAR, "noise": SAMPLE.ood["uniform_noise"]}
    rows = compare(SAMPLE.test, sets, train=SAMPLE.train, detectors=["knn", "mahalanobis", "norm_scaling"])
    assert most == [0, 0, 0]
    assert [row.ood_set for row in rows] == ["near"] * 4 + ["noise"] * 4
    assert [row.method for row in rows[:4]] == ["knn", "mahalanobis", "norm_scaling", "norm_scaling"]


def test_what_cannot_be_fitted_is_said_before_the_others_are_measured() -> None:
    begun = compare_each(SAMPLE.test, {"near": NEAR}, detectors=["msp", "knn"])
    with pytest.raises(ns.InvalidInput, match="knn needs training outputs to fit on"):
        next(begun)


def some() -> list[ns.Detector]:
    return [ns.MSP(), ns.NormScaling(), ns.RobustNormScaling(), ns.MultiThreshold()]


def test_the_first_compilation_is_announced_and_no_other(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    code = (
        "from normscale import _kernels\nimport numpy as np\n"
        "_kernels.announce_compilation(lambda: print('compiling'))\n"
        "for _ in range(2): _kernels.predicted(np.ones((3, 2)))"
    )
    folder = {"NUMBA_CACHE_DIR": str(tmp_path), "NORMSCALE_KERNELS": "numba"}
    assert python(code, **folder).stdout == "compiling\n"
    assert python(code, **folder).stdout == ""


def test_the_shell_completes_detectors() -> None:
    words = {"COMP_WORDS": "normscale fit -d react+energ", "COMP_CWORD": "3", "_NORMSCALE_COMPLETE": "complete_bash"}
    done = python("from normscale.cli import main; main()", **words)
    assert done.stdout.split() == ["react+energy"]
