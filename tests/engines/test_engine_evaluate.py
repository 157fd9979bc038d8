"""Evaluation of scores in many files, against the metrics of all of them in one process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import normscale as ns
from normscale import engines
from normscale.engines.score_bins import ScoreCounts, Sketch, bins_of, estimate, splitters
from normscale.engines.spreading import Engine
from normscale.metrics._ranking_sums import METRICS, RankingQuestion

RNG = np.random.default_rng(5)
CASES: dict[str, tuple[Any, Any]] = {
    "normal": (RNG.normal(size=3000), RNG.normal(size=1000) + 1),
    "ties": (RNG.integers(0, 7, 3000), RNG.integers(2, 9, 1500)),
    "constant": (np.ones(400), np.ones(500)),
    "apart": (np.arange(100.0), np.arange(100.0) + 1000),
    "wrong way round": (np.arange(100.0) + 1000, np.arange(100.0)),
    "heavy tails": (np.tan(RNG.uniform(-1.57, 1.57, 3000)) ** 9, np.tan(RNG.uniform(-1.4, 1.57, 2000)) ** 9),
    "close together": (1.0 + 1e-12 * RNG.integers(0, 4000, 3000), 1.0 + 1e-12 * RNG.integers(1000, 5000, 3000)),
    "zeros": (np.array([0.0, -0.0, 1.0] * 50), np.array([-0.0, 0.0, -1.0] * 40)),
    "one each": (np.array([1.0]), np.array([2.0])),
    "a heap and a tail": (np.r_[np.zeros(2500), RNG.normal(size=500)], np.r_[np.zeros(100), RNG.normal(size=900)]),
    "extreme": (np.array([-1.7e308, 5e-324, 0.0, 1.7e308]), np.array([1.7e308, -5e-324, 3.0])),
}


def write_scores(folder: Path, scores: NDArray[Any], files: int = 3) -> Path:
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.asarray(scores, dtype=np.float64), files)):
        pq.write_table(pa.table({"score": part}), folder / f"{number}.parquet", row_group_size=150)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_exactly_by_ranges(tmp_path: Path, local: Engine, case: str) -> None:
    sides = CASES[case]
    wanted = ns.evaluate(*sides)
    paths = [write_scores(tmp_path / name, side) for name, side in zip(("id", "ood"), sides, strict=True)]
    found = engines.evaluate(*paths, engine=local, piece_rows=400, range_scores=500)
    assert found.exact
    assert found.error == (0, 0, 0, 0, 0)
    for name in ("auroc", "fpr95_out", "fpr95_in", "n_id", "n_ood"):
        assert getattr(found.result, name) == getattr(wanted, name), name
    for name in ("aupr_out", "aupr_in"):
        assert getattr(found.result, name) == pytest.approx(getattr(wanted, name), rel=1e-14)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n_bins", [1, 2, 9, 60, 10**6])
def test_a_histogram_is_never_further_off_than_it_says(case: str, n_bins: int) -> None:
    id_scores, ood_scores = (np.asarray(side, dtype=np.float64) + 0.0 for side in CASES[case])
    wanted = ns.evaluate(id_scores, ood_scores)
    edges = splitters([Sketch.of(side, 200) for side in (id_scores, ood_scores)], n_bins)
    sizes = 2 * edges.size + 1
    counts = ScoreCounts(*(np.bincount(bins_of(side, edges), minlength=sizes) for side in (id_scores, ood_scores)))
    question = RankingQuestion(
        id_scores.size, ood_scores.size, math.ceil(0.95 * ood_scores.size), math.ceil(0.95 * id_scores.size)
    )
    middle, error = estimate(counts, question)
    for name in METRICS:
        off = abs(getattr(middle, name) - getattr(wanted, name))
        assert off <= getattr(error, name) + 1e-12, name
    if n_bins == 10**6 and max(id_scores.size, ood_scores.size) <= 200:
        assert max(error) < 1e-12  # every score is a splitter


def test_bins_are_exact_at_splitters() -> None:
    assert bins_of(np.array([0.0, 1.0, 1.5, 2.0, 3.0]), np.array([1.0, 2.0])).tolist() == [0, 1, 2, 3, 4]


def test_a_histogram_that_is_good_enough_moves_no_scores(
    tmp_path: Path, local: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normscale.engines.evaluation._HISTOGRAM_BINS", 60_000)  # half of the scores
    sides = RNG.normal(size=60_000), RNG.normal(size=60_000) + 1
    wanted = ns.evaluate(*sides)
    paths = [write_scores(tmp_path / name, side) for name, side in zip(("id", "ood"), sides, strict=True)]
    seen: list[str] = []
    found = engines.evaluate(
        *paths, exact=False, engine=local, piece_rows=30_000, tick=lambda progress: seen.append(progress.doing)
    )
    assert not found.exact
    assert 0 < found.error.auroc <= 1e-5
    assert abs(found.result.auroc - wanted.auroc) <= found.error.auroc + 1e-15
    assert set(seen) == {"looking at scores", "counting scores"}


def test_a_histogram_that_is_too_coarse_goes_the_exact_way(
    tmp_path: Path, local: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("normscale.engines.evaluation._HISTOGRAM_BINS", 20)
    sides = CASES["normal"]
    paths = [write_scores(tmp_path / name, side) for name, side in zip(("id", "ood"), sides, strict=True)]
    found = engines.evaluate(*paths, exact=False, engine=local)
    assert found.exact
    assert found.result.auroc == ns.evaluate(*sides).auroc


def test_every_engine_gives_the_same_bits(tmp_path: Path, local: Engine, ray_engine: Engine) -> None:
    sides = CASES["a heap and a tail"]
    paths = [write_scores(tmp_path / name, side) for name, side in zip(("id", "ood"), sides, strict=True)]
    for exact in (True, False):
        found = [
            engines.evaluate(*paths, exact=exact, engine=engine, piece_rows=300, range_scores=400)
            for engine in (local, ray_engine)
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_named_or_skipped(tmp_path: Path, local: Engine, value: float) -> None:
    scores = np.arange(300.0)
    scores[210] = value
    bad, good = write_scores(tmp_path / "bad", scores), write_scores(tmp_path / "good", np.arange(100.0))
    with pytest.raises(ns.InvalidInput, match=r"2\.parquet: the score in row 10 is (nan|-?inf)"):
        engines.evaluate(good, bad, engine=local)
    found = engines.evaluate(good, bad, engine=local, on_invalid="skip")
    assert found.skipped == engines.Skipped(1, ((str(bad / "2.parquet"), 10),))
    assert found.result.auroc == ns.evaluate(np.arange(100.0), np.delete(scores, 210)).auroc
    nothing = write_scores(tmp_path / "nothing", np.full(5, value))
    with pytest.raises(ns.InvalidInput, match="every score of one side"):
        engines.evaluate(good, nothing, engine=local, on_invalid="skip")


def test_files_without_scores_are_refused(tmp_path: Path, local: Engine) -> None:
    good = write_scores(tmp_path / "good", np.arange(10.0))
    pq.write_table(pa.table({"other": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(ns.FileFormatError, match="has no column 'score'; it has other"):
        engines.evaluate(good, tmp_path / "a.parquet", engine=local)
    empty = write_scores(tmp_path / "empty", np.empty(0))
    with pytest.raises(ns.InvalidInput, match="the in-distribution files hold no scores"):
        engines.evaluate(empty, good, engine=local)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(ns.FileFormatError, match="damaged"):
        engines.evaluate(good, tmp_path / "torn.parquet", engine=local)


def test_a_tie_of_hundreds_of_millions_is_counted_exactly() -> None:
    n = 300_000_001
    question = RankingQuestion(n, n, n, n)
    edges = np.array([0.0, float(n)])
    part = question.part(edges, edges)
    assert part.twice_pairs == n * n
    assert question.answer([part]).auroc == 0.5
