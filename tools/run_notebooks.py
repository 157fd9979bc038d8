"""Run the notebooks in docs/notebooks and keep what they print and draw: python tools/run_notebooks.py

A notebook here is a list of cells that plain Python runs; what jupyter would add is not needed. The value of a cell's
last line is shown as jupyter shows it, and a figure as a picture.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

NOTEBOOKS = Path(__file__).parent.parent / "docs" / "notebooks"


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with new outputs, its cells run one after another in one namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = run_cell("".join(cell["source"]), names, f"cell {count}", count)
            cell = {**cell, "execution_count": count, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def run_cell(source: str, names: dict[str, Any], title: str, count: int) -> list[dict[str, Any]]:
    """What one cell prints, its last value, its figures."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, title, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), title, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if value is not None and not source.rstrip().endswith(";"):
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=80, metadata={"Software": None})
        data = {"image/png": [base64.b64encode(picture.getvalue()).decode()]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    plt.close("all")
    return outputs


def texts(notebook: dict[str, Any]) -> list[tuple[list[str], int]]:
    """Of each code cell, what it shows as text, and how many pictures."""
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            data = [output.get("data", {"text/plain": output.get("text")}) for output in cell["outputs"]]
            shown = ["".join(one["text/plain"]) for one in data if "text/plain" in one]
            found.append((shown, sum("image/png" in one for one in data)))
    return found


def main() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        path.write_text(json.dumps(run(json.loads(path.read_text())), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
