"""A metric from outside the package is one file, and then stands wherever metrics do."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale import jobs
from normscale.metrics import METRICS

OWN_FILE = """
import numpy as np
from normscale import register_metric


@register_metric("tied", "Tied share", higher_is_better=False, of_counts=True)
def tied(counts):
    return np.minimum(counts.id_here, counts.ood_here).sum(axis=-1) / min(counts.n_id, counts.n_ood)


@register_metric("youden", "Youden's J", higher_is_better=True)
def youden(id_scores, ood_scores):
    return float(max((ood_scores >= one).mean() - (id_scores >= one).mean() for one in ood_scores))
"""


@pytest.fixture
def own_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_metric.py").write_text(OWN_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(METRICS)
    importlib.import_module("own_metric")
    yield
    del sys.modules["own_metric"]
    METRICS.clear()
    METRICS.update(before)


@pytest.mark.usefixtures("own_metrics")
def test_it_stands_in_evaluate_with_intervals_and_per_class() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 9, 200).astype(float), rng.integers(3, 12, 150).astype(float)
    found = ns.evaluate(inside, outside, intervals="bootstrap")
    tied = sum(min((inside == one).sum(), (outside == one).sum()) for one in np.intersect1d(inside, outside))
    assert found.tied == pytest.approx(tied / 150)
    assert found.youden == METRICS["youden"].function(inside, outside)
    assert list(found.metrics) == list(METRICS)
    assert found.to_dict()["youden"] == found.youden
    assert "Youden's J" in str(found)
    assert found.intervals is not None
    assert found.tied in found.intervals.tied
    with pytest.raises(AttributeError, match="youden"):
        _ = found.intervals.youden  # it is no function of the counts
    classes = np.zeros(200, int), np.zeros(150, int)
    assert ns.evaluate_per_class(inside, classes[0], outside, classes[1]).youden == found.youden


@pytest.mark.usefixtures("own_metrics")
def test_it_stands_in_comparisons() -> None:
    sample = ns.load_sample()
    (row,) = ns.compare(sample.test, {"noise": sample.ood["uniform_noise"]}, detectors=["energy"])
    assert list(row.metrics) == list(METRICS)
    assert 0 < row.youden < 1
    assert row.aupr_out == row.metrics["aupr_out"]
    with pytest.raises(AttributeError, match="nonsense"):
        _ = row.nonsense


@pytest.mark.usefixtures("own_metrics")
def test_it_stands_in_many_files(tmp_path: Path) -> None:
    sample = ns.load_sample()
    for name, rows in (("id", sample.test), ("ood", sample.ood["uniform_noise"])):
        ns.write_table(tmp_path / f"{name}.npz", rows)
    paths, energy = [str(tmp_path / f"{name}.npz") for name in ("id", "ood")], ns.Energy()
    (one,) = jobs.evaluate(paths[0], {"ood": paths[1]}, {"energy": energy}, engine="here", say=lambda _: None)
    found = one.result
    assert found == ns.evaluate(energy.score(sample.test), energy.score(sample.ood["uniform_noise"]))
    assert list(found.metrics) == list(METRICS)


def test_every_metric_of_a_comparison_is_an_attribute() -> None:
    sample = ns.load_sample()
    (row,) = ns.compare(sample.test, {"noise": sample.ood["uniform_noise"]}, detectors=["energy"])
    assert [getattr(row, name) for name in METRICS] == list(row.metrics.values())
    json.dumps(row.metrics)


def test_a_name_is_taken_once_and_is_an_identifier() -> None:
    with pytest.raises(ns.InvalidInput, match="choose another name"):
        ns.register_metric("auroc", "Mine", higher_is_better=True)(lambda a, b: 0.0)
    with pytest.raises(ns.InvalidInput, match="identifier"):
        ns.register_metric("my metric", "Mine", higher_is_better=True)


def test_auroc_and_fpr_stand_where_people_look_for_them() -> None:
    scores = [0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7]
    result = ns.evaluate(*scores)
    assert ns.auroc(*scores) == result.auroc
    assert ns.fpr_at_tpr(*scores) == result.fpr95_out
    assert ns.fpr_at_tpr(*scores, positive="in") == result.fpr95_in
    assert ns.fpr_at_tpr(*scores, tpr=0.6) == ns.evaluate(*scores, tpr=0.6).fpr95_out
