"""The paired comparisons of a run against a slow loop, and the words made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from normscale.detectors.base import Setting
from normscale.experiments.measurement import Measurement
from normscale.experiments.plan import Plan
from normscale.experiments.run_folder import RunFolder
from normscale.paper.report_additions import paper_additions, paper_reference
from normscale.report.better_than import (
    ALL_SETS,
    BETTER,
    BETTER_NOT_ALL,
    NO_DIFFERENCE,
    WORSE,
    WORSE_NOT_ALL,
    Comparison,
    better_than_table,
    compare_all,
)
from normscale.report.headline import headline
from normscale.report.reference import BesideReference
from normscale.report.scoreboard import Scoreboard
from normscale.report.table import ReportTable
from normscale.report.tables import accuracies_of, comparison_table, ood_set_table
from report.small_run import METHODS, SETS, make_run

RIVALS = [method for method in METHODS if method != "norm_scaling"]


@pytest.fixture(scope="module")
def comparisons(finished: RunFolder) -> list[Comparison]:
    return compare_all(finished, Scoreboard.of(finished), resamples=60, seed=5)


def slow_differences(run: RunFolder, ood_set: str, rival: str, resamples: int, seed: int) -> list[float]:
    """Mean over the networks of the AUROC difference, one resample after the other."""
    pairs = [[run.load_cell(network, ood_set, m)[1] for m in ("norm_scaling", rival)] for network in (0, 1, 2)]
    id_rng, ood_rng = np.random.default_rng((seed, 0)), np.random.default_rng((seed, 1))
    n_id, n_ood = len(pairs[0][0].id_scores), len(pairs[0][0].ood_scores)
    found = []
    for _ in range(resamples):
        inside, outside = id_rng.integers(0, n_id, n_id), ood_rng.integers(0, n_ood, n_ood)
        truth = np.r_[np.zeros(n_id), np.ones(n_ood)]
        values = [
            [roc_auc_score(truth, np.r_[pair.id_scores[inside], pair.ood_scores[outside]]) for pair in network]
            for network in pairs
        ]
        found.append(float(np.mean([ours - theirs for ours, theirs in values])))
    return found


@pytest.mark.parametrize("ood_set", ["svhn", "uniform"])
@pytest.mark.parametrize("rival", ["msp", "norm_scaling_frozen"])
def test_intervals_are_those_of_a_slow_loop(
    finished: RunFolder, comparisons: list[Comparison], ood_set: str, rival: str
) -> None:
    one = next(one for one in comparisons if (one.ood_set, one.rival) == (ood_set, rival))
    slow = slow_differences(finished, ood_set, rival, 60, 5)
    assert (one.low, one.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=1e-12)
    assert one.wins == np.mean(np.array(slow) > 0)
    board = Scoreboard.of(finished)
    by_network = [
        (board.value("auroc", "norm_scaling", ood_set, s), board.value("auroc", rival, ood_set, s)) for s in (0, 1, 2)
    ]
    assert one.difference == pytest.approx(np.mean([a - b for a, b in by_network]))
    assert (one.networks_won, one.n_networks) == (sum(a > b for a, b in by_network), 3)


def test_all_sets_together_average_the_sets_resample_by_resample(
    finished: RunFolder, comparisons: list[Comparison]
) -> None:
    one = next(one for one in comparisons if (one.ood_set, one.rival) == (ALL_SETS, "energy"))
    slow = np.mean([slow_differences(finished, name, "energy", 60, 5) for name in SETS], axis=0)
    assert (one.low, one.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=1e-12)
    singles = [other.difference for other in comparisons if other.rival == "energy" and other.ood_set != ALL_SETS]
    assert one.difference == pytest.approx(np.mean(singles))


def test_every_rival_on_every_set_and_on_all(finished: RunFolder, comparisons: list[Comparison]) -> None:
    expected = [(name, rival) for name in (ALL_SETS, *SETS) for rival in RIVALS]
    assert [(one.ood_set, one.rival) for one in comparisons] == expected
    table = better_than_table(comparisons, Scoreboard.of(finished))
    assert table is not None
    assert [section.title for section in table.sections] == [ALL_SETS, *SETS]


@pytest.mark.parametrize(
    ("low", "high", "won", "verdict"),
    [
        (0.01, 0.02, 3, BETTER),
        (0.01, 0.02, 2, BETTER_NOT_ALL),
        (-0.01, 0.02, 3, NO_DIFFERENCE),
        (0.0, 0.02, 3, NO_DIFFERENCE),
        (-0.02, 0.0, 0, NO_DIFFERENCE),
        (-0.02, -0.01, 0, WORSE),
        (-0.02, -0.01, 1, WORSE_NOT_ALL),
    ],
)
def test_verdicts(low: float, high: float, won: int, verdict: str) -> None:
    assert Comparison("svhn", "msp", 0.9, 0.9, low, high, 0.5, won, 3).verdict == verdict


def test_networks_that_lack_a_method_are_left_out_of_its_comparison(tmp_path: Path) -> None:
    gaps = [(1, "svhn", "energy"), (0, "uniform", "norm_scaling")]
    run = make_run(tmp_path / "run", seeds=(0, 1), methods=("msp", "energy", "norm_scaling"), leave_out=gaps)
    found = {(c.ood_set, c.rival): c.n_networks for c in compare_all(run, Scoreboard.of(run), resamples=5)}
    assert found["svhn", "energy"] == 1
    assert found["svhn", "msp"] == 2
    assert found["uniform", "msp"] == 1


def test_without_norm_scaling_there_is_nothing_to_compare(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "energy"))
    assert compare_all(run, Scoreboard.of(run)) == []
    assert better_than_table([], Scoreboard.of(run)) is None


# -- the sentences -----------------------------------------------------------------------------------------------------


def sentences(run: RunFolder, comparisons: list[Comparison]) -> list[str]:
    board = Scoreboard.of(run)
    additions = paper_additions(run)
    beside = BesideReference(board, additions.reference)
    return headline(run, board, beside, comparisons, accuracies_of(run), additions.sentences(board, beside))


def test_the_headline_says_who_is_best_and_by_how_much(finished: RunFolder, comparisons: list[Comparison]) -> None:
    board = Scoreboard.of(finished)
    found = {m: board.average("auroc", m) for m in METHODS if m != "multi_threshold"}
    means = sorted((average.mean for average in found.values() if average is not None), reverse=True)
    first = sentences(finished, comparisons)[0]
    assert first.startswith("For networks trained on cifar10, Norm-Scaling has the highest mean AUROC over 4 OoD sets")
    assert f"{means[0]:.3f}, {means[0] - means[1]:.3f} ahead of" in first
    assert f"({means[1]:.3f})." in first


def _first_sentence(means: dict[str, float], subject: str, path: Path) -> tuple[str, ReportTable]:
    """The first sentence of a run with these AUROC on both of its sets, and the table that it speaks of."""
    plan = Plan("made", "cifar10", {"a": "a", "b": "b"}, seeds=(0,), methods=tuple(means), subject=subject)
    setting = {"multi_threshold": Setting.PER_CLASS, "norm_scaling": Setting.STREAM}
    numbers = {"aupr_out": 0.5, "aupr_in": 0.5, "fpr95_out": 0.5, "fpr95_in": 0.5}
    cells = [
        Measurement(ood_set, method, method, "", setting.get(method, Setting.FROZEN), {}, {"auroc": auroc, **numbers},
                    50, 50, 0)
        for ood_set in ("a", "b") for method, auroc in means.items()
    ]  # fmt: skip
    board = Scoreboard(cells, subject)
    beside = BesideReference(board, None)
    run = RunFolder.create(path, plan, "")
    return headline(run, board, beside, [], {})[0], comparison_table(board, beside)


def test_a_place_is_counted_over_the_rows_that_are_shown(tmp_path: Path) -> None:
    means = {"msp": 0.7, "energy": 0.9004, "max_logit": 0.9116, "knn": 0.6, "norm_scaling": 0.8}
    text, table = _first_sentence(means, "norm_scaling", tmp_path / "one")
    assert "MaxLogit has the highest mean AUROC over 2 OoD sets: 0.912, 0.012 ahead of Energy (0.900); " in text
    assert text.endswith("; Norm-Scaling is third of 5 with 0.800, 0.112 behind.")  # 0.912 - 0.800, not 0.1116
    assert len(table.sections[0].rows) == 5
    text, table = _first_sentence({**means, "multi_threshold": 0.95}, "norm_scaling", tmp_path / "two")
    assert "Norm-Scaling is third of 5 (Multi-Threshold not counted) with 0.800" in text
    assert len(table.sections[0].rows) == 5 + 1
    text, _ = _first_sentence(means, "energy", tmp_path / "three")
    assert text.endswith("0.912, 0.012 ahead of Energy (0.900).")  # the second need not be told again


def test_equal_numbers_have_equal_places(tmp_path: Path) -> None:
    means = {"msp": 0.9, "norm_scaling": 0.9, "energy": 0.9}
    text, _ = _first_sentence(means, "norm_scaling", tmp_path / "all")
    assert text.endswith("MSP and Norm-Scaling and Energy share the highest mean AUROC over 2 OoD sets: 0.900.")
    means |= {"max_logit": 0.8, "knn": 0.8, "vim": 0.7}
    text, _ = _first_sentence(means, "energy", tmp_path / "first")
    assert text.endswith("MSP and Norm-Scaling and Energy share the highest mean AUROC over 2 OoD sets: 0.900, "
                         "0.100 ahead of MaxLogit (0.800).")  # fmt: skip
    text, _ = _first_sentence(means, "knn", tmp_path / "later")
    assert text.endswith("0.100 ahead of MaxLogit (0.800); KNN is fourth of 6 with 0.800, 0.100 behind.")
    text, _ = _first_sentence({"msp": 0.9001, "energy": 0.9}, "energy", tmp_path / "nearly")
    assert "MSP has the highest mean AUROC over 2 OoD sets: 0.900, less than 0.001 ahead of Energy (0.900)." in text


def test_losses_are_told_rival_by_rival(finished: RunFolder) -> None:
    made = [
        Comparison("svhn", "energy", 0.80, 0.85, -0.06, -0.04, 0.0, 0, 3),
        Comparison("uniform", "energy", 0.80, 0.83, -0.04, -0.02, 0.0, 0, 3),
        Comparison("textures", "msp", 0.80, 0.84, -0.05, -0.03, 0.0, 0, 3),
    ]
    text = " ".join(sentences(finished, made))
    assert (
        "Norm-Scaling loses most to Energy on svhn (−0.050 [−0.060, −0.040]), uniform (−0.030 [−0.040, −0.020]); "
        "to MSP on textures (−0.040 [−0.050, −0.030])." in text
    )


def test_a_loss_is_said_with_its_interval(finished: RunFolder) -> None:
    made = [
        Comparison("svhn", "energy", 0.80, 0.85, -0.06, -0.04, 0.0, 0, 3),
        Comparison("svhn", "msp", 0.80, 0.83, -0.04, -0.02, 0.0, 0, 3),
        Comparison("svhn", "multi_threshold", 0.80, 0.99, -0.2, -0.18, 0.0, 0, 3),
        Comparison("uniform", "msp", 0.95, 0.90, 0.04, 0.06, 1.0, 3, 3),
        Comparison("uniform", "energy", 0.90, 0.895, -0.01, 0.02, 0.7, 2, 3),
    ]
    text = " ".join(sentences(finished, made))
    assert "(4 comparisons on the same rows), Norm-Scaling is better in 1, worse in 2, and in 1 no difference" in text
    assert "Norm-Scaling loses most to Energy on svhn (−0.050 [−0.060, −0.040])." in text
    assert "Multi-Threshold" not in text


def test_the_paper_is_compared_on_shared_sets(finished: RunFolder, comparisons: list[Comparison]) -> None:
    text = " ".join(sentences(finished, comparisons))
    side = BesideReference(Scoreboard.of(finished), paper_reference("cifar10")).average("auroc", "norm_scaling")
    assert side is not None
    theirs = np.mean([0.9522, 0.9087, 0.9864])  # as printed: SVHN, Textures, uniform noise
    assert side.theirs == pytest.approx(theirs)
    assert "On the 3 OoD sets shared with the paper (svhn, textures, uniform) Norm-Scaling has a mean AUROC of " in text
    assert f"{side.ours:.3f} here and {theirs:.3f} in the paper" in text


def test_the_gain_over_msp_is_said_of_the_papers_method(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "energy", "norm_scaling"))
    told = sentences(RunFolder(run.path, run.plan._replace(subject="energy"), {}), [])
    place = next(i for i, text in enumerate(told) if "Energy has a mean AUROC of" in text)
    board = Scoreboard.of(run)
    shared = ("svhn", "textures", "uniform")
    ours, plain = (board.average("auroc", method, shared) for method in ("norm_scaling", "msp"))
    assert ours is not None
    assert plain is not None
    assert told[place + 1].startswith(f"Norm-Scaling's gain over MSP there is {ours.mean - plain.mean:+.3f} AUROC here")


def test_gaps_are_said(finished: RunFolder, comparisons: list[Comparison], tmp_path: Path) -> None:
    assert "Missing: lsun. no mirror answered." in sentences(finished, comparisons)
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "energy"), leave_out=[(0, "svhn", "energy")])
    text = " ".join(sentences(run, []))
    assert "The run is not finished: 7 of 8 cells are there." in text
    assert "There is one network" in text
    assert "On no OoD set" not in text  # nothing was compared


def test_a_method_that_failed_is_not_waited_for(tmp_path: Path) -> None:
    lost = [(seed, name, "energy") for seed in (0, 1) for name in SETS]
    run = make_run(tmp_path / "run", seeds=(0, 1), methods=("msp", "energy"), leave_out=lost)
    for seed in run.plan.seeds:
        run.save_failures(seed, {"energy": "it reads what is not there"})
    text = " ".join(sentences(run, []))
    assert "not finished" not in text
    assert "Energy could not take part: it reads what is not there." in text
    board = Scoreboard.of(run)
    rows = ood_set_table(run, board, BesideReference(board, None)).sections[0].rows
    assert {row[-2:] for row in rows} == {("2 of 2", "without Energy")}
    run.cell_path(1, "svhn", "msp").unlink()
    text = " ".join(sentences(run, []))
    assert "The run is not finished: 7 of 8 cells are there." in text
    cell, scores = run.load_cell(0, "svhn", "msp")
    run.save_cell(cell._replace(method="energy"), scores)
    assert "Energy could not take part everywhere: it reads what is not there." in sentences(run, [])
