"""``results.jsonl`` read back: what a run came to, without its cells and networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from normscale.bench.experiments.measurement import Measurement
from normscale.encoding.json_text import read_json
from normscale.errors import FileFormatError


class Results(NamedTuple):
    """The lines of a results file."""

    cells: list[Measurement]
    accuracies: dict[int, float]
    """Share of right answers by seed of the network."""


def read_results(path: Path) -> Results:
    """Read the cells and accuracies of a results file; one that is not there holds none.

    Raises
    ------
    FileFormatError
        If a line is not what :meth:`RunFolder.write_results` writes.
    """
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    accuracies: dict[int, float] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            row = read_json(line)
            if row["ood_set"] is None:
                accuracies[int(row["seed"])] = float(row["value"])
            else:
                rows.setdefault((row["seed"], row["ood_set"], row["method"]), []).append(row)
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"{path} line {number} is not a line of results ({error!r}). Write the file again: `normscale bench` "
                "on the run's folder."
            ) from error
    return Results([Measurement.from_metrics(of_cell) for of_cell in rows.values()], accuracies)
