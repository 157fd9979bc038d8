"""A report on somebody's own outputs says nothing of trainings, presets or seeds; one OoD set is shown once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from bench.report.small_run import SETS, make_run
from needed_extras import need
from normscale.bench.experiments.comparison import compare_each
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.report.own_outputs import report_on
from normscale.bench.report.runs import read_runs
from normscale.bench.report.tables import accuracy_table, run_table
from normscale.bench.report.writing import report
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs

SAMPLE = ns.load_sample()


def written(folder: Path, *names: str) -> str:
    """The page about these OoD sets of the sample, without its style."""
    ood: dict[str, ModelOutputs] = {name: SAMPLE.ood[name] for name in names}
    kept = list(compare_each(SAMPLE.test, ood, train=SAMPLE.train, detectors=[ns.MSP(), ns.MultiThreshold()]))
    path = report_on(folder, kept, SAMPLE.test, ood, command="normscale eval ...", figures=False, resamples=20)
    return body(path)


def body(path: Path) -> str:
    return path.read_text().partition("</style>")[2]


def sections(page: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page)


def test_the_words_are_not_those_of_a_benchmark(tmp_path: Path) -> None:
    page = written(tmp_path, "unseen_digits", "uniform_noise")
    assert "normscale comparison" in page
    assert "normscale eval ..." in page
    assert "Accuracy on the test sets" in page
    for word in ("benchmark", "preset", "seed"):
        assert word not in page, word


def test_a_run_of_networks_keeps_its_words(tmp_path: Path) -> None:
    page = body(report(make_run(tmp_path / "run", seeds=(0,), sets={"svhn": SETS["svhn"]}).path, figures=False))
    for words in (
        "normscale benchmark",
        "cifar10-small",
        "resnet18, width 8, 2 epochs, recipe fast",
        "One network: nothing says",
    ):
        assert words in page, words


def test_one_ood_set_is_shown_once(tmp_path: Path) -> None:
    page = written(tmp_path, "unseen_digits")
    assert "All methods" in sections(page)
    assert "Every OoD set" not in sections(page)
    head = page.partition('id="table-comparison-0"')[2].partition("</thead>")[0].replace("\xa0", " ")
    for title in ("AUROC ↑", "AUPR, ID positive ↑", "FPR95, ID positive ↓"):
        assert title in head, "every metric stands in the one table"
    assert "Ranked per predicted class: the mean of one ranking for each class" in page
    assert (tmp_path / "tables" / "per_set.csv").exists(), "files are of every table"


def test_several_ood_sets_have_averages_and_numbers_of_each(tmp_path: Path) -> None:
    assert {"All methods", "Every OoD set"} <= set(sections(written(tmp_path, "unseen_digits", "uniform_noise")))


def test_averages_of_several_networks_stay_for_their_spread(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0, 1), sets={"svhn": SETS["svhn"]})
    page = body(report(run.path, figures=False, resamples=20))
    assert "Every OoD set" not in sections(page)
    assert "± over seeds" in page.partition('id="comparison"')[2].partition("</section>")[0]


def test_a_set_without_a_shared_class_is_not_called_unfinished(tmp_path: Path) -> None:
    predicted = np.unique(SAMPLE.ood["uniform_noise"].predicted)
    test = SAMPLE.test[~np.isin(SAMPLE.test.predicted, predicted)]
    ood = {name: SAMPLE.ood[name] for name in ("unseen_digits", "uniform_noise")}
    kept = list(compare_each(test, ood, train=SAMPLE.train, detectors=[ns.MSP(), ns.MultiThreshold()]))
    assert [one.record.ood_set for one in kept if one.record.skipped] == ["uniform_noise"]
    page = body(report_on(tmp_path, kept, test, ood, figures=False, resamples=20))
    assert "finished" not in page.replace("Cells finished", "")
    assert "without Multi-Threshold" in page


def test_nothing_is_said_of_a_network_that_nobody_knows(tmp_path: Path) -> None:
    for name in ("one", "two"):
        written(tmp_path / name, "unseen_digits")
    folders = [tmp_path / "one", tmp_path / "two"]
    runs = read_runs(folders, resamples=20)
    assert {"Network", "Seeds"}.isdisjoint(column.title for column in run_table(runs).columns)
    accuracy = accuracy_table(runs)
    assert accuracy is not None
    assert [row[1] for row in accuracy.sections[0].rows] == [1, 1]
    assert "width" not in body(report(folders, tmp_path / "out", figures=False))


def test_names_that_differ_in_a_space_are_two_methods(tmp_path: Path) -> None:
    ood = {name: SAMPLE.ood[name] for name in ("unseen_digits", "uniform_noise")}
    detectors = {"my det": ns.MSP(), "my_det": ns.MaxLogit()}
    kept = list(compare_each(SAMPLE.test, ood, train=SAMPLE.train, detectors=detectors))
    report_on(tmp_path, kept, SAMPLE.test, ood, figures=False, resamples=20)
    given = {(one.record.method, one.record.ood_set): one.record.auroc for one in kept}
    shown = {(cell.method, cell.ood_set): cell.auroc for cell in RunFolder.open(tmp_path).cells()}
    names = {"my det": "my det", "my_det": "my_det (2)"}
    assert shown == {(names[method], ood_set): auroc for (method, ood_set), auroc in given.items()}


@pytest.mark.parametrize("name", ["test", "a/b"])
def test_a_refused_report_leaves_the_old_one(tmp_path: Path, name: str) -> None:
    written(tmp_path, "unseen_digits")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ood = {name: SAMPLE.ood["uniform_noise"]}
    kept = list(compare_each(SAMPLE.test, ood, train=SAMPLE.train, detectors=[ns.MSP()]))
    with pytest.raises(InvalidInput, match="OoD set"):
        report_on(tmp_path, kept, SAMPLE.test, ood, figures=False, resamples=20)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_two_methods_in_one_file_are_refused(tmp_path: Path) -> None:
    plan = Plan("mine", "digits", {"x": "x"}, methods=("a b",))
    RunFolder.create(tmp_path, plan)
    with pytest.raises(InvalidInput, match="'a b' and 'a_b' would be the same files"):
        RunFolder.create(tmp_path, plan._replace(methods=("a_b",)))
    assert RunFolder.open(tmp_path).plan.methods == ("a b",)


def test_the_papers_figures_are_drawn_of_anybodys_outputs(tmp_path: Path) -> None:
    """Confidences, reliability and calibration errors; of norm-scaled logits too where training rows are known."""
    need("matplotlib")
    ood: dict[str, ModelOutputs] = {"noise": SAMPLE.ood["uniform_noise"]}
    kept = list(compare_each(SAMPLE.test, ood, train=SAMPLE.train, detectors=[ns.Energy()]))
    report_on(tmp_path / "with", kept, SAMPLE.test, ood, train=SAMPLE.train, resamples=20)
    report_on(tmp_path / "without", kept, SAMPLE.test, ood, resamples=20)
    page, plain = (body(tmp_path / name / "report.html") for name in ("with", "without"))
    both = {"confidence_noise", "density_noise", "ece", "reliability"}
    drawn = [{path.stem for path in (tmp_path / name / "figures").iterdir()} for name in ("with", "without")]
    assert both <= drawn[1] & drawn[0]
    assert drawn[0] - drawn[1] == {"reliability_scaled"}
    assert "without and with norm-scaling" in page
    assert "norm-scaling" not in plain.partition('id="calibration"')[2].partition("</section>")[0]
    named = report(tmp_path / "with", tmp_path / "classes", classes=[2, 4], resamples=20)
    assert "--classes 2,4" in body(named)
    with pytest.raises(InvalidInput, match="is predicted as class 99"):
        report(tmp_path / "with", tmp_path / "classes", classes=[99], resamples=20)


def test_code_in_notes_is_shown_as_code(tmp_path: Path) -> None:
    page = written(tmp_path, "unseen_digits")
    assert "as <code>fit</code> and <code>score</code> do" in page
    assert "as `fit` and `score` do" in (tmp_path / "tables" / "comparison.md").read_text()
    assert r"as \texttt{fit} and \texttt{score} do" in (tmp_path / "tables" / "comparison.tex").read_text()
