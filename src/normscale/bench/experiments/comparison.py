"""Compare detectors on the same outputs, one in-distribution test set and any number of OoD sets: arrays or tables."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from statistics import fmean
from typing import Any, NamedTuple

from normscale import jobs
from normscale._progress import bar
from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.measuring import Measured, measure
from normscale.bench.experiments.methods import (
    Method,
    default_methods,
    every_setting,
    fit_on,
    make_for,
    title_under,
    training_rows,
    uniquely_named,
)
from normscale.dataframes import read_dataframe
from normscale.detectors.base import Detector, OutputsLike, Setting
from normscale.detectors.choosing import AUTO
from normscale.detectors.registry import load_detector, make_detector
from normscale.errors import InvalidInput
from normscale.input_checks import RowSketch
from normscale.outputs import FEATURES, LOGITS, ModelOutputs, as_outputs, is_dataframe
from normscale.rows.columns import shared_names

Detectors = Sequence[Detector | str] | Mapping[str, Detector | str]
FULL_SPECTRUM = "full spectrum"
"""The in-distribution side that holds shifted inputs too."""
SWAPPED = 0.4
"""If most detectors have a lower AUROC than that, the two sides are probably swapped."""


def compare(
    id_test: OutputsLike,
    ood_sets: Mapping[str, OutputsLike],
    *,
    train: OutputsLike | None = None,
    validation: OutputsLike | None = None,
    detectors: Detectors | None = None,
    shifted: Sequence[OutputsLike] = (),
    seed: int = 0,
) -> list[Measurement]:
    """Fit what needs fitting, score both sides in every setting of every detector, evaluate.

    Parameters
    ----------
    id_test, train, validation : ModelOutputs, array, tensor, mapping or DataFrame
        Outputs on inputs of training's kind that are new, that detectors are fitted on, and that are labelled and held
        out. An array is logits. Columns of DataFrames are matched by name.
    detectors : detectors to compare or their names, or a mapping of what to call them to either; optional
        Fitted ones are used as they are; ``"auto"`` is what :func:`normscale.fit` chooses for ``train``; by default
        every registered one that the outputs suffice for.
    shifted : sequence of outputs
        Outputs on inputs of training's classes that look different, such as corrupted pictures. Where there are any,
        all is measured once more with them on the in-distribution side, in rows with the ``in_set`` "full spectrum".

    Returns
    -------
    list of Measurement
        What cannot be computed has NaN for numbers, and ``skipped`` says why. A detector that was asked for and cannot
        be fitted is an error; one that was only tried is skipped.

    Examples
    --------
    >>> import normscale as ns
    >>> sample = ns.load_sample()
    >>> rows = compare(sample.test, {"noise": sample.ood["uniform_noise"]}, detectors=[ns.MSP(), "energy"])
    >>> [(row.method, round(row.auroc, 3)) for row in rows]
    [('msp', 0.882), ('energy', 0.886)]
    """
    measured = compare_each(id_test, ood_sets, train, validation, detectors, seed, shifted=shifted)
    return [one.record for one in _by_set(measured)]


def compare_each(
    id_test: OutputsLike,
    ood_sets: Mapping[str, OutputsLike],
    train: OutputsLike | None = None,
    validation: OutputsLike | None = None,
    detectors: Detectors | None = None,
    seed: int = 0,
    *,
    shifted: Sequence[OutputsLike] = (),
) -> Iterator[Measured]:
    """:func:`compare` with the scores behind each record, detector by detector: only one is in memory at a time."""
    given = [] if detectors is None else _with_names(detectors)
    names = shared_names((one.name, one.class_names) for _, one in given if isinstance(one, Detector))

    def read(value: OutputsLike) -> ModelOutputs:
        """The columns of every DataFrame come in the order of the first names."""
        nonlocal names
        if not is_dataframe(value):
            return as_outputs(value)
        outputs, own_names = read_dataframe(value, class_names=names)
        names = names or own_names
        return outputs

    to_fit, held_out = (None if one is None else read(one) for one in (train, validation))
    test = read(id_test)
    sides = {"": test}
    if shifted:
        sides[FULL_SPECTRUM] = ModelOutputs.concatenate([test, *map(read, shifted)])
    sets = {name: read(ood) for name, ood in ood_sets.items()}
    if detectors is None:
        given = _with_names(default_methods(to_fit, held_out, present=[test, *sets.values()]))
    made = [(name, one if isinstance(one, Detector) else make_for(one, to_fit)) for name, one in given]
    chosen = uniquely_named((one.name if name in (None, AUTO) else name, one) for name, one in made)
    if detectors is not None:
        for detector in chosen.values():
            training_rows(detector, to_fit, held_out)  # what cannot be fitted is said before the others are measured
    with bar("comparing", len(chosen)) as line:
        for name, detector in chosen.items():
            line.advance(0, f"{name} ({detector.about.cost})")  # said before it begins
            methods = every_setting(name, detector)
            try:
                fitted = fit_on(detector, to_fit, held_out)
            except InvalidInput as error:
                if detectors is not None:
                    raise
                for (in_set, side), (ood_set, ood), method in product(sides.items(), sets.items(), methods):
                    counts: Any = {"n_id": len(side), "n_ood": len(ood)}
                    yield Measured(Measurement.of(method, ood_set, in_set=in_set, skipped=str(error), **counts), None)
            else:
                methods = [method._replace(detector=fitted) for method in methods]
                for in_set, side in sides.items():
                    for one in measure(methods, side, sets, in_set=in_set, seed=seed):
                        streamed = one.record.setting == Setting.STREAM
                        yield one if streamed else one._replace(record=one.record._replace(seed=None))
                del fitted, methods  # before the next detector is fitted: it may be as large as the training rows
            line.advance()


def _by_set(measured: Iterable[Measured]) -> list[Measured]:
    """The records of each in-distribution side and OoD set together."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for one in measured:
        groups.setdefault((one.record.in_set, one.record.ood_set), []).append(one)
    return list(chain(*groups.values()))


def _with_names(detectors: Detectors | Detector | str) -> list[tuple[str | None, Detector | str]]:
    """Detectors, or how they are spelled, each with the name that was given for it."""
    if isinstance(detectors, Mapping):
        return list(detectors.items())
    return [(None, one) for one in ([detectors] if isinstance(detectors, (str, Detector)) else detectors)]


class ComparedTables(NamedTuple):
    """What is compared on: paths of tables."""

    id_test: Sequence[str]
    ood: Mapping[str, str]
    train: Sequence[str] = ()
    validation: Sequence[str] = ()
    shifted: Sequence[str] = ()


class TableComparison(NamedTuple):
    """Detectors compared on tables."""

    measured: list[Measured]
    id_test: ModelOutputs
    ood_sets: dict[str, ModelOutputs]
    train: ModelOutputs | None

    @property
    def rows(self) -> list[Measurement]:
        """The records."""
        return [one.record for one in self.measured]


def named_detectors(saved: Sequence[str], asked: Sequence[str]) -> dict[str, Detector | str]:
    """Detectors from files and as they are spelled, by name; of several of a kind one from a file has the file's name.

    ``auto`` stays a word until the training rows are known.
    """
    loaded = [load_detector(path) for path in saved]
    made = [one if one == AUTO else make_detector(one) for one in asked]
    times = Counter(AUTO if isinstance(one, str) else one.name for one in (*loaded, *made))
    stems = [os.path.splitext(os.path.basename(path))[0] for path in saved]
    named = [(stem if times[one.name] > 1 else one.name, one) for stem, one in zip(stems, loaded, strict=True)]
    return uniquely_named([*named, *((AUTO if isinstance(one, str) else one.name, one) for one in made)])


def compare_tables(
    tables: ComparedTables,
    detectors: Mapping[str, Detector | str],
    *,
    seed: int,
    say: Callable[[str], object],
    **options: Any,
) -> TableComparison:
    """Read all tables and compare in every setting; ``options`` are those of :func:`normscale.jobs.read`."""
    options["advice"] = "give a sample of the rows, or compare in pieces: --engine local"
    fixed = {name: one for name, one in detectors.items() if isinstance(one, Detector)}
    names = shared_names((name, one.class_names) for name, one in fixed.items())
    reads = [name for one in fixed.values() for name in one._arrays_in_fit]
    arrays = [*reads, *[FEATURES] * (len(fixed) < len(detectors))] if detectors else None
    read: dict[str, ModelOutputs] = {}
    parts = {"train": tables.train, "id": tables.id_test, "validation": tables.validation, "shifted": tables.shifted}
    for part, paths in parts.items():
        if paths:
            source = jobs.RowSource(
                paths,
                None if arrays is None else [*arrays, LOGITS],
                class_names=names,
                probabilities=bool(options.get("probabilities")),
            )
            read[part] = jobs.read(source, check_labels=True, say=say, **options)
            names = names or source.layout.class_names
    ood_sets = {
        name: jobs.read(path, arrays, class_names=names, say=say, **options) for name, path in tables.ood.items()
    }
    train = read.get("train")
    if AUTO in detectors.values():
        chosen = make_for(AUTO, train)
        say(f"auto: {chosen.name}, {chosen.about.reason}")
    for text in _shared_rows(tables, read["id"], train, ood_sets):
        say(text)
    measured = compare_each(
        read["id"],
        ood_sets,
        train=train,
        validation=read.get("validation"),
        detectors=detectors or None,
        seed=seed,
        shifted=[read["shifted"]] if "shifted" in read else [],
    )
    return TableComparison(_by_set(measured), read["id"], ood_sets, train)


def compare_in_pieces(
    tables: ComparedTables, detectors: Mapping[str, Detector | str], *, seed: int, **options: Any
) -> Iterator[tuple[Measurement, jobs.Skipped]]:
    """Compare as fitted on tables of any size; ``options`` are those of :func:`normscale.jobs.evaluate`."""
    if not detectors:
        raise InvalidInput("in pieces, say which detectors to compare: --detector NAME or --saved FILE.")
    own: Any = {"train": tables.train, "validation": tables.validation}
    for one in jobs.evaluate(tables.id_test, tables.ood, dict(detectors), **own, **options):
        method = Method(one.method, one.detector, Setting.FROZEN, title_under(one.method, one.detector))
        sizes = {"n_id": one.result.n_id, "n_ood": one.result.n_ood}
        row = Measurement.of(method, one.ood_set, one.result.metrics, **sizes, seconds=one.seconds, seed=seed)
        yield row, one.skipped


def group_means(rows: Sequence[Measurement], groups: Mapping[str, Sequence[str]]) -> list[Measurement]:
    """A row for the mean over each group of OoD sets, of each method and in-distribution side that has them all."""
    means: list[Measurement] = []
    for group, names in groups.items():
        by_method: dict[tuple[str, str, str], list[Measurement]] = {}
        for row in rows:
            if row.ood_set in names and not row.skipped:
                by_method.setdefault((row.in_set, row.method, row.setting), []).append(row)
        for some in by_method.values():
            if len(some) == len(names):
                mean = {metric: fmean(row.metrics[metric] for row in some) for metric in some[0].metrics}
                n, seconds = sum(row.n_ood for row in some), sum(row.seconds for row in some)
                name = f"{group} (mean of {', '.join(names)})"
                means.append(some[0]._replace(ood_set=name, metrics=mean, n_ood=n, seconds=seconds))
    return means


def swapped_sides(rows: Sequence[Measurement]) -> Iterator[str]:
    """Sentences on sets where most detectors take one side for the other; of many, a few are wrong about any set."""
    frozen_rows = [row for row in rows if row.setting == Setting.FROZEN and not row.skipped and not row.in_set]
    for name in dict.fromkeys(row.ood_set for row in frozen_rows):
        frozen = [row for row in frozen_rows if row.ood_set == name]
        aurocs = sorted(row.auroc for row in frozen)
        if aurocs and (middle := aurocs[len(aurocs) // 2]) < SWAPPED:  # the upper median: of two, both must be low
            most = sum(auroc <= middle for auroc in aurocs)
            yield (
                f"{most} of {len(aurocs)} detectors as fitted have an AUROC of {middle:.3f} or less on {name}, far "
                "below 0.5: the inputs of --id look stranger than those of --ood. Are the two swapped?"
            )


def _shared_rows(
    tables: ComparedTables, test: ModelOutputs, train: ModelOutputs | None, ood_sets: Mapping[str, ModelOutputs]
) -> Iterator[str]:
    """Sentences on a test set that holds training rows, and on OoD sets that hold rows of the test set."""
    own, id_table = RowSketch.of(test), tables.id_test[0]
    share = None if train is None else RowSketch.of(train).share_of(own)
    if share is not None and share > 0.5:
        yield (
            f"{100 * share:.0f} % of the rows of {id_table} are also in {tables.train[0]}. The classifier is surer "
            "of what it was trained on, so every detector looks better here than on new inputs."
        )
    for name, ood in ood_sets.items():
        share = own.share_of(RowSketch.of(ood))
        if share is not None and share > 0.5:
            yield f"{100 * share:.0f} % of the rows of {name} are also in {id_table}, which should be in-distribution."
