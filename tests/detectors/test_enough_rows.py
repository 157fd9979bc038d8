"""Too few rows are called too few, by number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale import jobs

SAMPLE = ns.load_sample()


def rows_a_class(n: int) -> ns.ModelOutputs:
    labels = SAMPLE.train.labels
    assert labels is not None
    return SAMPLE.train[np.concatenate([np.flatnonzero(labels == c)[:n] for c in range(8)])]


def test_openmax_says_how_many_rows_a_class_it_needs() -> None:
    with pytest.raises(ns.InvalidInput, match=r"needs 4 rows a class on average.*got 8 such rows of 8 classes"):
        ns.make_detector("openmax").fit(rows_a_class(1))


def test_mahalanobis_says_how_many_rows_there_are() -> None:
    with pytest.raises(ns.InvalidInput, match=r"8 rows of 8 classes\. Pass more than one row a class"):
        ns.Mahalanobis().fit(rows_a_class(1))


def test_few_rows_a_class_and_equal_rows_are_warned_of() -> None:
    with pytest.warns(ns.NumericalWarning, match=r"fitted on 24 rows of 8 classes, 3 a class"):
        ns.Mahalanobis(shrinkage="oas").fit(rows_a_class(3))
    with pytest.warns(ns.NumericalWarning, match="all 100 training rows are the same"):
        ns.NormScaling().fit(np.tile([[3.0, 1.0, 0.5]], (100, 1)))
    ns.Mahalanobis(shrinkage="oas").fit(rows_a_class(5))
    ns.NormScaling().fit(rows_a_class(3))  # what it learns is of all rows, whatever their class


@pytest.mark.parametrize(("rows", "why"), [(1, "1 training row"), (50, "all 50 training rows are the same")])
def test_a_job_refuses_rows_that_show_nothing(tmp_path: Path, rows: int, why: str) -> None:
    ns.write_table(tmp_path / "t.npz", ns.ModelOutputs(np.tile([[3.0, 1.0, 0.5]], (rows, 1))))
    with pytest.raises(ns.InvalidInput, match=why):
        jobs.fit(tmp_path / "t.npz", "norm_scaling", say=lambda _: None)


def test_a_job_says_that_rows_are_few(tmp_path: Path) -> None:
    ns.write_table(tmp_path / "t.npz", rows_a_class(2))
    said: list[str] = []
    jobs.fit(tmp_path / "t.npz", ns.Mahalanobis(shrinkage="oas"), say=said.append)
    assert any("16 rows of 8 classes, 2 a class" in text for text in said)
