"""``normscale audit`` as a person runs it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import normscale as ns
import program
from normscale.bench.paper.audit import POINTS, audit, summary


def run(*arguments: object, columns: int | None = None) -> subprocess.CompletedProcess[str]:
    return program.normscale("audit", *arguments, COLUMNS=None if columns is None else str(columns))


@pytest.mark.parametrize(("columns", "width"), [(80, 80), (None, 110)])
def test_every_point_is_numbered_and_fits_the_terminal(columns: int | None, width: int) -> None:
    result = run(columns=columns)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    headings = [line for line in lines if re.match(r"\d\. ", line)]
    assert headings == [f"{point}. {title}" for point, title in POINTS.items()]
    assert max(map(len, lines)) <= max(width, 86), "the last two sentences are left to the terminal"
    assert all(len(line) <= width for line in lines[:-2])
    assert lines[-1] == summary(audit())


def test_claims_numbers_and_verdicts_are_the_librarys() -> None:
    text = " ".join(run(columns=110).stdout.split())
    for finding in audit():
        for column in ("claim", "paper", "recomputed", "ours", "verdict", "rule"):
            words = getattr(finding, column)
            assert words == "–" or " ".join(f"{column} {words}".split()) in text


def test_json_is_one_finding_a_line() -> None:
    records = [json.loads(line) for line in run("--format", "json").stdout.splitlines()]
    findings = audit()
    assert len(records) == len(findings)
    for record, finding in zip(records, findings, strict=True):
        assert record["title"] == POINTS[finding.point]
        assert record["version"] == ns.__version__
        for field in ("point", "claim", "paper", "recomputed", "ours", "verdict", "rule"):
            assert record[field] == getattr(finding, field)
        assert record["details"] == [dict(row) for row in finding.details]


def test_tables_of_ones_own_with_names(tmp_path: Path) -> None:
    sample = ns.load_sample()
    for name, outputs in (("train", sample.train), ("test", sample.test), ("digits", sample.ood["unseen_digits"])):
        ns.write_table(tmp_path / f"{name}.npz", outputs)
    tables = [
        "--train",
        tmp_path / "train.npz",
        "--id",
        tmp_path / "test.npz",
        "--ood",
        f"svhn={tmp_path / 'digits.npz'}",
    ]
    arguments = [*tables, "--ood", "sample:uniform_noise", "--in-set", "cifar10", "--seed", "3"]
    records = [json.loads(line) for line in run(*arguments, "-f", "json").stdout.splitlines()]
    ood = {"svhn": sample.ood["unseen_digits"], "uniform_noise": sample.ood["uniform_noise"]}
    findings = audit(sample.train, sample.test, ood, in_set="cifar10", seed=3)
    assert [record["ours"] for record in records] == [finding.ours for finding in findings]
    assert "embedded sample" not in run(*arguments).stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--train", "sample:train"], "--train, --id and --ood go together; give all three, or none"),
        (["--ood", "sample:uniform_noise"], "--train, --id and --ood go together"),
        (["--in-set", "mnist"], "in_set must be one of 'cifar10', 'cifar100', 'svhn', 'tinyimagenet'; got 'mnist'"),
        (["--train", "sample:train", "--id", "sample:test", "--ood", "sample:test", "--ood", "test=sample:train"],
         "another table is called 'test'; name this one: OTHER=sample:train."),
        (["--train", "sample:train", "--id", "nowhere.npz", "--ood", "sample:test"], "nowhere.npz"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(arguments: list[str], sentence: str) -> None:
    result = run(*arguments)
    assert result.returncode == 1
    assert result.stderr.startswith("normscale: ")
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
