"""What the stress grid found: rows, their means over the OoD sets, and the file they are kept in."""

from __future__ import annotations

import os
from collections.abc import Container
from statistics import fmean
from typing import Any, NamedTuple

from normscale._atomic import atomic_path
from normscale._version import __version__
from normscale.bench.experiments.measurement import Measurement, StreamKind
from normscale.detectors.base import Setting
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError

KIND = "normscale stress grid"
FORMAT = 2


class StressNumbers(NamedTuple):
    """Of one method in one kind of stream, averaged over the OoD sets."""

    auroc: float
    fpr95_out: float


class StressResult(NamedTuple):
    """Rows of :func:`normscale.bench.experiments.stress.stress`, what they were made from, and by which version.

    Examples
    --------
    >>> kind = StreamKind(0.5, "shuffled", "balanced")
    >>> numbers = {"auroc": 0.9, "fpr95_out": 0.3}
    >>> row = Measurement("noise", "msp", "msp", "MSP", "frozen", {}, numbers, 20, 20, 0, stream=kind)
    >>> StressResult([row]).means()[kind]["msp"].auroc
    0.9
    """

    rows: list[Measurement]
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
        return list(dict.fromkeys(row.stream.share for row in self.rows if row.stream))

    @property
    def orders(self) -> list[str]:
        """The orders of the grid."""
        return list(dict.fromkeys(row.stream.order for row in self.rows if row.stream))

    @property
    def balances(self) -> list[str]:
        """The class balances of the grid."""
        return list(dict.fromkeys(row.stream.balance for row in self.rows if row.stream))

    @property
    def titles(self) -> dict[str, str]:
        """What the methods are called in sentences."""
        return {row.method: row.title for row in self.rows}

    def in_setting(self, setting: str) -> list[str]:
        """Names of the methods that were measured in a setting, in order."""
        return list(dict.fromkeys(row.method for row in self.rows if row.setting == setting))

    def means(self) -> dict[StreamKind, dict[str, StressNumbers]]:
        """Means over the OoD sets, by kind of stream and method; kinds that were skipped on every set are left out."""
        found: dict[StreamKind, dict[str, list[Measurement]]] = {}
        for row in self.rows:
            if row.stream is not None and not row.skipped:
                found.setdefault(row.stream, {}).setdefault(row.method, []).append(row)
        return {
            kind: {
                method: StressNumbers(fmean(row.auroc for row in rows), fmean(row.fpr95_out for row in rows))
                for method, rows in methods.items()
            }
            for kind, methods in found.items()
        }

    def skipped(self) -> dict[str, int]:
        """Reasons why streams could not be made, and how many pairs of OoD set and stream each of them cost."""
        pairs = {(row.ood_set, row.stream): row.skipped for row in self.rows if row.skipped}
        reasons = list(pairs.values())
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}

    def incomplete(self) -> dict[str, str]:
        """Methods without numbers in a stream that others have some in, and why: their means are of other streams."""
        measured = {(row.ood_set, row.stream) for row in self.rows if not row.skipped}
        return {row.method: row.skipped for row in self.rows if row.skipped and (row.ood_set, row.stream) in measured}

    def without(self, methods: Container[str]) -> StressResult:
        """The same grid without some methods."""
        return self._replace(rows=[row for row in self.rows if row.method not in methods])

    def running_and_frozen(self) -> tuple[str, str] | None:
        """The first method with running statistics and its frozen form; None if there is no such pair."""
        detectors = {row.method: row.detector for row in self.rows}
        frozen = self.in_setting(Setting.FROZEN)
        for running in self.in_setting(Setting.STREAM):
            for other in frozen:
                if detectors[other] == detectors[running]:
                    return running, other
        return None

    def rivals(self) -> list[str]:
        """The methods without running statistics that are no frozen form of one with them."""
        families = {row.method: row.detector.partition("+")[0] for row in self.rows}
        running = {families[method] for method in self.in_setting(Setting.STREAM)}
        return [name for name in self.methods if families[name] not in running]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON, one row per line; :func:`load_stress` reads it back."""
        head = {"kind": KIND, "format": FORMAT, "version": self.version, "settings": self.settings}
        lines = write_json({**head, "fields": Measurement._fields}, indent=1).removesuffix("\n}")
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
        if tuple(record["fields"]) != Measurement._fields:
            raise ValueError(f"its fields are {record['fields']}")
        rows = [Measurement.from_json(dict(zip(Measurement._fields, values, strict=True))) for values in record["rows"]]
        return StressResult(rows, dict(record["settings"]), record["version"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{shown} is damaged: {error}. Make it again.") from error
