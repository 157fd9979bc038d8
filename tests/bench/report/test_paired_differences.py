"""The paired comparisons of a run against a slow loop, and the words made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from bench.report.small_run import METHODS, SETS, make_run
from normscale.bench.experiments.measurement import ScoredPair
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.report.paired import (
    ALL_SETS,
    BETTER,
    BETTER_NOT_ALL,
    NO_DIFFERENCE,
    WORSE,
    WORSE_NOT_ALL,
    Comparison,
    Resampled,
    resample,
)
from normscale.bench.report.runs import read_runs
from normscale.bench.report.scoreboard import Scoreboard
from normscale.bench.report.tables import better_than_table

RIVALS = [method for method in METHODS if method != "norm_scaling"]


def resampled(run: RunFolder, resamples: int = 5, seed: int = 0) -> Resampled:
    def load(network: int, ood_set: str, method: str) -> ScoredPair:
        return run.load_cell(network, ood_set, method)[1]

    return resample(Scoreboard.of(run), load, resamples=resamples, seed=seed)


@pytest.fixture(scope="module")
def found(finished: RunFolder) -> Resampled:
    return resampled(finished, 60, 5)


@pytest.fixture(scope="module")
def comparisons(found: Resampled) -> list[Comparison]:
    return list(found.comparisons)


def test_intervals_of_averages_are_those_of_a_slow_loop(finished: RunFolder, found: Resampled) -> None:
    id_rng = np.random.default_rng((5, 0))
    sums = np.zeros(60)
    pairs = {(n, s): finished.load_cell(n, s, "energy")[1] for n in (0, 1, 2) for s in SETS}
    inside = [id_rng.integers(0, len(pairs[0, "svhn"].id_scores), len(pairs[0, "svhn"].id_scores)) for _ in range(60)]
    for pair in pairs.values():
        ood_rng = np.random.default_rng((5, 1))
        n_ood = len(pair.ood_scores)
        truth = np.r_[np.zeros(len(pair.id_scores)), np.ones(n_ood)]
        for draw in range(60):
            outside = ood_rng.integers(0, n_ood, n_ood)
            sums[draw] += roc_auc_score(truth, np.r_[pair.id_scores[inside[draw]], pair.ood_scores[outside]])
    expected = np.quantile(sums / len(pairs), [0.025, 0.975])
    assert found.intervals["energy"] == pytest.approx(tuple(expected), abs=1e-12)


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
    assert one.auroc - one.rival_auroc == pytest.approx(np.mean([a - b for a, b in by_network]))
    assert (one.networks_won, one.n_networks) == (sum(a > b for a, b in by_network), 3)


def test_all_sets_together_average_the_sets_resample_by_resample(
    finished: RunFolder, comparisons: list[Comparison]
) -> None:
    one = next(one for one in comparisons if (one.ood_set, one.rival) == (ALL_SETS, "energy"))
    slow = np.mean([slow_differences(finished, name, "energy", 60, 5) for name in SETS], axis=0)
    assert (one.low, one.high) == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])), abs=1e-12)
    others = [other for other in comparisons if other.rival == "energy" and other.ood_set != ALL_SETS]
    singles = [other.auroc - other.rival_auroc for other in others]
    assert one.auroc - one.rival_auroc == pytest.approx(np.mean(singles))


def test_every_rival_on_every_set_and_on_all(finished: RunFolder, comparisons: list[Comparison]) -> None:
    expected = [(name, rival) for name in (ALL_SETS, *SETS) for rival in RIVALS]
    assert [(one.ood_set, one.rival) for one in comparisons] == expected
    (one,) = read_runs([finished.path], resamples=5)
    table = better_than_table(one, "better_than")
    assert table is not None
    assert [section.title for section in table.sections] == [ALL_SETS, *SETS]
    assert {row[-1] for section in table.sections for row in section.rows} <= {
        BETTER, BETTER_NOT_ALL, NO_DIFFERENCE, WORSE, WORSE_NOT_ALL,
    }  # fmt: skip


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
    found = {(c.ood_set, c.rival): c.n_networks for c in resampled(run).comparisons}
    assert found["svhn", "energy"] == 1
    assert found["svhn", "msp"] == 2
    assert found["uniform", "msp"] == 1


def test_without_norm_scaling_there_is_nothing_to_compare(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "energy"))
    assert resampled(run).comparisons == []
    (one,) = read_runs([run.path], resamples=5)
    assert better_than_table(one, "better_than") is None
    assert one.resampled is not None
    assert set(one.resampled.intervals) == {"msp", "energy"}


def test_what_was_resampled_is_kept_and_read_back(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "norm_scaling"))
    (first,) = read_runs([run.path], resamples=7)
    (second,) = read_runs([run.path], resamples=9)
    assert first.resampled == second.resampled  # not made again
    run.cell_path(0, "svhn", "msp").unlink()
    (third,) = read_runs([run.path], resamples=9)
    assert third.resampled is not None
    assert third.resampled.resamples == 9  # of other cells
