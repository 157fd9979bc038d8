"""``normscale bench`` as a person starts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from program import normscale

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

SMALL = ("--seeds", "1", "--width", "4", "--epochs", "1", "--method", "msp", "--method", "norm_scaling", "--no-stress")


def test_one_command_ends_with_a_report_and_goes_on_the_second_time(tmp_path: Path) -> None:
    ask = ("bench", *SMALL, "--ood", "gaussian", "--ood", "mine=npz:nowhere.npz")
    first = normscale(*ask, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "mine was left out" in first.stderr
    assert "2 cells computed, 0 were there: runs/digits/results.jsonl" in first.stderr
    assert "runs/digits/report.html" in first.stderr + first.stdout
    assert "nowhere.npz" in (tmp_path / "runs/digits/report.html").read_text()
    rows = [json.loads(line) for line in (tmp_path / "runs/digits/results.jsonl").read_text().splitlines()]
    assert {row["ood_set"] for row in rows} == {None, "gaussian"}
    made_by = json.loads((tmp_path / "runs/digits/settings.json").read_text())["made_by"]
    assert made_by["command"].startswith("normscale bench --seeds 1")
    second = normscale(*ask, "--no-report", cwd=tmp_path)
    assert "0 cells computed, 2 were there" in second.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--preset", "imagenet"), "unknown preset 'imagenet'; known: digits, cifar10-small"),
        (("--method", "energi"), "Did you mean 'energy'"),
        (("--ood", "a/b=gaussian"), "a name holds no slash"),
        (("--seeds", "0"), "Invalid value"),
    ],
)
def test_mistakes_are_explained_before_any_work(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = normscale("bench", *arguments, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs" / "digits" / "networks").exists()
