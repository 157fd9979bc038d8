"""Streams that must take their rows in order, over many pieces: of groups of sources, side by side.

Each group is streamed through all pieces by one worker, which keeps its scores on disk until the pieces are written.
A stream without sources is one group.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.by_source import SourceStates
from normscale.jobs.job_folder import STATES, JobFolder
from normscale.jobs.running import Engine, ProgressCounter, Tick, run
from normscale.jobs.scoring import ScoreJob
from normscale.jobs.sources import Piece, PieceRows
from normscale.outputs import ModelOutputs
from normscale.rows.reader import Chunk
from normscale.state import unpack_state

_GROUPS = 16
"""Sources are streamed in so many groups, whatever the number of workers: rows that are scored together decide the last
bits of their scores."""
_ROUNDS = 32
"""How often at most the streams are written to disk; a rerun goes on from there."""


def stream_groups(job: ScoreJob, pieces: Sequence[Piece], engine: Engine, tick: Tick | None) -> Detector:
    """Stream all rows, those of every group of sources by one worker; the detector with all of its streams."""
    n_groups = _GROUPS if job.by else 1
    n_sets = min(n_groups, engine.workers)
    step = len(pieces) if job.order_by else -(-len(pieces) // _ROUNDS)
    rounds = [pieces[start : start + step] for start in range(0, len(pieces), step)]
    counter = ProgressCounter("streaming", n_sets * len(rounds), tick)
    for some in rounds:
        tasks = [(range(first, n_groups, n_sets), some) for first in range(n_sets)]
        run(engine, _stream_task, job, tasks, counter)
    moved = _Group(job, 0).detector
    for number in range(1, n_groups):
        moved._sources.update(_Group(job, number).detector._sources)  # type: ignore[union-attr, arg-type]
    return moved


class _Group:
    """The streams of some sources: a detector on disk, and the number of pieces that it has seen."""

    def __init__(self, job: ScoreJob, number: int, share: int = 1) -> None:
        self._folder, self._name = JobFolder(job.output), f"{STATES}/{number:02d}"
        self.detector, self.n_pieces = copy.copy(job.detector), 0
        stored = self._folder.read(f"{self._name}.safetensors")
        if stored is not None:
            self.n_pieces = int.from_bytes(stored[:8], "little")
            self.detector = type(job.detector)._from_state(*unpack_state(stored[8:]))
        if job.by:
            states = SourceStates(self.detector)
            states._in_memory = max(1, states._in_memory // share)
            before: Mapping[str, Any] = self.detector._sources or {}
            states.update((source, before[source]) for source in before if _group_of(source) == number)
            self.detector._sources = states

    def keep(self, piece: Piece, scores: FloatArray) -> None:
        """Keep the scores of its rows in a piece."""
        self._folder.write(f"{self._name}/{piece.number:06d}", scores.tobytes())

    def save(self, n_pieces: int) -> None:
        """Keep the streams after so many pieces."""
        self._folder.write(f"{self._name}.safetensors", n_pieces.to_bytes(8, "little") + self.detector._pack())


def _stream_task(job: ScoreJob, task: tuple[Sequence[int], Sequence[Piece]]) -> tuple[None, int]:
    """Stream the rows of some groups through some pieces, and keep their scores: runs in a worker."""
    numbers, pieces = task
    groups = {number: _Group(job, number, len(numbers)) for number in numbers}
    groups = {number: group for number, group in groups.items() if group.n_pieces <= pieces[0].number}
    bound, n_rows = job.memory_bound(), 0
    to_sort: dict[int, list[list[Chunk]]] = {number: [] for number in groups}
    for piece in pieces if groups else ():
        rows = job.rows(piece)
        chunks: dict[int, list[Chunk]] = {number: [] for number in groups}
        scores: dict[int, list[FloatArray]] = {number: [np.empty(0)] for number in groups}
        with rows.explained():
            for number, chunk in _by_group(job, rows):
                if number in groups and job.order_by:
                    bound.add(chunk.outputs)
                    chunks[number].append(chunk)
                elif number in groups:
                    scores[number].append(job.streamed(chunk, groups[number].detector.stream))
        n_rows += rows.n_rows + rows.skipped.n
        for number, group in groups.items():
            group.keep(piece, np.concatenate(scores[number]))
            to_sort[number].append(chunks[number])
    for number, group in groups.items():
        if job.order_by:
            _stream_sorted(job, group, pieces, to_sort[number])
        group.save(pieces[-1].number + 1)
    return None, n_rows


def _stream_sorted(job: ScoreJob, group: _Group, pieces: Sequence[Piece], parts: Sequence[list[Chunk]]) -> None:
    """Stream all rows of a group in their order, and keep the scores of every piece in the order of its rows."""
    chunks = [chunk for own in parts for chunk in own]
    scores = job.streamed(Chunk.join(chunks), group.detector.stream) if chunks else np.empty(0)
    ends = np.cumsum([sum(len(chunk.outputs) for chunk in own) for own in parts])
    for piece, own_scores in zip(pieces, np.split(scores, ends[:-1]), strict=True):
        group.keep(piece, own_scores)


@lru_cache(1 << 20, typed=True)
def _group_of(source: Any) -> int:
    return zlib.crc32(str(source).encode()) % _GROUPS


def _groups(sources: NDArray[Any]) -> NDArray[np.int64]:
    """The group of every row's source."""
    return np.array(list(map(_group_of, sources.tolist())), np.int64)


def _by_group(job: ScoreJob, rows: PieceRows) -> Iterator[tuple[int, Chunk]]:
    """The good rows of every chunk, by the group of their sources."""
    for chunk, good in rows.with_masks():
        own = chunk if good is None or good.all() else chunk.take(good)
        if not job.by:
            yield 0, own
            continue
        groups = _groups(own.columns[job.by])
        for number in np.unique(groups).tolist():
            yield number, own.take(np.flatnonzero(groups == number))


def stored_scores(job: ScoreJob, piece: Piece) -> Callable[..., FloatArray]:
    """A scorer that gives the scores that :func:`_stream_task` has kept of a piece."""
    folder = JobFolder(job.output)
    left: dict[int, FloatArray] = {}

    def scores(outputs: ModelOutputs, threads: int, by: NDArray[Any] | None = None) -> FloatArray:
        groups = np.zeros(len(outputs), np.int64) if by is None else _groups(by)
        found = np.empty(len(outputs))
        for number in np.unique(groups).tolist():
            if number not in left:
                left[number] = np.frombuffer(folder.read(f"{STATES}/{number:02d}/{piece.number:06d}") or b"")
            own = groups == number
            n_own = int(own.sum())
            found[own], left[number] = left[number][:n_own], left[number][n_own:]
        return found

    return scores
