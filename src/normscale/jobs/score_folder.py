"""Scores in a folder: one Parquet file a piece, made by any engine; a rerun makes what is missing.

A stream whose states merge is made in two passes: first every piece's own state, then every piece's scores from the
state of all before it.
"""

from __future__ import annotations

import copy
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from normscale._kernels import backend
from normscale._validate import FloatArray
from normscale._version import __version__
from normscale.detectors.base import Detector
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput
from normscale.jobs.engines import Engine, EngineFailed, open_engine
from normscale.jobs.job_folder import JobFolder
from normscale.jobs.options import JobOptions, ProgressCounter, Tick
from normscale.jobs.pieces import LISTED, Piece, Skipped
from normscale.jobs.scoring import ScoreJob, ScoreResult
from normscale.rows import need_arrow
from normscale.rows.formats.parquet import ParquetSink, open_parquet
from normscale.rows.source import source_of
from normscale.rows.writing import About
from normscale.state import copied, record_arrays, unpack_state

MOVED = "_job/detector.safetensors"
"""The detector after a stream."""
_CHAIN = "_job/chain"
"""The detector after every piece of a stream in order."""
_REPORT = "normscale"
"""The key of a piece's report in the metadata of its file."""


class _PieceReport(NamedTuple):
    n_rows: int
    n_flagged: int
    skipped: Skipped


def score_to_folder(
    job: ScoreJob, pieces: list[Piece], output: str | os.PathLike[str], given: JobOptions
) -> ScoreResult:
    """Score pieces side by side; a stream whose states do not merge is scored in order by this process."""
    folder = JobFolder(output)
    need_arrow("pyarrow.parquet", folder.path)
    job = job._replace(output=folder.path)
    in_order = job.stream and (bool(job.by) or not _streams_in_pieces(job.detector))
    engine, workers = ("here", None) if in_order else (given["engine"], given["workers"])
    with (
        folder.working(_plan_document(job, pieces)),
        open_engine(engine, workers=workers, address=given["address"], n_tasks=len(pieces)) as opened,
    ):
        done = _finished(folder, pieces)
        before = len(done)
        moved = _score_missing(job, pieces, folder, done, opened, in_order, given["tick"])
        if lost := [part_name(piece) for piece in _missing_parts(folder, pieces)]:
            raise EngineFailed(
                f"{len(lost)} of {len(pieces)} files, such as {lost[0]}, were written and are not in {folder.path}. On "
                "a cluster of several machines the output must be a place that all of them see, such as a shared disk "
                "or s3://bucket/scores."
            )
        if job.stream:
            folder.write(MOVED, moved.pack())
            folder.remove_folder(_CHAIN)
    reports = [done[piece.number] for piece in pieces]
    return ScoreResult(
        output=folder.path,
        n_rows=sum(report.n_rows for report in reports),
        n_flagged=None if job.limit is None else sum(report.n_flagged for report in reports),
        skipped=sum((report.skipped for report in reports), Skipped()),
        n_pieces=len(reports),
        n_done_before=before,
        detector=moved,
    )


def _score_missing(
    job: ScoreJob,
    pieces: list[Piece],
    folder: JobFolder,
    done: dict[int, _PieceReport],
    engine: Engine,
    in_order: bool,
    tick: Tick | None,
) -> Detector:
    """Score the pieces that are not ``done``; the detector after the last piece."""
    missing = [piece for piece in pieces if piece.number not in done]
    moved = job.detector
    stored = folder.read(MOVED) if job.stream and not missing else None
    if stored is not None:
        return type(moved).from_state(*unpack_state(stored))
    starts: Sequence[Any] = [None] * len(pieces)
    if job.stream and not in_order:
        starts = _start_states(job, pieces, engine, tick)
        moved = copy.copy(moved)
        moved.state_ = starts[-1]
    counter = ProgressCounter("scoring", len(missing), sum(piece.n_bytes for piece in missing), tick)
    if in_order:
        return _stream_in_order(job, pieces, folder, done, counter)
    for place, report in engine.map(_score_piece, job, [(piece, starts[piece.number]) for piece in missing]):
        done[missing[place].number] = report
        counter.add(1, report.n_rows, missing[place].n_bytes)
    return moved


def _streams_in_pieces(detector: Detector) -> bool:
    """Whether pieces can be streamed side by side: two of its streams have a common state."""
    try:
        detector.merge(detector.start(), detector._blank())
    except InvalidInput:
        return False
    return True


def _start_states(job: ScoreJob, pieces: Sequence[Piece], engine: Engine, tick: Tick | None) -> list[Any]:
    """The state before every piece, and after the last: that of training and of the pieces before, in order."""
    counter = ProgressCounter("running statistics", len(pieces), sum(piece.n_bytes for piece in pieces), tick)
    states: dict[int, Any] = {}
    for place, (state, n_rows) in engine.map(_piece_state, job, pieces):
        states[place] = state
        counter.add(1, n_rows, pieces[place].n_bytes)
    before = [copied(job.detector._current())]
    for place in range(len(pieces)):
        before.append(job.detector.merge(before[-1], states[place]))
    if not all(np.isfinite(array).all() for array in record_arrays(before[-1]).values()):
        raise InvalidInput("the rows are too large for running statistics in float64. Rescale them.")
    return before


def _piece_state(job: ScoreJob, piece: Piece) -> tuple[Any, int]:
    """The state of a piece's good rows alone, and how many rows were read: runs in a worker."""
    state, rows = job.detector._blank(), job.rows(piece)
    try:
        for chunk in rows:
            state = job.detector.step(state, chunk)[1]
    except InvalidInput as error:
        raise rows.explain(error) from None
    return state, rows.skipped.n + rows.n_rows


def _stream_in_order(
    job: ScoreJob, pieces: list[Piece], folder: JobFolder, done: dict[int, _PieceReport], counter: ProgressCounter
) -> Detector:
    """Stream one piece after the other in this process; a rerun goes on behind the last one that is whole."""
    detector = copy.copy(job.detector)
    there = set(folder.names(_CHAIN))
    first = next((piece.number for piece in pieces if piece.number not in done), len(pieces))
    while first > 0 and f"{first - 1:06d}.safetensors" not in there:
        first -= 1
    if first > 0 and (stored := folder.read(f"{_CHAIN}/{first - 1:06d}.safetensors")) is not None:
        detector = type(detector).from_state(*unpack_state(stored))
    for piece in pieces[first:]:
        done[piece.number] = report = _score_with(job, piece, detector.stream)
        folder.write(f"{_CHAIN}/{piece.number:06d}.safetensors", detector.pack())
        counter.add(1, report.n_rows, piece.n_bytes)
    return detector


def _score_piece(job: ScoreJob, task: tuple[Piece, Any]) -> _PieceReport:
    """Score a piece and write its file: runs in a worker."""
    piece, state = task

    def stream(outputs: Any, threads: int) -> FloatArray:
        nonlocal state
        scores, state = job.detector.step(state, outputs)
        return scores

    return _score_with(job, piece, job.detector.score if state is None else stream)


def _score_with(job: ScoreJob, piece: Piece, scorer: Callable[..., FloatArray]) -> _PieceReport:
    """Score a piece and write its file; the report is in it, so that a rerun need not read rows to know it."""
    rows = job.rows(piece)
    chunks = list(job.scored(rows, scorer))
    flagged = sum(int(chunk["is_ood"].sum()) for chunk in chunks) if job.limit is not None else 0
    report = _PieceReport(sum(len(chunk["score"]) for chunk in chunks), flagged, rows.skipped)
    data, name = io.BytesIO(), part_name(piece)
    sink = ParquetSink(data, name, job.columns, About(metadata={_REPORT: write_json(report._asdict())}))
    for chunk in chunks:
        sink.write(chunk)
    sink.finish()
    JobFolder(job.output).write(name, data.getvalue())
    return report


def part_name(piece: Piece) -> str:
    """The output file of a piece, below the ``key=value`` folders that its input is in.

    Examples
    --------
    >>> from normscale.rows import SourceFile
    >>> from normscale.jobs.pieces import Span
    >>> part_name(Piece(12, (Span(SourceFile("/in/day=1/a.parquet", 1, 1)),)))
    'day=1/part-000012.parquet'
    """
    folders = piece.file.path.partition("?")[0].replace(os.sep, "/").split("/")[:-1]
    return "/".join([*(name for name in folders if "=" in name), f"part-{piece.number:06d}.parquet"])


def _plan_document(job: ScoreJob, pieces: list[Piece]) -> dict[str, Any]:
    limit = job.limit
    return {
        "version": __version__,
        "detector": f"{job.detector.name} {hashlib.sha256(job.detector.pack()).hexdigest()}",
        "setting": f"stream by {job.by}" if job.by else "stream" if job.stream else "frozen",
        "threshold": "none" if limit is None else limit.value,
        "threshold_per_class": None if limit is None or limit.per_class is None else list(limit.per_class),
        "on_invalid": job.on_invalid,
        "probabilities": job.source.layout.probabilities,
        "kept_columns": list(job.source.layout.kept),
        "kernels": backend(),
        "files": [list(file) for file in dict.fromkeys(piece.file for piece in pieces)],
        "pieces": [[piece.spans[0].first_row, piece.n_bytes] for piece in pieces],
    }


def _missing_parts(folder: JobFolder, pieces: list[Piece]) -> list[Piece]:
    names = {piece: part_name(piece).rpartition("/") for piece in pieces}
    there = {below: set(folder.names(below)) for below in {below for below, _, _ in names.values()}}
    return [piece for piece, (below, _, name) in names.items() if name not in there[below]]


def _finished(folder: JobFolder, pieces: list[Piece]) -> dict[int, _PieceReport]:
    """The reports of pieces whose file is there and whole; a damaged file counts as missing."""
    missing = set(_missing_parts(folder, pieces))
    there = {piece: _stored_report(folder.at(part_name(piece))) for piece in pieces if piece not in missing}
    return {
        piece.number: report
        for piece, report in there.items()
        if report is not None and piece.n_rows in (None, report.n_rows)
    }


def _stored_report(path: str) -> _PieceReport | None:
    try:
        with open_parquet(source_of(path)) as file:
            document = read_json(file.metadata.metadata[_REPORT.encode()])
            count, rows = document["skipped"]
            if file.metadata.num_rows != document["n_rows"]:
                return None
        listed = tuple((str(path), int(row)) for path, row in rows[:LISTED])
        return _PieceReport(document["n_rows"], document["n_flagged"], Skipped(count, listed))
    except (OSError, ValueError, KeyError, TypeError):  # pyarrow's errors are among these
        return None
