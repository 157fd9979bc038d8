"""The commands ``normscale data list`` and ``normscale data get``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.data.making import random_images
from normscale.bench.data import list_sets
from normscale.cli.data import app
from normscale.errors import InvalidInput


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMSCALE_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("COLUMNS", "200")


def run(*words: str) -> Any:
    return CliRunner().invoke(app, words, catch_exceptions=False)


def test_list_shows_every_set_and_what_is_here(tmp_path: Path) -> None:
    lines = run("list").stdout.splitlines()
    rows = {line.split()[0]: line for line in lines[1:-1]}
    assert set(rows) == {source.name for source in list_sets()}
    assert rows["digits"].rstrip().endswith("yes")
    assert rows["cifar10"].rstrip().endswith("no")
    assert "170 MB" in rows["cifar10"]
    assert "50000 train + 10000 test" in rows["cifar10"]
    assert "CC BY 4.0" in rows["digits"]
    for split in ("train", "test"):
        path = tmp_path / "root" / "cifar10" / f"{split}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, images=random_images(2, 32, 32, 3), labels=[0, 1])
    row = next(line for line in run("list").stdout.splitlines() if line.startswith("cifar10 "))
    assert row.rstrip().endswith("yes")


def test_get_says_what_needs_no_fetching_and_checks_names_first() -> None:
    said = run("get", "digits", "uniform").stdout
    assert "digits is part of the package; nothing to fetch." in said
    assert "uniform is drawn when it is loaded" in said
    with pytest.raises(InvalidInput, match=r"unknown data set 'svnh'.* Did you mean 'svhn'"):
        run("get", "digits", "svnh")


def test_get_tells_where_it_put_a_set(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "svhn"
    folder.mkdir(parents=True)
    np.savez(folder / "test.npz", images=random_images(2, 32, 32, 3), labels=[0, 1])
    assert run("get", "svhn", "--split", "test").stdout.split() == [
        "svhn:",
        "26032",
        "test",
        "pictures",
        "in",
        str(folder),
    ]
