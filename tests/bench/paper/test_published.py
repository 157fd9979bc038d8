"""The paper's numbers under our names, against the files read with nothing but the csv module."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import normscale as ns
from normscale.bench.data import list_sets
from normscale.bench.paper import published as paper
from program import python

FOLDER = Path(paper.__file__).parent / "csv"
EXPANDED = [row for row in paper.paper_rows() if row.table == paper.EXPANDED]


def printed(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_of_both_files_is_there_in_order() -> None:
    raw = [*printed("appendix_results.csv"), *printed("main_tables.csv")]
    assert len(paper.paper_rows()) == len(raw) == 585 + 111
    assert [(row.table, row.mean, row.std) for row in paper.paper_rows()] == [
        (r.get("table", paper.EXPANDED), float(r["mean"]), float(r["std"])) for r in raw
    ]


def test_every_expanded_row_can_be_looked_up_by_its_own_names() -> None:
    for row in EXPANDED:
        assert paper.paper_value(*row[1:5]) == (row.mean, row.std)
    assert len({row[:5] for row in EXPANDED}) == 585


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("cifar10", "gaussian", "msp", "auroc"), "CIFAR-10,Gaussian Noise,MSP,AUROC"),
        (("svhn", "places365", "mahalanobis", "aupr_out"), "SVHN,Places365,Mahalanobis,AUPR"),
        (("tinyimagenet", "lsun", "multi_threshold", "aupr_in"), "TinyImageNet,LSUN,Multi-Threshold,AUPR"),
        (("cifar100", "uniform", "norm_scaling", "fpr95_out"), "CIFAR-100,Uniform Noise,Norm-Scaling,FPR95"),
        (("average", "average", "odin", "fpr95_out"), "Average,Average,ODIN,FPR95"),
        (("cifar10", "average", "energy", "auroc"), "CIFAR-10,Average,Energy,AUROC"),
    ],
)
def test_a_lookup_finds_the_printed_line(names: tuple[str, str, str, str], line: str) -> None:
    text = (FOLDER / "appendix_results.csv").read_text().splitlines()
    mean, std = next(row for row in text if row.startswith(line + ",")).split(",")[-2:]
    assert paper.paper_value(*names) == (float(mean), float(std))


def test_what_the_paper_does_not_have_is_none() -> None:
    assert paper.paper_value("cifar10", "cifar100", "msp", "auroc") is None  # never an OoD set of CIFAR-10
    assert paper.paper_value("cifar10", "svhn", "max_logit", "auroc") is None
    assert paper.paper_value("cifar10", "svhn", "msp", "aupr_in") is None
    assert paper.paper_value("cifar10", "svhn", "msp", "fpr95_in") is None
    assert paper.paper_value("digits", "scenes", "msp", "auroc") is None
    with pytest.raises(ns.InvalidInput, match=r"metric must be one of .*; got 'aupr'"):
        paper.paper_value("cifar10", "svhn", "msp", "aupr")


def test_only_multi_threshold_has_in_distribution_as_positive_class() -> None:
    assert {row.method for row in EXPANDED if row.metric == "aupr_in"} == {"multi_threshold"}
    out = {row.method for row in EXPANDED if row.metric == "aupr_out"}
    assert out == set(paper.METHODS.values()) - {"multi_threshold"}


def test_names_are_those_of_the_package() -> None:
    known = {*(source.name for source in list_sets()), paper.AVERAGE}
    assert {row.in_set for row in EXPANDED} | {row.ood_set for row in EXPANDED} <= known
    assert set(paper.LISTED_OOD_SETS) | set(paper.OOD_SIZES) | set(paper.TEST_SIZES) <= known
    assert {row.method for row in EXPANDED} <= set(ns.list_detectors())
    assert set(paper.ACCURACIES) == set(paper.TEST_SIZES) == set(paper.IN_SETS)


def test_sizes_are_those_of_the_data_sets() -> None:
    test_rows = {source.name: source.images["test"] for source in list_sets() if "test" in source.images}
    for name, rows in (paper.OOD_SIZES | paper.TEST_SIZES).items():
        assert test_rows[name] == rows


def test_noise_is_as_large_as_the_test_set_beside_it() -> None:
    assert paper.ood_size("svhn", "uniform") == paper.TEST_SIZES["svhn"] == 26032
    assert paper.ood_size("cifar10", "uniform") == 10000
    assert paper.ood_size("cifar10", "places365") == 36500


def test_reading_the_tables_needs_no_numpy_extras() -> None:
    code = "import sys; from normscale.bench.paper.published import paper_value; "
    code += "paper_value('svhn', 'lsun', 'msp', 'auroc'); "
    code += "print({'torch', 'matplotlib', 'numba', 'rich'} & set(sys.modules))"
    result = python(code)
    assert result.stdout.strip() == "set()", result.stderr
