"""Compare detectors on tables: in memory in every setting, or piece by piece as fitted, where rows are too many."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from normscale import jobs
from normscale.bench.experiments.comparison import compare_with
from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.measuring import Measured, rows_to_score
from normscale.bench.experiments.methods import Method, title_under, uniquely_named
from normscale.detectors.base import Detector, Setting
from normscale.detectors.choosing import AUTO, default_detector
from normscale.detectors.registry import load_detector, make_detector
from normscale.errors import InvalidInput
from normscale.input_checks.tables import RowSketch, shared_names
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

SWAPPED = 0.4
"""If most detectors have a lower AUROC than that, the two sides are probably swapped."""


class ComparedTables(NamedTuple):
    """What is compared on: paths of tables."""

    id_test: Sequence[str]
    ood: Mapping[str, str]
    train: Sequence[str] = ()
    validation: Sequence[str] = ()


class TableComparison(NamedTuple):
    """Detectors compared on tables."""

    rows: list[Measurement]
    measured: list[Measured]
    """The same with the scores behind them."""
    id_test: ModelOutputs
    ood_sets: dict[str, ModelOutputs]
    train: ModelOutputs | None


class ComparisonProgress(NamedTuple):
    """What a comparison calls on the way."""

    total: Callable[[int], None]
    """With the rows that will be scored."""
    advance: Callable[[int, str], None]
    """With rows that were scored, and on what."""


def named_detectors(saved: Sequence[str], asked: Sequence[str]) -> dict[str, Detector | str]:
    """Detectors from files and as they are spelled, by name; of several of a kind one from a file has the file's name.

    ``auto`` stays a word until the training rows are known.
    """
    loaded = [load_detector(path) for path in saved]
    made = [one if one == AUTO else make_detector(one) for one in asked]
    times = Counter(_name(one) for one in (*loaded, *made))
    stems = [os.path.splitext(os.path.basename(path))[0] for path in saved]
    named = [(stem if times[one.name] > 1 else one.name, one) for stem, one in zip(stems, loaded, strict=True)]
    return uniquely_named([*named, *((_name(one), one) for one in made)])  # type: ignore[list-item, return-value]


def compare_tables(
    tables: ComparedTables,
    detectors: Mapping[str, Detector | str],
    *,
    seed: int,
    progress: ComparisonProgress,
    say: Callable[[str], object],
    **options: Any,
) -> TableComparison:
    """Read all tables and compare in every setting; ``options`` are those of :func:`normscale.jobs.read`."""
    fixed = {name: one for name, one in detectors.items() if isinstance(one, Detector)}
    names = shared_names((name, one.class_names) for name, one in fixed.items())
    reads = [name for one in fixed.values() for name in (*one.reads, *one.reads_in_fit)]
    reads += [FEATURES] * (len(fixed) < len(detectors))
    arrays = reads if detectors else None
    read: dict[str, ModelOutputs] = {}
    for kind, paths in {"train": tables.train, "id": tables.id_test, "validation": tables.validation}.items():
        if paths:
            source = jobs.RowSource(
                paths,
                None if arrays is None else [*arrays, LOGITS],
                class_names=names,
                probabilities=bool(options.get("probabilities")),
            )
            read[kind] = jobs.read(source, check_labels=True, say=say, **options)
            names = names or source.layout.class_names
    ood_sets = {
        name: jobs.read(path, arrays, class_names=names, say=say, **options) for name, path in tables.ood.items()
    }
    chosen = {name: one if isinstance(one, Detector) else _chosen(read, say) for name, one in detectors.items()}
    for text in _shared_rows(tables, read, ood_sets):
        say(text)
    measured: list[Measured] = []
    rows = compare_with(
        read["id"],
        ood_sets,
        train=read.get("train"),
        validation=read.get("validation"),
        detectors=uniquely_named((one.name if name == AUTO else name, one) for name, one in chosen.items()) or None,
        seed=seed,
        begin=lambda methods: progress.total(
            rows_to_score(methods, len(read["id"]), [len(one) for one in ood_sets.values()])
        ),
        advance=progress.advance,
        keep=measured.append,
    )
    return TableComparison(rows, measured, read["id"], ood_sets, read.get("train"))


def compare_in_pieces(
    tables: ComparedTables, detectors: Mapping[str, Detector | str], *, seed: int, **options: Any
) -> Iterator[tuple[Measurement, jobs.Skipped]]:
    """Compare as fitted on tables of any size; ``options`` are those of :func:`normscale.jobs.evaluate`."""
    for one in jobs.evaluate(
        tables.id_test,
        tables.ood,
        _require_detectors(detectors),
        train=tables.train,
        validation=tables.validation,
        **options,
    ):
        method = Method(one.method, one.detector, Setting.FROZEN, title_under(one.method, one.detector))
        sizes = {"n_id": one.result.n_id, "n_ood": one.result.n_ood}
        yield (
            Measurement.of(method, one.ood_set, one.result.metrics, **sizes, seconds=one.seconds, seed=seed),
            one.skipped,
        )


def _require_detectors(detectors: Mapping[str, Detector | str]) -> dict[str, Detector]:
    """Detectors that can be compared in pieces: at least one, and each of them named."""
    if not detectors:
        raise InvalidInput("in pieces, say which detectors to compare: --detector NAME or --saved FILE.")
    if AUTO in detectors.values():
        raise InvalidInput("auto chooses a detector by rows that are in memory; leave --engine out.")
    return {name: one for name, one in detectors.items() if isinstance(one, Detector)}


def swapped_sides(rows: Sequence[Measurement]) -> Iterator[str]:
    """Sentences on sets where most detectors take one side for the other; of many, a few are wrong about any set."""
    for name in dict.fromkeys(row.ood_set for row in rows):
        frozen = [row for row in rows if row.ood_set == name and row.setting == Setting.FROZEN and not row.skipped]
        found = sorted(row.auroc for row in frozen)
        if found and (middle := found[len(found) // 2]) < SWAPPED:  # the upper median: of two, both must be low
            most = sum(auroc <= middle for auroc in found)
            yield (
                f"{most} of {len(found)} detectors as fitted have an AUROC of {middle:.3f} or less on {name}, far "
                "below 0.5: the inputs of --id look stranger than those of --ood. Are the two swapped?"
            )


def _name(one: Detector | str) -> str:
    return one if isinstance(one, str) else one.name


def _chosen(read: Mapping[str, ModelOutputs], say: Callable[[str], object]) -> Detector:
    if "train" not in read:
        raise InvalidInput("-d auto chooses a detector for the rows of --train; give --train.")
    choice = default_detector(read["train"].names, head=read["train"].head is not None)
    say(f"auto: {choice.detector.name}, because {choice.reason}")
    return choice.detector


def _shared_rows(
    tables: ComparedTables, read: Mapping[str, ModelOutputs], ood_sets: Mapping[str, ModelOutputs]
) -> Iterator[str]:
    """Where the test set holds training rows, or an OoD set holds rows of the test set."""
    own, id_table = RowSketch.of(read["id"]), tables.id_test[0]
    if "train" in read:
        share = RowSketch.of(read["train"]).share_of(own)
        if share is not None and share > 0.5:
            yield (
                f"{100 * share:.0f} % of the rows of {id_table} are also in {tables.train[0]}. The classifier is surer "
                "of what it was trained on, so every detector looks better here than on new inputs."
            )
    for name, ood in ood_sets.items():
        share = own.share_of(RowSketch.of(ood))
        if share is not None and share > 0.5:
            yield f"{100 * share:.0f} % of the rows of {name} are also in {id_table}, which should be in-distribution."
