"""Fit a detector on the rows of tables: one or many, here, on processes or on Ray, with the same bits."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from normscale.detectors.base import Detector
from normscale.detectors.baseline import why_classes_are_missing, why_little_is_learned, why_nothing_is_learned
from normscale.detectors.choosing import AUTO, default_detector
from normscale.detectors.partial_fit import Partial, PartialFit, merged
from normscale.detectors.registry import as_detector
from normscale.errors import InvalidInput, MissingOutput
from normscale.input_checks import RowSketch
from normscale.jobs.running import (
    Engine,
    JobOptions,
    Paths,
    ProgressCounter,
    Tick,
    open_engine,
    run,
)
from normscale.jobs.sources import Layout, MemoryBound, Piece, PieceRows, RowSource, Skipped, read
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

_TASKS_PER_WORKER = 8
Value = TypeVar("Value")


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
    **options: Any,
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
    job = JobOptions(**options)
    model = None if detector is None or detector == AUTO else detector
    if isinstance(model, (str, Mapping)):
        model = as_detector(model)
    names = ((arrays,) if isinstance(arrays, str) else arrays) or (LOGITS, FEATURES)
    names = names if model is None else model._arrays_in_fit
    source = RowSource(paths, [*names, LOGITS], probabilities=job.probabilities)
    there = source.layout.widths
    if model is not None and (missing := [name for name in names if name not in there]):
        raise MissingOutput(
            f"{model.name} reads {' and '.join(missing)}; {source.path} has {', '.join(there)}. Give a table that has "
            "them, or choose another detector."
        )
    source.look(job.say, reads_logits=LOGITS in names, check_labels=True)
    model = model or default_detector(there, head=source.has_head)
    names = model._arrays_in_fit
    task = _FitJob(source, names, job.on_invalid, threshold_on is not None)
    pieces, why = source.row_pieces(job.piece_rows), model._why_all_rows()
    if why and job.engine not in (None, "here"):
        job.say(f"{model.name} must see all rows at once ({why}), so they are read by this process, without workers")
    if why or (model._reads_again and len(pieces) == 1):
        reason = f"must see all rows at once ({why})" if why else "reads the rows more than once"
        seen = _fit_gathered(model, task, job.memory, f"{model.name} {reason}")
    else:
        if job.engine not in (None, "here"):
            source.refuse_pieces("leave the engine out, or give files, folders, globs or s3:// paths")
        with open_engine(job.engine, workers=job.workers, address=job.address, n_tasks=len(pieces)) as engine:
            seen = _fit_pieces(model, task, pieces, engine, job.tick)
    model.class_names = _names(class_names, source.layout, source.path)
    if (useless := why_nothing_is_learned(model)) is not None:
        raise InvalidInput(useless)
    for remark in _remarks(model, seen, source):
        job.say(remark)
    if threshold_on is not None:
        held_out = read(threshold_on, names, class_names=model.class_names, reads_logits=LOGITS in names, **vars(job))
        if missing := [name for name in model.reads if name not in held_out.names]:
            raise MissingOutput(
                f"{model.name} reads {' and '.join(missing)}; the rows for the threshold have "
                f"{', '.join(held_out.names)}. Give rows that have them, or "
                "pass arrays='logits' to fit on logits alone."
            )
        model.set_threshold(held_out, keep, conformal=conformal, per_class=per_class, stream=stream)
        for remark in _threshold_remarks(model, held_out, seen, source.path, threshold_on, stream=stream):
            job.say(remark)
    return FitResult(model, seen.n_rows, seen.skipped, source.layout)


class _FitJob(NamedTuple):
    """What all tasks of a fit share."""

    source: RowSource
    names: Sequence[str]
    on_invalid: str
    sketches: bool
    fit: PartialFit | None = None

    def rows(self, piece: Piece | None) -> PieceRows:
        """The rows of a piece, or all."""
        return self.source.rows(piece, self.names, self.on_invalid)


class _Seen:
    """The training rows that were read, as far as they matter to remarks on the fit."""

    def __init__(self, *, sketches: bool) -> None:
        self.n_rows, self.skipped = 0, Skipped()
        self.labels: set[int] = set()
        self.sketch = RowSketch() if sketches else None

    def watch(self, chunks: Iterable[ModelOutputs]) -> Iterator[ModelOutputs]:
        """Pass the chunks on."""
        for chunk in chunks:
            self.n_rows += len(chunk)
            if chunk.labels is not None:
                self.labels.update(np.unique(chunk.labels[chunk.labels >= 0]).tolist())
            if self.sketch is not None:
                self.sketch.take_in(chunk.array(chunk.names[0]))
            yield chunk

    def merge(self, other: _Seen) -> _Seen:
        """Add the rows that another task read."""
        self.n_rows, self.skipped = self.n_rows + other.n_rows, self.skipped + other.skipped
        self.labels |= other.labels
        if self.sketch is not None and other.sketch is not None:
            self.sketch.merge(other.sketch)
        return self


def _fit_gathered(model: Detector, job: _FitJob, memory: int | str | None, why: str) -> _Seen:
    """Fit on all rows in one place, within a bound of memory."""
    rows, seen = job.rows(None), _Seen(sketches=job.sketches)
    advice = "give a sample of the rows, or choose a detector that is fitted in parts, such as norm_scaling or energy"
    gathered = rows.gathered(job.source.n_rows, MemoryBound(memory, why, advice), seen.watch)
    if gathered is None:
        raise InvalidInput(f"{why}, and there are no rows.")
    with rows.explained():
        model._fit_chunks([gathered])
    seen.skipped = rows.skipped
    return seen


def _fit_pieces(model: Detector, job: _FitJob, pieces: Sequence[Piece], engine: Engine, tick: Tick | None) -> _Seen:
    """Fit on pieces, by an engine: what every piece tells, merged as a tree of fixed shape.

    A task is a subtree, so that little has to be sent. The rows may have to be read again.
    """
    learning = PartialFit(model)
    step = 1
    while len(pieces) // (2 * step) >= _TASKS_PER_WORKER * engine.workers:
        step *= 2
    tasks = [pieces[i : i + step] for i in range(0, len(pieces), step)]
    while not learning.done:
        counter = ProgressCounter(f"fitting {model.name}", len(tasks), tick)
        parts: list[tuple[Partial, _Seen]] = run(engine, _fit_task, job._replace(fit=learning), tasks, counter)
        total, seen = merged_in_order(parts, merged)
        learning.finish(total)
    return seen


def _fit_task(job: _FitJob, pieces: Sequence[Piece]) -> tuple[tuple[Partial, _Seen], int]:
    """What neighbouring pieces tell together, and how many rows were read: runs in a worker."""
    assert job.fit is not None
    found = []
    for piece in pieces:
        rows, seen = job.rows(piece), _Seen(sketches=job.sketches)
        with rows.explained():
            partial = job.fit.partial(seen.watch(rows))
        seen.skipped = rows.skipped
        found.append((partial, seen))
    total, seen = merged_in_order(found, merged)
    return (total, seen), seen.n_rows + seen.skipped.n


def _remarks(model: Detector, seen: _Seen, source: RowSource) -> Iterator[str]:
    """What is odd about the training rows, for this detector."""
    yield from filter(None, (why_classes_are_missing(model, seen.labels), why_little_is_learned(model)))
    n_classes = source.layout.n_classes
    if n_classes is not None and n_classes > 4 * seen.n_rows > 4:
        yield (
            f"{source.path} has {seen.n_rows} rows of {n_classes} classes. Did rows and columns change places? A row "
            "is an input, a column a class: logits.T turns them."
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


def merged_in_order(values: Sequence[Value], merge: Callable[[Value, Value], Value]) -> Value:
    """Merge values two neighbours at a time, as a tree whose shape depends on their number alone: always the same bits.

    Examples
    --------
    >>> merged_in_order("abcde", lambda a, b: f"({a}{b})")
    '(((ab)(cd))e)'
    """
    while len(values) > 1:
        pairs = [merge(values[i], values[i + 1]) for i in range(0, len(values) - 1, 2)]
        values = [*pairs, *values[2 * len(pairs) :]]
    return values[0]
