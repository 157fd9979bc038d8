"""A report on somebody's own outputs says nothing of trainings, presets or seeds; one OoD set is shown once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale.errors import InvalidInput
from normscale.experiments.comparison import compare
from normscale.experiments.measuring import Measured
from normscale.experiments.plan import Plan
from normscale.experiments.run_folder import RunFolder
from normscale.outputs import ModelOutputs
from normscale.report.fitted_on import fitted_on
from normscale.report.joint_report import read_joint
from normscale.report.leaderboard import write_leaderboard
from normscale.report.own_outputs import report_on
from normscale.report.writing import write_report
from report.small_run import SETS, make_run

SAMPLE = ns.load_sample()


def written(folder: Path, *names: str) -> str:
    """The page about these OoD sets of the sample, without its style."""
    ood: dict[str, ModelOutputs] = {name: SAMPLE.ood[name] for name in names}
    kept: list[Measured] = []
    compare(SAMPLE.test, ood, train=SAMPLE.train, detectors=[ns.MSP(), ns.MultiThreshold()], keep=kept.append)
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
    assert "Accuracy on test" in page
    for word in ("benchmark", "preset", "seed", "started again", "test set of test"):
        assert word not in page, word


def test_a_run_of_networks_keeps_its_words(tmp_path: Path) -> None:
    page = body(write_report(make_run(tmp_path / "run", seeds=(0,), sets={"svhn": SETS["svhn"]}).path, figures=False))
    for words in ("normscale benchmark", "<dt>preset</dt>", "seed 0", "started again, the command goes on"):
        assert words in page, words
    assert "Accuracy on the test set of cifar10" in page


def test_one_ood_set_is_shown_once(tmp_path: Path) -> None:
    page = written(tmp_path, "unseen_digits")
    assert "All methods" in sections(page)
    assert "Every OoD set" not in sections(page)
    assert page.count("<caption>AUROC ↑</caption>") == 1
    assert page.count("<caption>AUPR, in-distribution positive ↑</caption>") == 1
    assert "Multi-Threshold is the mean over predicted classes" in page, "its note is not lost with the copy"
    assert (tmp_path / "tables" / "comparison.csv").exists(), "files are of every table"


def test_several_ood_sets_have_averages_and_numbers_of_each(tmp_path: Path) -> None:
    assert {"All methods", "Every OoD set"} <= set(sections(written(tmp_path, "unseen_digits", "uniform_noise")))


def test_averages_of_several_networks_stay_for_their_spread(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0, 1), sets={"svhn": SETS["svhn"]})
    page = body(write_report(run.path, figures=False, resamples=20))
    assert "Every OoD set" not in sections(page)
    assert "± over seeds" in page.partition('id="comparison"')[2].partition("</section>")[0]
    unfinished = make_run(
        tmp_path / "unfinished", seeds=(0, 1), sets={"svhn": SETS["svhn"]}, leave_out=[(0, "svhn", "msp")]
    )
    page = body(write_report(unfinished.path, figures=False, resamples=20))
    assert "Every OoD set" in sections(page), "the averages leave a method out"


def test_only_attacks_are_called_attacks() -> None:
    assert fitted_on("oodd_frozen") == "training outputs", "fit reads logits, too, and no attacked inputs"
    assert fitted_on("mahalanobis:weights=attacks") == "labelled training outputs and attacks on the training inputs"


def test_a_set_without_a_shared_class_is_not_called_unfinished(tmp_path: Path) -> None:
    predicted = np.unique(SAMPLE.ood["uniform_noise"].predicted)
    test = SAMPLE.test[~np.isin(SAMPLE.test.predicted, predicted)]
    ood = {name: SAMPLE.ood[name] for name in ("unseen_digits", "uniform_noise")}
    kept: list[Measured] = []
    compare(test, ood, train=SAMPLE.train, detectors=[ns.MSP(), ns.MultiThreshold()], keep=kept.append)
    assert [one.record.ood_set for one in kept if one.record.skipped] == ["uniform_noise"]
    page = body(report_on(tmp_path, kept, test, ood, figures=False, resamples=20))
    assert "finished" not in page.replace("Cells finished", "")
    assert "without Multi-Threshold" in page


def test_nothing_is_said_of_a_network_that_nobody_knows(tmp_path: Path) -> None:
    for name in ("one", "two"):
        written(tmp_path / name, "unseen_digits")
    folders = [tmp_path / "one", tmp_path / "two"]
    joint = read_joint(folders, resamples=20)
    assert [row[2] for row in joint.tables["runs"].sections[0].rows] == ["", ""]
    assert [row[2] for row in joint.tables["accuracy"].sections[0].rows] == [None, None]
    text = (write_leaderboard(folders, tmp_path / "out").parent / "leaderboard.md").read_text()
    assert "1 network (outputs, " in text
    assert "width" not in text


def test_names_that_differ_in_a_space_are_two_methods(tmp_path: Path) -> None:
    ood = {name: SAMPLE.ood[name] for name in ("unseen_digits", "uniform_noise")}
    kept: list[Measured] = []
    detectors = {"my det": ns.MSP(), "my_det": ns.MaxLogit()}
    compare(SAMPLE.test, ood, train=SAMPLE.train, detectors=detectors, keep=kept.append)
    report_on(tmp_path, kept, SAMPLE.test, ood, figures=False, resamples=20)
    given = {(one.record.method, one.record.ood_set): one.record.auroc for one in kept}
    shown = {(cell.method, cell.ood_set): cell.auroc for cell in RunFolder.open(tmp_path).cells()}
    names = {"my det": "my det", "my_det": "my_det (2)"}
    assert shown == {(names[method], ood_set): auroc for (method, ood_set), auroc in given.items()}


@pytest.mark.parametrize("name", ["test", "a/b"])
def test_a_refused_report_leaves_the_old_one(tmp_path: Path, name: str) -> None:
    written(tmp_path, "unseen_digits")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept: list[Measured] = []
    ood = {name: SAMPLE.ood["uniform_noise"]}
    compare(SAMPLE.test, ood, train=SAMPLE.train, detectors=[ns.MSP()], keep=kept.append)
    with pytest.raises(InvalidInput, match="OoD set"):
        report_on(tmp_path, kept, SAMPLE.test, ood, figures=False, resamples=20)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_two_methods_in_one_file_are_refused(tmp_path: Path) -> None:
    plan = Plan("mine", "digits", {"x": "x"}, methods=("a b",))
    RunFolder.create(tmp_path, plan)
    with pytest.raises(InvalidInput, match="'a b' and 'a_b' would be the same files"):
        RunFolder.create(tmp_path, plan._replace(methods=("a_b",)))
    assert RunFolder.open(tmp_path).plan.methods == ("a b",)
