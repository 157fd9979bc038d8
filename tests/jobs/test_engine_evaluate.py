"""Evaluation of tables in pieces, against the metrics of all rows in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale import jobs


def test_scores_that_are_not_finite_are_refused_or_skipped(tmp_path: Path) -> None:
    rows = np.random.default_rng(5).normal(size=(300, 4))
    ns.write_table(tmp_path / "good.npz", rows[:100])
    ns.write_table(tmp_path / "bad.npz", np.where(np.arange(300)[:, None] == 210, np.inf, rows))
    one = {"energy": ns.Energy()}
    good, bad = str(tmp_path / "good.npz"), str(tmp_path / "bad.npz")
    with pytest.raises(ns.InvalidInput, match=r"bad\.npz: row 210 holds infinity"):
        jobs.evaluate(good, {"far": bad}, one, engine="here")
    (found,) = jobs.evaluate(good, {"far": bad}, one, engine="here", on_invalid="skip")
    assert found.skipped == jobs.Skipped(1, ((bad, 210),))
    wanted = ns.evaluate(ns.Energy().score(rows[:100]), ns.Energy().score(np.delete(rows, 210, axis=0)))
    assert found.result == wanted
    ns.write_table(tmp_path / "nothing.npz", np.full((5, 4), np.nan))
    with pytest.raises(ns.InvalidInput, match="holds no finite score"):
        jobs.evaluate(good, {"far": str(tmp_path / "nothing.npz")}, one, engine="here", on_invalid="skip")


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
