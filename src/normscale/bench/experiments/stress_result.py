"""What the stress grid found: rows, their means over the OoD sets, a verdict on each method, and their file."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from normscale._atomic import atomic_path
from normscale._version import __version__
from normscale.bench.experiments.alarms import UNCHANGED, Alarms
from normscale.bench.experiments.measurement import Measurement, StreamKind
from normscale.detectors.base import Setting
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError, InvalidInput

KIND = "normscale stress grid"
FORMAT = 2
TOLERANCE = 0.005
"""Differences in AUROC up to here do not count as a loss or a gain."""
WORTH = 0.01
"""The AUROC gain above which running statistics are worth a risk: the best of many always gains a little."""
RECOMMENDED, SAFE, DEPENDS, NO_GAIN, STATIC = "use this", "safe", "depends on the stream", "no gain", "static"
RULE = (
    f"Verdict, against the best static method in the same stream: {NO_GAIN}, nowhere more than {WORTH:g} AUROC above "
    f"it; {SAFE}, nowhere more than {TOLERANCE:g} below it; {DEPENDS}, above it in some streams and below in others. "
    f"{RECOMMENDED.capitalize()}: the safe method with the highest mean or, if none is safe, the best static one."
)


class StressNumbers(NamedTuple):
    """Of one method in one kind of stream, averaged over the OoD sets."""

    auroc: float
    fpr95_out: float


class StressResult(NamedTuple):
    """Rows of :func:`normscale.bench.experiments.stress.stress`, what they were made from, and by which version."""

    rows: list[Measurement]
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    version: str = __version__
    alarms: Sequence[Alarms] = ()
    """Shares flagged of streams without OoD rows."""

    @property
    def ood_sets(self) -> list[str]:
        """Names of the OoD sets, in order."""
        return list(dict.fromkeys(row.ood_set for row in self.rows))

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in order."""
        return list(self.titles)

    @property
    def titles(self) -> dict[str, str]:
        """What the methods are called in sentences."""
        return {row.method: row.title for row in self.rows}

    def in_setting(self, setting: str) -> list[str]:
        """Names of the methods that were measured in a setting."""
        return list(dict.fromkeys(row.method for row in self.rows if row.setting == setting))

    def means(self) -> dict[StreamKind, dict[str, StressNumbers]]:
        """Means over the OoD sets, by kind of stream and method; kinds that were skipped on every set are left out."""
        measured: dict[StreamKind, dict[str, list[Measurement]]] = {}
        for row in self.rows:
            if row.stream is not None and not row.skipped:
                measured.setdefault(row.stream, {}).setdefault(row.method, []).append(row)
        return {
            kind: {
                method: StressNumbers(fmean(row.auroc for row in rows), fmean(row.fpr95_out for row in rows))
                for method, rows in methods.items()
            }
            for kind, methods in measured.items()
        }

    def skipped(self) -> dict[str, int]:
        """Reasons why streams could not be made, and how many pairs of OoD set and stream each of them cost."""
        reasons = list({(row.ood_set, row.stream): row.skipped for row in self.rows if row.skipped}.values())
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
        running, frozen = self.in_setting(Setting.STREAM), self.in_setting(Setting.FROZEN)
        pairs = ((one, other) for one in running for other in frozen if detectors[other] == detectors[one])
        return next(pairs, None)

    def alarms_of_best(self) -> list[Alarms]:
        """The shares flagged by the running method that is advised or, if that is static, has the best mean."""
        known = {one.method for one in self.alarms}
        best = [one.method for one in summarise(self) if one.method in known] if known else []
        return [one for one in self.alarms if one.method == best[0]] if best else []

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON; :func:`load_stress` reads it back."""
        document = {"kind": KIND, "format": FORMAT, "fields": Measurement._fields, **self._asdict()}
        with atomic_path(path) as temporary:
            Path(temporary).write_text(write_json(document) + "\n", encoding="utf-8")


def load_stress(path: str | os.PathLike[str]) -> StressResult:
    """Read what :meth:`StressResult.save` wrote."""
    try:
        record = read_json(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileFormatError(f"no such file: {path}; `normscale stress -o {path}` would make it.") from None
    except ValueError as error:
        raise FileFormatError(f"{path} is not JSON ({error}); expected the rows of `normscale stress -o`.") from error
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise FileFormatError(f"{path} is JSON, but not the rows of a stress grid; `normscale stress -o` writes them.")
    try:
        if (record["format"], tuple(record.get("fields", ()))) != (FORMAT, Measurement._fields):
            raise ValueError(f"format {record['format']!r} of version {record['version']}, this is {__version__}")
        rows = [Measurement.from_json(dict(zip(Measurement._fields, values, strict=True))) for values in record["rows"]]
        alarms = tuple(Alarms(*values) for values in record.get("alarms", ()))
        return StressResult(rows, dict(record["settings"]), record["version"], alarms)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read by this version: {error}. Make it again.") from error


class MethodSummary(NamedTuple):
    """One method over all kinds of streams, each averaged over the OoD sets."""

    method: str
    worst: float
    """Its AUROC minus the best static method's, in the kind of stream where that is smallest."""
    worst_kind: StreamKind
    best: float
    """The same in the kind of stream where it is largest."""
    false_alarms: float | None
    """The largest share flagged of a stream of unchanged in-distribution rows, at a nominal 0.05; None if static."""
    change: float | None
    """By how much the share flagged of changed inputs is larger streamed than frozen, at most."""
    kinds_below: int
    """In how many kinds of streams it falls short of the best static method by more than 0.005."""
    n_kinds: int
    mean_auroc: float
    mean_fpr95_out: float
    verdict: str
    """By ``RULE``."""


def summarise(result: StressResult, statics: Sequence[str] | None = None) -> list[MethodSummary]:
    """Summarise every method of a grid that has numbers in all of its streams, best mean AUROC first.

    The others are held against the best of ``statics`` in a kind of stream, by default of all methods without running
    statistics.
    """
    result = result.without(result.incomplete())
    kinds, static = result.means(), result.in_setting(Setting.FROZEN)
    references = static if statics is None else statics
    statics_measured = [name for name in references if name in result.methods]
    if not kinds or not statics_measured:
        raise InvalidInput(
            "a summary needs a stream with numbers and one of the methods "
            f"{', '.join(references) or 'that do not run'}; got {len(kinds)} kinds of streams of "
            f"{', '.join(result.methods) or 'no method'}."
        )
    summaries = []
    for method in result.methods:
        differences = {
            kind: numbers[method].auroc - max(numbers[name].auroc for name in statics_measured)
            for kind, numbers in kinds.items()
        }
        worst, best = min(differences.values()), max(differences.values())
        own = [one for one in result.alarms if one.method == method]
        verdict = NO_GAIN if best <= WORTH else SAFE if worst >= -TOLERANCE else DEPENDS
        summaries.append(
            MethodSummary(
                method=method,
                worst=worst,
                worst_kind=min(differences, key=lambda kind: differences[kind]),
                best=best,
                false_alarms=max((one.streamed for one in own if one.stream in UNCHANGED), default=None),
                change=max((one.streamed - one.frozen for one in own if one.stream not in UNCHANGED), default=None),
                kinds_below=sum(difference < -TOLERANCE for difference in differences.values()),
                n_kinds=len(kinds),
                mean_auroc=fmean(numbers[method].auroc for numbers in kinds.values()),
                mean_fpr95_out=fmean(numbers[method].fpr95_out for numbers in kinds.values()),
                verdict=STATIC if method in static else verdict,
            )
        )
    return _with_recommendation(sorted(summaries, key=lambda one: -one.mean_auroc), result.settings.get("preferred"))


def _with_recommendation(summaries: list[MethodSummary], preferred: str | None) -> list[MethodSummary]:
    """Name the method to use; of static ones the preferred, where it is as good as the best."""
    safe, static = ([one for one in summaries if one.verdict == verdict] for verdict in (SAFE, STATIC))
    chosen = (safe or static or summaries)[0]
    if not safe:
        as_good = [one for one in static if one.method == preferred and chosen.mean_auroc - one.mean_auroc <= TOLERANCE]
        chosen = (as_good or [chosen])[0]
    return [one._replace(verdict=RECOMMENDED) if one is chosen else one for one in summaries]
