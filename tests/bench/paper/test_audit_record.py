"""The recorded audit and the page that quotes it say the same, and the tables' half is what the audit says today."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from normscale.bench.paper.audit import audit_tables

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(name="findings", scope="module")
def _findings() -> list[dict[str, Any]]:
    record = json.loads((DOCS / "results" / "audit-resnet20.json").read_text())
    assert re.fullmatch("[0-9a-f]{40}", record["commit"])
    assert record["command"].startswith("normscale audit --train outputs_resnet20/")
    findings: list[dict[str, Any]] = record["claims"]
    return findings


def test_what_the_tables_imply_is_recorded_as_it_is_today(findings: list[dict[str, Any]]) -> None:
    recorded = {(finding["point"], finding["claim"]): finding for finding in findings}
    for finding in audit_tables():
        there = recorded[finding.point, finding.claim]
        assert tuple(there[field] for field in ("paper", "recomputed", "ours", "verdict", "rule")) == finding[2:7]


def rows_of(page: str, header: str) -> list[list[str]]:
    """The cells of the Markdown table that starts with ``header``."""
    lines = page[page.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_the_page_quotes_the_update_table(findings: list[dict[str, Any]]) -> None:
    details = next(f["details"] for f in findings if f["claim"].startswith("Norm-scaling with that update"))
    quoted = rows_of((DOCS / "paper.md").read_text(), "| OoD set | as printed")
    assert quoted == [
        [row["ood_set"], *("" if row[key] is None else f"{row[key]:.4f}" for key in list(row)[1:])] for row in details
    ]


def test_the_page_quotes_the_share_table(findings: list[dict[str, Any]]) -> None:
    details = next(f["details"] for f in findings if f["claim"].startswith("The gain is norm-scaling's"))
    for method, *cells in rows_of((DOCS / "paper.md").read_text(), "| mean AUROC | 0.1 % | 1 %"):
        means = [
            statistics.fmean(row[method] for row in details if row["share"] == share)
            for share in (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
        ]
        assert cells == [f"{mean:.3f}".removeprefix("0") for mean in means]


def test_the_page_quotes_saturation_and_calibration(findings: list[dict[str, Any]]) -> None:
    page = " ".join((DOCS / "paper.md").read_text().split())
    doubled = next(f for f in findings if f["claim"].startswith("It still does"))
    row = next(row for row in doubled["details"] if row["ood_set"] == "tinyimagenet")
    assert f"falls from {row['auroc_log']:.4f} to {row['auroc_float32']:.4f}" in page
    assert row["fpr95_out_float32"] == 1.0
    assert f"rises from {row['fpr95_out_log']:.4f} to 1." in page
    scaled, raw = next(f["details"] for f in findings if f["point"] == 8 and f["details"])
    lowest = f"lowest, {scaled['ece_at_best']:.3f}, at tau = {scaled['best_tau']:.2f}"
    assert f"{scaled['ece_at_1']:.3f} at tau = 1" in page
    assert lowest in page
    assert f"{raw['ece_at_1']:.3f} at tau = 1 and {raw['ece_at_best']:.3f} at tau = {raw['best_tau']:.2f}" in page
