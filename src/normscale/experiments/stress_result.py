"""What the stress grid found: rows, their means over the OoD sets, and the file they are kept in."""

from __future__ import annotations

import os
from statistics import fmean
from typing import Any, NamedTuple

from normscale._atomic import atomic_path
from normscale._version import __version__
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError

KIND = "normscale stress grid"
FORMAT = 1


class StressRow(NamedTuple):
    """One method in one cell of the grid on one OoD set. OoD is the positive class of ``fpr95_out``."""

    ood_set: str
    share: float
    """Of OoD rows in the stream."""
    order: str
    balance: str
    classes: tuple[int, ...]
    """The dominant or the missing classes."""
    method: str
    parameters: dict[str, Any]
    auroc: float
    """Mean over the draws; NaN when the cell was skipped."""
    fpr95_out: float
    n_id: int
    n_ood: int
    draws: int
    """How often the stream was drawn: small streams are drawn again until 200 OoD rows have been seen."""
    seed: int
    skipped: str
    """Why there are no numbers; empty when there are."""


class Cell(NamedTuple):
    """A kind of stream."""

    share: float
    order: str
    balance: str


class Numbers(NamedTuple):
    """Of one method in one cell, averaged over the OoD sets."""

    auroc: float
    fpr95_out: float


class StressResult(NamedTuple):
    """Rows of :func:`normscale.experiments.stress.stress`, what they were made from, and by which version.

    Examples
    --------
    >>> row = StressRow("noise", 0.5, "shuffled", "balanced", (), "msp", {}, 0.9, 0.3, 20, 20, 1, 0, "")
    >>> result = StressResult([row])
    >>> result.cells()[Cell(0.5, "shuffled", "balanced")]["msp"].auroc
    0.9
    """

    rows: list[StressRow]
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    version: str = __version__

    @property
    def ood_sets(self) -> list[str]:
        """Names of the OoD sets, in order."""
        return list(dict.fromkeys(row.ood_set for row in self.rows))

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in order."""
        return list(dict.fromkeys(row.method for row in self.rows))

    @property
    def shares(self) -> list[float]:
        """The shares of OoD rows, in order."""
        return list(dict.fromkeys(row.share for row in self.rows))

    @property
    def orders(self) -> list[str]:
        """The orders of the grid."""
        return list(dict.fromkeys(row.order for row in self.rows))

    @property
    def balances(self) -> list[str]:
        """The class balances of the grid."""
        return list(dict.fromkeys(row.balance for row in self.rows))

    def cells(self) -> dict[Cell, dict[str, Numbers]]:
        """Means over the OoD sets, by cell and method; cells that were skipped on every set are left out."""
        found: dict[Cell, dict[str, list[StressRow]]] = {}
        for row in self.rows:
            if not row.skipped:
                cell = found.setdefault(Cell(row.share, row.order, row.balance), {})
                cell.setdefault(row.method, []).append(row)
        return {
            cell: {
                method: Numbers(fmean(row.auroc for row in rows), fmean(row.fpr95_out for row in rows))
                for method, rows in methods.items()
            }
            for cell, methods in found.items()
        }

    def skipped(self) -> dict[str, int]:
        """Reasons why streams could not be made, and how many (OoD set, cell) pairs each of them cost."""
        pairs = {(row.ood_set, row.share, row.order, row.balance): row.skipped for row in self.rows if row.skipped}
        reasons = list(pairs.values())
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON, one row per line; :func:`load_stress` reads it back."""
        head = {"kind": KIND, "format": FORMAT, "version": self.version, "settings": self.settings}
        lines = write_json({**head, "fields": StressRow._fields}, indent=1).removesuffix("\n}")
        rows = ",\n  ".join(write_json(row) for row in self.rows)
        with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.write(f'{lines},\n "rows": [\n  {rows}\n ]\n}}\n')


def load_stress(path: str | os.PathLike[str]) -> StressResult:
    """Read what :meth:`StressResult.save` wrote."""
    shown = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            record = read_json(file.read())
    except FileNotFoundError:
        raise FileFormatError(f"no such file: {shown}; `normscale stress -o {shown}` would make it.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{shown} is not JSON ({error}); expected the rows of `normscale stress -o`.") from error
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise FileFormatError(f"{shown} is JSON, but not the rows of a stress grid; `normscale stress -o` writes them.")
    if record.get("format") != FORMAT:
        raise FileFormatError(
            f"{shown} has format {record.get('format')!r}, made by version {record.get('version')}; this version "
            f"({__version__}) reads format {FORMAT}. Make it again."
        )
    try:
        if tuple(record["fields"]) != StressRow._fields:
            raise ValueError(f"its fields are {record['fields']}")
        return StressResult([_row(values) for values in record["rows"]], dict(record["settings"]), record["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{shown} is damaged: {error}. Make it again.") from error


def _row(values: list[Any]) -> StressRow:
    row = StressRow._make(values)
    auroc, fpr95_out = float(row.auroc), float(row.fpr95_out)
    return row._replace(classes=tuple(row.classes), parameters=dict(row.parameters), auroc=auroc, fpr95_out=fpr95_out)
