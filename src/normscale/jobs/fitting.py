"""Fit a detector on the rows of tables: one or many, here, on processes or on Ray, with the same bits."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from normscale.detectors.base import Detector
from normscale.detectors.baseline import why_little_is_learned, why_nothing_is_learned
from normscale.detectors.choosing import AUTO, default_detector
from normscale.detectors.partial_fit import Partial, PartialFit, merged
from normscale.detectors.registry import DEFAULT, as_detector
from normscale.detectors.simple_steps import MissingClasses, classes_in_training
from normscale.errors import InvalidInput, MissingOutput
from normscale.input_checks import RowSketch
from normscale.jobs.running import (
    Engine,
    JobOptions,
    Paths,
    ProgressCounter,
    Tick,
    merged_in_order,
    open_engine,
    run,
    say_all,
    with_defaults,
)
from normscale.jobs.sources import Layout, Piece, RowSource, Skipped, read
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

_TASKS_PER_WORKER = 8


class FitResult(NamedTuple):
    """A detector that was fitted on tables."""

    detector: Detector
    n_rows: int
    """Rows it was fitted on."""
    skipped: Skipped
    layout: Layout


def fit(
    paths: Paths,
    detector: str | Mapping[str, Any] | Detector | None = None,
    *,
    threshold_on: Paths | None = None,
    keep: float = 0.95,
    conformal: bool = False,
    per_class: bool = False,
    stream: bool = False,
    class_names: Sequence[str] | None = None,
    arrays: str | Sequence[str] | None = None,
    **options: Unpack[JobOptions],
) -> FitResult:
    """Fit a detector on the rows of tables; the same rows give the same bits in one file or in many.

    Parameters
    ----------
    paths : path, or several
        Files, folders and globs, here or in an object store; a pipe; ``sample:NAME``.
    detector : Detector, or how it is spelled, optional
        A detector given is fitted itself. By default, or as ``"auto"``, the one that
        :func:`~normscale.detectors.choosing.default_detector` has for the arrays of the rows. One that must see all
        rows at once gets them gathered in this process; others are fitted piece by piece.
    threshold_on : path, or several, optional
        In-distribution outputs that set the threshold; not the training set.
    keep, conformal, per_class, stream
        As in :meth:`~normscale.detectors.base.Detector.set_threshold`.
    class_names : sequence of str, optional
        Names of the classes, where the tables have none.
    arrays : str or sequence of str, optional
        What the default detector may read; ``["logits"]`` leaves features out. By default logits and features.
    **options
        See :class:`~normscale.jobs.JobOptions`.
    """
    job = with_defaults(options)
    say, engine = job["say"], job["engine"]
    found, names, source = _source_of(paths, detector, job, arrays)
    say_all(source.look(reads_logits=LOGITS in names, check_labels=True), say)
    model = found or default_detector(source.layout.widths, head=source.has_head)
    names = model._arrays_in_fit
    seen = _Seen(sketches=threshold_on is not None)
    pieces = source.row_pieces(job["piece_rows"])
    why = model._why_all_rows()
    if why and engine not in (None, "here"):
        say(f"{model.name} must see all rows at once ({why}), so they are read by this process, without workers")
    if why or (model._reads_again and len(pieces) == 1):
        reason = f"must see all rows at once ({why})" if why else "reads the rows more than once"
        skipped = _fit_gathered(model, seen, source, names, job, f"{model.name} {reason}")
    else:
        if engine not in (None, "here"):
            source.refuse_pieces("leave the engine out, or give files, folders, globs or s3:// paths")
        with open_engine(engine, workers=job["workers"], address=job["address"], n_tasks=len(pieces)) as opened:
            skipped = _fit_pieces(model, source, pieces, opened, seen, names, job["on_invalid"], job["tick"])
    model.class_names = _names(class_names, source.layout, source.path)
    if (useless := why_nothing_is_learned(model)) is not None:
        raise InvalidInput(useless)
    say_all(seen.remarks(model, source), say)
    if threshold_on is not None:
        held_out = read(threshold_on, names, class_names=model.class_names, reads_logits=LOGITS in names, **job)
        if missing := [name for name in model.reads if name not in held_out.names]:
            raise MissingOutput(
                f"{model.name} reads {' and '.join(missing)}; the rows for the threshold have "
                f"{', '.join(held_out.names)}. Give rows that have them, or "
                "pass arrays='logits' to fit on logits alone."
            )
        model.set_threshold(held_out, keep, conformal=conformal, per_class=per_class, stream=stream)
        say_all(_threshold_remarks(model, held_out, seen, source.path, threshold_on, stream=stream), say)
    return FitResult(model, seen.n_rows, skipped, source.layout)


def _source_of(
    paths: Paths,
    detector: str | Mapping[str, Any] | Detector | None,
    job: JobOptions,
    arrays: str | Sequence[str] | None = None,
) -> tuple[Detector | None, Sequence[str], RowSource]:
    """The detector, None for the default one; the arrays that it may read; the tables."""
    model = None
    if detector is not None and detector != AUTO:
        model = detector if isinstance(detector, Detector) else as_detector(detector)
    arrays = [arrays] if isinstance(arrays, str) else arrays
    names = (arrays or (LOGITS, FEATURES)) if model is None else model._arrays_in_fit
    source = RowSource(paths, [*names, LOGITS], probabilities=job["probabilities"])
    there = source.layout.widths
    if model is not None and (missing := [name for name in names if name not in there]):
        raise MissingOutput(
            f"{model.name} reads {' and '.join(missing)}; {source.path} has {', '.join(there)}. Give a table that has "
            "them, or choose another detector."
        )
    return model, names, source


def _fit_gathered(
    model: Detector, seen: _Seen, source: RowSource, names: Sequence[str], job: JobOptions, why: str
) -> Skipped:
    rows = source.rows(None, names, job["on_invalid"])
    advice = "give a sample of the rows, or choose a detector that is fitted in parts, such as norm_scaling or energy"
    gathered = rows.gathered(source.n_rows, job["memory"], why, advice, seen.watch)
    if gathered is None:
        raise InvalidInput(f"{why}, and there are no rows.")
    try:
        model._fit_chunks([gathered])
    except InvalidInput as error:
        raise rows.explain(error) from None
    return rows.skipped


class _FitJob(NamedTuple):
    fit: PartialFit
    source: RowSource
    names: Sequence[str]
    on_invalid: str
    sketches: bool


def _fit_pieces(
    model: Detector,
    source: RowSource,
    pieces: Sequence[Piece],
    engine: Engine,
    seen: _Seen,
    names: Sequence[str],
    on_invalid: str,
    tick: Tick | None,
) -> Skipped:
    """Fit on pieces, by an engine: what every piece tells, merged as a tree of fixed shape.

    A task is a subtree, so that little has to be sent. The rows may have to be read again.
    """
    learning = PartialFit(model)
    step = 1
    while len(pieces) // (2 * step) >= _TASKS_PER_WORKER * engine.workers:
        step *= 2
    tasks = [pieces[i : i + step] for i in range(0, len(pieces), step)]
    while not learning.done:
        job = _FitJob(learning, source, names, on_invalid, seen.sketch is not None)
        found = run(engine, _fit_task, job, tasks, ProgressCounter(f"fitting {model.name}", len(tasks), tick))
        learning.finish(merged_in_order([partial for partial, _, _ in found], merged))
    for _, _, own in found:
        seen.take_over(own)
    return sum((skipped for _, skipped, _ in found), Skipped())


def _fit_task(job: _FitJob, pieces: Sequence[Piece]) -> tuple[tuple[Partial, Skipped, _Seen], int]:
    """What neighbouring pieces tell together, and how many rows were read: runs in a worker."""
    skipped, seen = Skipped(), _Seen(sketches=job.sketches)
    partials = []
    for piece in pieces:
        rows = job.source.rows(piece, job.names, job.on_invalid)
        try:
            partials.append(job.fit.partial(seen.watch(rows)))
        except InvalidInput as error:
            raise rows.explain(error) from None
        skipped += rows.skipped
    return (merged_in_order(partials, merged), skipped, seen), seen.n_rows + skipped.n


class _Seen:
    """The training rows that went by, as far as they matter to remarks on the fit."""

    def __init__(self, *, sketches: bool) -> None:
        self.n_rows = 0
        self.labels: set[int] = set()
        self.sketch = RowSketch() if sketches else None

    def take_over(self, other: _Seen) -> None:
        """Add what a task saw."""
        self.n_rows += other.n_rows
        self.labels |= other.labels
        if self.sketch is not None and other.sketch is not None:
            self.sketch.merge(other.sketch)

    def watch(self, chunks: Iterable[ModelOutputs]) -> Iterator[ModelOutputs]:
        """Pass the chunks on."""
        for chunk in chunks:
            self.n_rows += len(chunk)
            if chunk.labels is not None:
                self.labels.update(np.unique(chunk.labels[chunk.labels >= 0]).tolist())
            if self.sketch is not None:
                self.sketch.take_in(chunk.array(chunk.names[0]))
            yield chunk

    def remarks(self, model: Detector, source: RowSource) -> Iterator[str]:
        """What is odd about the rows, for this detector."""
        yield from self._missing_classes(model)
        if (why := why_little_is_learned(model)) is not None:
            yield why
        n_classes = source.layout.n_classes
        if n_classes is not None and n_classes > 4 * self.n_rows > 4:
            yield (
                f"{source.path} has {self.n_rows} rows of {n_classes} classes. Did rows and columns change places? A "
                "row is an input, a column a class: logits.T turns them."
            )

    def _missing_classes(self, model: Detector) -> Iterator[str]:
        """Classes that no row shows: by labels where there are any, else by predictions."""
        if model._baseline is None or not self.n_rows or not model._needs_fit:
            return
        shown = classes_in_training(model._baseline, self.labels)
        missing = MissingClasses.of(model._baseline, shown)
        if missing is None:
            return
        by = "labels" if self.labels else "predicted classes"
        seen = f"the rows show {int(shown.sum())} of {shown.size} classes ({by})"
        less, typical = missing.deviations
        if missing.by_chance:
            yield (
                f"{seen}, {missing.rows_per_class:.3g} rows for each of these: too few to say that the others are "
                "missing. Pass ten rows a class or more."
            )
        elif missing.left_out and model._runs:
            yield (
                f"{seen}. The logits of the others vary less on these rows (standard deviation {less:.3g} against "
                f"{typical:.3g}), so norm-scaling takes what OoD inputs do to them for certainty; {DEFAULT} leaves "
                "them out."
            )


def _threshold_remarks(
    model: Detector, held_out: ModelOutputs, seen: _Seen, train: str, threshold_on: Paths, *, stream: bool
) -> Iterator[str]:
    """Where the threshold was set on training rows, or would flag many rows of a stream."""
    share = None if seen.sketch is None else seen.sketch.share_of(RowSketch.of(held_out))
    if share is not None and share > 0.5:
        where = threshold_on if isinstance(threshold_on, (str, os.PathLike)) else next(iter(threshold_on))
        yield (
            f"{100 * share:.0f} % of the rows of {where} are also in {train}. A classifier is surer of what it was "
            "trained on, so more new inputs than asked for will be flagged; set the threshold on inputs that neither "
            "the classifier nor the detector was trained on."
        )
    limit = model.threshold_
    if stream or not model._runs or limit is None or limit.keep is None:
        return
    flagged = float(model.predict(held_out, scores=copy.copy(model).stream(held_out)).mean())
    if flagged > 2.0 * (1.0 - limit.keep) + 0.05:
        yield (
            f"the threshold is for scores as fitted; of the same rows {100 * flagged:.0f} % would be flagged in a "
            "stream. Pass stream=True to set it on streamed scores."
        )


def _names(given: Sequence[str] | None, layout: Layout, path: str) -> tuple[str, ...] | None:
    names = tuple(given) if given else layout.class_names
    if names is not None and len(names) != layout.n_classes:
        known = "the table tells of no classes" if layout.n_classes is None else f"name {layout.n_classes} classes"
        raise InvalidInput(f"class_names: {known}; got {len(names)}.")
    if given and layout.class_names is not None and names != layout.class_names:
        raise InvalidInput(
            f"class_names: {', '.join(names or ())} are given, and the columns of {path} are called "
            f"{', '.join(layout.class_names)}. Columns are matched by name, so give no names, or rename the columns."
        )
    return names
