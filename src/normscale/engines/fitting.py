"""Fit a detector on many files: what every piece tells, merged as a tree of fixed shape."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from normscale._validate import ON_INVALID, one_of
from normscale.detectors.base import Detector
from normscale.detectors.partial_fit import Partial, PartialFit
from normscale.detectors.registry import as_detector
from normscale.engines.invalid_rows import GoodRows, Skipped, naming_the_row
from normscale.engines.merging import MergeTree, merged, subtree_level
from normscale.engines.pieces import PIECE_ROWS, Layout, Piece, Pieces, plan_pieces, read_piece
from normscale.engines.spreading import Engine, open_engine
from normscale.engines.watching import ProgressCounter, Tick
from normscale.outputs import LOGITS, ModelOutputs

_TASKS_PER_WORKER = 8

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class FitResult(NamedTuple):
    """A detector that was fitted on many files."""

    detector: Detector
    n_rows: int
    """Rows it was fitted on."""
    skipped: Skipped
    layout: Layout
    labels: frozenset[int] = frozenset()
    """The classes that some label names; empty where the files have no labels."""


class _FitJob(NamedTuple):
    fit: PartialFit
    layout: Layout
    names: tuple[str, ...]
    on_invalid: str


def fit(
    paths: Paths,
    detector: str | Mapping[str, Any] | Detector,
    *,
    engine: str | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    on_invalid: str = "raise",
    piece_rows: int = PIECE_ROWS,
    tick: Tick | None = None,
) -> FitResult:
    """Fit a detector on the rows of many files; the same files give the same bits on every engine.

    Parameters
    ----------
    paths : path, or several
        Files, folders and globs, here or in an object store; see :func:`~normscale.engines.locations.find_files`.
    detector : Detector, or its name
        One whose fit can be merged; what must see all rows is refused and says why. A detector given is fitted itself.
        The names of the columns of logits become its ``class_names``.
    engine, workers, address
        As in :func:`~normscale.engines.spreading.open_engine`.
    on_invalid : {"raise", "skip"}
        What to do with a row that holds NaN or infinity: refuse, or leave it out, counted and listed.
    piece_rows : int
        Rows of a piece; it decides the last bits of the result and the memory of a worker.
    tick : callable, optional
        Told of the progress.

    Returns
    -------
    FitResult
    """
    one_of(on_invalid, "on_invalid", ON_INVALID)
    model = detector if isinstance(detector, Detector) else as_detector(detector)
    learning = PartialFit(model)
    names = (*model.reads, *model.reads_in_fit)
    plan = plan_pieces(paths, [*names, LOGITS], piece_rows=piece_rows)
    with open_engine(engine, workers=workers, address=address) as opened:
        done, reading = False, 1
        while not done:
            doing = f"fitting {model.name}" + (f", reading {reading}" if reading > 1 else "")
            job = _FitJob(learning, plan.layout, names, on_invalid)
            total, skipped, labels = _one_reading(job, plan, opened, doing, tick)
            done = learning.finish(total)
            reading += 1
    model.class_names = plan.layout.class_names
    return FitResult(model, total.n_rows, skipped, plan.layout, labels)


def _one_reading(
    job: _FitJob, plan: Pieces, engine: Engine, doing: str, tick: Tick | None
) -> tuple[Partial, Skipped, frozenset[int]]:
    """What all rows tell. A task is a subtree, so that little has to be sent."""
    level = subtree_level(len(plan.pieces), _TASKS_PER_WORKER * engine.workers)
    step = 1 << level
    tasks = [plan.pieces[i : i + step] for i in range(0, len(plan.pieces), step)]
    tree = MergeTree(len(tasks), job.fit.merge)
    counter = ProgressCounter(doing, len(plan.pieces), plan.n_bytes, tick)
    skipped: list[Skipped] = [Skipped()] * len(tasks)
    labels: frozenset[int] = frozenset()
    for place, (found, left_out, own_labels) in engine.map(_fit_pieces, job, tasks):
        tree.put(place, found)
        labels |= own_labels
        skipped[place] = left_out
        pieces = tasks[place]
        counter.add(len(pieces), found.n_rows + left_out.n, sum(piece.n_bytes for piece in pieces))
    return tree.total(), sum(skipped, Skipped()), labels


class _LabelsSeen:
    """Notes which classes the labels of passing chunks name."""

    def __init__(self) -> None:
        self.classes: set[int] = set()

    def watch(self, chunks: Iterable[ModelOutputs]) -> Iterator[ModelOutputs]:
        for chunk in chunks:
            if chunk.labels is not None:
                self.classes.update(np.unique(chunk.labels[chunk.labels >= 0]).tolist())
            yield chunk


def _fit_all(job: _FitJob, piece: Piece, seen: _LabelsSeen) -> Partial:
    return job.fit.partial(seen.watch(read_piece(piece, job.layout)))


def _fit_pieces(job: _FitJob, pieces: Sequence[Piece]) -> tuple[Partial, Skipped, frozenset[int]]:
    """What neighbouring pieces tell together: runs in a worker."""
    skipped = Skipped()
    partials = []
    seen = _LabelsSeen()
    for piece in pieces:
        if job.on_invalid == "skip":
            rows = GoodRows(piece, job.layout, job.names)
            partials.append(job.fit.partial(seen.watch(rows)))
            skipped += rows.skipped
        else:
            work = partial(_fit_all, job, piece, seen)
            partials.append(naming_the_row(piece, job.layout, job.names, work))
    return merged(partials, job.fit.merge), skipped, frozenset(seen.classes)
