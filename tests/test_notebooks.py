"""The notebooks run, in plain Python, and still show what is kept in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from needed_extras import need
from test_docs import ROOT, tool

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {"own_logits", "streams"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_give(path: Path) -> None:
    need("matplotlib")
    runner = tool("run_notebooks")
    kept = json.loads(path.read_text())
    shown = runner.texts(kept)
    assert runner.texts(runner.run(kept)) == shown, "run `python tools/run_notebooks.py`"
    assert any(text for text, _ in shown)
    assert any(pictures for _, pictures in shown)


def test_a_cell_that_fails_is_an_error() -> None:
    need("matplotlib")
    cell = {"cell_type": "code", "source": ["1 / 0"], "outputs": [], "execution_count": None}
    with pytest.raises(ZeroDivisionError):
        tool("run_notebooks").run({"cells": [cell]})
