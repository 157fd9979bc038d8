"""Evaluation of scores in many files, against the metrics of all of them in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import normscale as ns
from normscale import jobs

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
def test_it_is_the_ranking_of_all_scores(tmp_path: Path, case: str) -> None:
    sides = CASES[case]
    paths = [write_scores(tmp_path / name, side) for name, side in zip(("id", "ood"), sides, strict=True)]
    assert jobs.rank_scores(*paths).result == ns.evaluate(*(np.asarray(side, np.float64) for side in sides))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_named_or_skipped(tmp_path: Path, value: float) -> None:
    scores = np.arange(300.0)
    scores[210] = value
    bad, good = write_scores(tmp_path / "bad", scores), write_scores(tmp_path / "good", np.arange(100.0))
    with pytest.raises(ns.InvalidInput, match=r"2\.parquet: the score in row 10 is (nan|-?inf)"):
        jobs.rank_scores(good, bad)
    found = jobs.rank_scores(good, bad, on_invalid="skip")
    assert found.skipped == jobs.Skipped(1, ((str(bad / "2.parquet"), 10),))
    assert found.result.auroc == ns.evaluate(np.arange(100.0), np.delete(scores, 210)).auroc
    nothing = write_scores(tmp_path / "nothing", np.full(5, value))
    with pytest.raises(ns.InvalidInput, match="holds no finite score"):
        jobs.rank_scores(good, nothing, on_invalid="skip")


def test_files_without_scores_are_refused(tmp_path: Path) -> None:
    good = write_scores(tmp_path / "good", np.arange(10.0))
    pq.write_table(pa.table({"other": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(ns.FileFormatError, match="has no column 'score'; it has other"):
        jobs.rank_scores(good, tmp_path / "a.parquet")
    empty = write_scores(tmp_path / "empty", np.empty(0))
    with pytest.raises(ns.InvalidInput, match="holds no finite score"):
        jobs.rank_scores(empty, good)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(ns.FileFormatError, match="damaged"):
        jobs.rank_scores(good, tmp_path / "torn.parquet")


def test_detectors_are_fitted_scored_and_ranked_as_in_memory(tmp_path: Path) -> None:
    sample = ns.load_sample()
    for name, outputs in {"train": sample.train, "test": sample.test, **sample.ood}.items():
        (tmp_path / name).mkdir()
        for number in range(3):
            ns.write_table(tmp_path / name / f"{number}.parquet", outputs[number::3])
    detectors = {"energy": ns.Energy(), "knn": ns.make_detector("knn:k=5"), "mine": ns.NormScaling().fit(sample.train)}
    ood = {name: str(tmp_path / name) for name in ("unseen_digits", "uniform_noise")}
    found = jobs.evaluate(
        str(tmp_path / "test"), ood, detectors, train=[str(tmp_path / "train")], engine="here", say=lambda _: None
    )
    assert [(one.method, one.ood_set) for one in found] == [(name, kind) for name in detectors for kind in ood]
    train = ns.ModelOutputs.concatenate([sample.train[number::3] for number in range(3)])
    for one in found:
        model = detectors[one.method] if one.method == "mine" else type(one.detector)(**one.detector.get_params())
        model = model if one.method == "mine" else model.fit(train)
        wanted = ns.evaluate(model.score(sample.test), model.score(sample.ood[one.ood_set]))
        assert one.result.auroc == pytest.approx(wanted.auroc, abs=1e-12)
        assert (one.result.n_id, one.result.n_ood) == (wanted.n_id, wanted.n_ood)
    with pytest.raises(ns.InvalidInput, match="norm_scaling must be fitted; add --train TABLES"):
        jobs.evaluate(str(tmp_path / "test"), ood, {"norm_scaling": ns.NormScaling()})
