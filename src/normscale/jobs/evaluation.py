"""Rank scores that fit on no machine, exactly: every range of scores is sorted by one worker."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from normscale._validate import ON_INVALID, FloatArray, IntArray, exact_share, one_of
from normscale.errors import InvalidInput
from normscale.jobs.merging import MergeTree, merged, subtree_level
from normscale.jobs.score_bins import ScoreCounts, Sketch, bins_of, cumulative, splitters
from normscale.jobs.score_pieces import ScorePiece, plan_scores, read_scores
from normscale.jobs.sources import PIECE_ROWS, Paths, Skipped
from normscale.jobs.spreading import Engine, open_engine
from normscale.jobs.watching import ProgressCounter, Tick
from normscale.metrics.metric import RankingQuestion, Values
from normscale.metrics.ranking import RankingResult

RANGE_SCORES = 1 << 22
"""Scores that a worker sorts at once: 32 MB."""
_RANGE_BINS = 1 << 12
_SAMPLES = 1 << 19
_FEWEST_SAMPLES = 1024
_GROUPS = 1 << 16


class ScoresEvaluation(NamedTuple):
    """How well scores in files tell OoD inputs from others."""

    result: RankingResult
    skipped: Skipped


class _CountJob(NamedTuple):
    column: str
    on_invalid: str
    samples: int
    edges: FloatArray


class _Range(NamedTuple):
    """Neighbouring bins, and how many scores are below them."""

    id_below: int
    ood_below: int


class _RangeJob(NamedTuple):
    counting: _CountJob
    range_of_bin: IntArray
    """-1: a bin of equal scores that needs no sorting."""
    n_ranges: int
    is_ood: list[bool]
    """Of every task."""
    question: RankingQuestion


def rank_scores(
    id_paths: Paths,
    ood_paths: Paths,
    *,
    tpr: float = 0.95,
    column: str = "score",
    engine: str | Engine | None = None,
    workers: int | None = None,
    address: str | None = None,
    on_invalid: str = "raise",
    piece_rows: int = PIECE_ROWS,
    range_scores: int = RANGE_SCORES,
    tick: Tick | None = None,
) -> ScoresEvaluation:
    """Measure how well scores in Parquet files tell OoD inputs (high) from in-distribution inputs (low).

    Parameters
    ----------
    id_paths, ood_paths : path, or several
        Folders that :func:`~normscale.jobs.score` wrote, or other files, folders and globs of .parquet files.
    tpr : float in (0, 1]
        The true positive rate at which ``fpr95_out`` and ``fpr95_in`` are read.
    column : str
        Which column holds the scores.
    engine, workers, address
        As in :func:`~normscale.jobs.spreading.open_engine`.
    on_invalid : {"raise", "skip"}
        What to do with scores that are NaN (rows that were skipped) or infinite: refuse, or leave them out, counted
        and listed.
    piece_rows, range_scores : int
        Scores that a worker reads, and sorts, at once.
    tick : callable, optional
        Told of the progress.

    Returns
    -------
    ScoresEvaluation
        AUROC and FPR95 as :func:`normscale.evaluate` gives them, bit for bit; AUPR up to the rounding of a sum.
    """
    one_of(on_invalid, "on_invalid", ON_INVALID)
    share = exact_share(tpr, "tpr", allow_one=True)
    tasks = plan_scores(id_paths, False, column, piece_rows) + plan_scores(ood_paths, True, column, piece_rows)
    job = _CountJob(column, on_invalid, max(_FEWEST_SAMPLES, _SAMPLES // len(tasks)), np.empty(0))
    with open_engine(engine, workers=workers, address=address, n_tasks=len(tasks)) as opened:
        sketches, skipped = _sketch(job, tasks, opened, tick)
        job = job._replace(edges=splitters(sketches, _RANGE_BINS))
        counts = _count(job, tasks, opened, tick)
        n_id, n_ood = int(counts.id_counts.sum()), int(counts.ood_counts.sum())
        if not n_id or not n_ood:
            raise InvalidInput("every score of one side is NaN or infinite; both sides need finite scores.")
        question = RankingQuestion(n_id, n_ood, math.ceil(share * n_ood), math.ceil(share * n_id))
        found = _by_ranges(job, tasks, counts, question, range_scores, opened, tick)
    result = RankingResult.of(found, n_id=n_id, n_ood=n_ood, tpr=float(tpr))
    return ScoresEvaluation(result, skipped)


def _counter(doing: str, tasks: list[ScorePiece], tick: Tick | None) -> ProgressCounter:
    return ProgressCounter(doing, len(tasks), sum(task.piece.n_bytes for task in tasks), tick)


def _sketch(job: _CountJob, tasks: list[ScorePiece], engine: Engine, tick: Tick | None) -> tuple[list[Sketch], Skipped]:
    counter = _counter("looking at scores", tasks, tick)
    found: list[tuple[Sketch, Skipped]] = [(Sketch(0, np.empty(0)), Skipped())] * len(tasks)
    for place, result in engine.map(_sketch_piece, job, tasks):
        found[place] = result
        counter.add(1, result[0].n, tasks[place].piece.n_bytes)
    sketches = [sketch for sketch, _ in found]
    if not any(sketch.n for sketch in sketches):
        raise InvalidInput("every score is NaN or infinite; both sides need finite scores.")
    return sketches, sum((skipped for _, skipped in found), Skipped())


def _sketch_piece(job: _CountJob, task: ScorePiece) -> tuple[Sketch, Skipped]:
    scores, skipped = read_scores(task, job.column, job.on_invalid)
    return Sketch.of(scores, job.samples), skipped


def _count(job: _CountJob, tasks: list[ScorePiece], engine: Engine, tick: Tick | None) -> ScoreCounts:
    step = 1 << subtree_level(len(tasks), 8 * engine.workers)
    groups = [tasks[i : i + step] for i in range(0, len(tasks), step)]
    counter = _counter("counting scores", tasks, tick)
    tree = MergeTree(len(groups), ScoreCounts.merge)
    for place, counts in engine.map(_count_pieces, job, groups):
        tree.put(place, counts)
        n_bytes = sum(task.piece.n_bytes for task in groups[place])
        counter.add(len(groups[place]), n_bytes // 8, n_bytes)
    return tree.total()


def _count_pieces(job: _CountJob, tasks: list[ScorePiece]) -> ScoreCounts:
    return merged([_count_piece(job, task) for task in tasks], ScoreCounts.merge)


def _count_piece(job: _CountJob, task: ScorePiece) -> ScoreCounts:
    scores, _ = read_scores(task, job.column, job.on_invalid)
    size = 2 * job.edges.size + 1
    counts = np.bincount(bins_of(scores, job.edges), minlength=size).astype(np.int64)
    nothing = np.zeros(size, np.int64)
    return ScoreCounts(nothing, counts) if task.is_ood else ScoreCounts(counts, nothing)


def _by_ranges(
    job: _CountJob,
    tasks: list[ScorePiece],
    counts: ScoreCounts,
    question: RankingQuestion,
    range_scores: int,
    engine: Engine,
    tick: Tick | None,
) -> Values:
    """Every range of scores goes to one worker, which sorts it; many equal scores need no sorting."""
    id_edges, ood_edges = cumulative(counts.id_counts), cumulative(counts.ood_counts)
    sizes = (counts.id_counts + counts.ood_counts).tolist()
    range_of_bin = np.full(len(sizes), -1, np.int64)
    parts: dict[int, dict[str, Any]] = {}  # by their first bin
    ranges: list[_Range] = []
    first_bins: list[int] = []
    filled = range_scores  # a full range: the first bin begins another
    for place, size in enumerate(sizes):
        if not size:
            continue
        if place % 2 and size > range_scores // 2:
            parts[place] = question.part(id_edges[place : place + 2], ood_edges[place : place + 2])
            filled = range_scores
            continue
        if filled + size > range_scores:
            ranges.append(_Range(int(id_edges[place]), int(ood_edges[place])))
            first_bins.append(place)
            filled = 0
        range_of_bin[place] = len(ranges) - 1
        filled += size
    if ranges:
        shared = _RangeJob(job, range_of_bin, len(ranges), [task.is_ood for task in tasks], question)
        counter = ProgressCounter("sorting ranges", len(ranges), 8 * sum(sizes), tick)
        for place, (own, n_scores) in engine.shuffle(_split_piece, _rank_range, shared, tasks, ranges):
            counter.add(1, n_scores, 8 * n_scores)
            parts[first_bins[place]] = own
    return question.answer([parts[place] for place in sorted(parts)])


def _split_piece(job: _RangeJob, task: ScorePiece) -> list[FloatArray]:
    """The scores of a piece, by range."""
    scores, _ = read_scores(task, job.counting.column, job.counting.on_invalid)
    ranges = job.range_of_bin[bins_of(scores, job.counting.edges)]
    order = np.argsort(ranges, kind="stable")
    cuts = np.searchsorted(ranges[order], np.arange(job.n_ranges + 1))
    return [scores[order[a:b]] for a, b in itertools.pairwise(cuts)]


def _rank_range(job: tuple[_RangeJob, _Range], arrays: list[FloatArray]) -> tuple[dict[str, Any], int]:
    """What one range brings to the metrics."""
    (shared, below), question = job, job[0].question
    sides: list[Any] = []
    for is_ood in (False, True):
        mine = [array for array, side in zip(arrays, shared.is_ood, strict=True) if side == is_ood]
        sides.append(np.sort(np.concatenate([np.empty(0), *mine])))
    id_scores, ood_scores = sides
    distinct = np.unique(np.concatenate(sides))
    parts = []
    last = np.array([float(below.id_below), float(below.ood_below)])
    for start in range(0, distinct.size, _GROUPS):
        group = distinct[start : start + _GROUPS]
        id_edges = below.id_below + np.searchsorted(id_scores, group, side="right").astype(np.float64)
        ood_edges = below.ood_below + np.searchsorted(ood_scores, group, side="right").astype(np.float64)
        parts.append(question.part(np.concatenate([last[:1], id_edges]), np.concatenate([last[1:], ood_edges])))
        last = np.array([id_edges[-1], ood_edges[-1]])
    return question.together(parts), id_scores.size + ood_scores.size
