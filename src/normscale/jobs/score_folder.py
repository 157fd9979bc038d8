"""Scores in a folder: one Parquet file a piece, made by any engine; a rerun makes what is missing.

A stream takes two passes. Where its states merge, the first makes every piece's own state, and the second every piece's
scores from the state of all before it. Where they do not, or where every source has a stream of its own, the first
streams the rows of some sources through all pieces and keeps their scores, and the second writes them beside the rows.
"""

from __future__ import annotations

import copy
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from normscale._kernels import backend
from normscale._validate import FloatArray
from normscale._version import __version__
from normscale.detectors.base import Detector
from normscale.encoding.json_text import read_json
from normscale.errors import InvalidInput
from normscale.jobs.group_streams import stored_scores, stream_groups
from normscale.jobs.job_folder import STATES, JobFolder
from normscale.jobs.running import Engine, EngineFailed, JobOptions, ProgressCounter, Tick, open_engine, run
from normscale.jobs.scoring import ScoreJob, ScoreResult
from normscale.jobs.sources import LISTED, Piece, Skipped
from normscale.outputs import ModelOutputs
from normscale.rows import need_arrow
from normscale.rows.files import source_of
from normscale.rows.formats.parquet import ParquetSink, open_parquet
from normscale.state import copied, record_arrays, unpack_state

MOVED = "_job/detector.safetensors"
"""The detector after a stream."""
_REPORT = "normscale"
"""The key of a piece's report in the metadata of its file."""


class _PieceReport(NamedTuple):
    n_rows: int
    n_flagged: int
    skipped: Skipped


def score_to_folder(
    job: ScoreJob, pieces: list[Piece], output: str | os.PathLike[str], given: JobOptions
) -> ScoreResult:
    """Score pieces side by side; a stream whose states do not merge is scored in order by one process."""
    folder = JobFolder(output)
    need_arrow("pyarrow.parquet", folder.path)
    job = job._replace(output=folder.path)
    with (
        folder.working(_plan_document(job, pieces)),
        open_engine(given.engine, workers=given.workers, address=given.address, n_tasks=len(pieces)) as opened,
    ):
        done = _finished(folder, pieces)
        before = len(done)
        moved = _score_missing(job, pieces, folder, done, opened, given.tick)
        if lost := [part_name(piece) for piece in _missing_parts(folder, pieces)]:
            raise EngineFailed(
                f"{len(lost)} of {len(pieces)} files, such as {lost[0]}, were written and are not in {folder.path}. On "
                "a cluster of several machines the output must be a place that all of them see, such as a shared disk "
                "or s3://bucket/scores."
            )
        if job.stream:
            folder.write(MOVED, moved._pack())
            folder.remove_folder(STATES)
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
    tick: Tick | None,
) -> Detector:
    """Score the pieces that are not ``done``; the detector after the last piece."""
    missing = [piece for piece in pieces if piece.number not in done]
    moved = job.detector
    stored = folder.read(MOVED) if job.stream and not missing else None
    if stored is not None:
        return type(moved)._from_state(*unpack_state(stored))
    starts: Sequence[Any] = [None] * len(pieces)
    if job.stream and not job.by and not job.order_by and _states_merge(job.detector):
        starts = _start_states(job, pieces, engine, tick)
        moved = copy.copy(moved)
        moved.state_ = starts[-1]
    elif job.stream:
        moved = stream_groups(job, pieces, engine, tick)
    tasks = [(piece, starts[piece.number]) for piece in missing]
    counter = ProgressCounter("scoring", len(tasks), tick)
    reports = run(engine, _score_piece, job._replace(order_by=""), tasks, counter)
    done.update((piece.number, report) for piece, report in zip(missing, reports, strict=True))
    return moved


def _states_merge(detector: Detector) -> bool:
    """Whether pieces can be streamed side by side: two of its streams have a common state."""
    try:
        detector.merge(detector.start(), detector._empty_state())
    except InvalidInput:
        return False
    return True


def _start_states(job: ScoreJob, pieces: Sequence[Piece], engine: Engine, tick: Tick | None) -> list[Any]:
    """The state before every piece, and after the last: that of training and of the pieces before, in order."""
    before = [copied(job.detector._current())]
    for arrays in run(engine, _piece_state, job, pieces, ProgressCounter("running statistics", len(pieces), tick)):
        before.append(job.detector.merge(before[-1], job.detector._read_state(arrays, "")))
    if not all(np.isfinite(array).all() for array in record_arrays(before[-1]).values()):
        raise InvalidInput("the rows are too large for running statistics in float64. Rescale them.")
    return before


def _piece_state(job: ScoreJob, piece: Piece) -> tuple[dict[str, NDArray[Any]], int]:
    """The state of a piece's good rows alone, and how many rows were read: runs in a worker.

    The state is kept on disk until the job is done, so that a rerun need not read the rows again.
    """
    folder, name = JobFolder(job.output), f"{STATES}/{piece.number:06d}.safetensors"
    if (stored := folder.read(name)) is not None:
        return load(stored), 0
    state, rows = job.detector._empty_state(), job.rows(piece)
    with rows.explained():
        for chunk in rows:
            state = job.detector.step(state, chunk)[1]
    arrays = {key: np.asarray(array) for key, array in record_arrays(state).items()}
    folder.write(name, save(arrays))
    return arrays, rows.skipped.n + rows.n_rows


def _score_piece(job: ScoreJob, task: tuple[Piece, Any]) -> tuple[_PieceReport, int]:
    """Score a piece and write its file: runs in a worker.

    The report is in the file, so that a rerun need not read rows to know it.
    """
    piece, state = task

    def stream(outputs: ModelOutputs, threads: int) -> FloatArray:
        nonlocal state
        scores, state = job.detector.step(state, outputs)
        return scores

    scorer: Callable[..., FloatArray] = job.detector.score
    if job.stream:
        scorer = stored_scores(job, piece) if state is None else stream
    rows = job.rows(piece)
    chunks = list(job.scored(rows, scorer))
    flagged = sum(int(chunk["is_ood"].sum()) for chunk in chunks) if job.limit is not None else 0
    report = _PieceReport(sum(len(chunk["score"]) for chunk in chunks), flagged, rows.skipped)
    data, name = io.BytesIO(), part_name(piece)
    sink = ParquetSink(data, name, job.columns, texts={_REPORT: report._asdict()})
    for chunk in chunks:
        sink.write(chunk)
    sink.finish()
    JobFolder(job.output).write(name, data.getvalue())
    return report, report.n_rows


def part_name(piece: Piece) -> str:
    """The output file of a piece, below the ``key=value`` folders that its input is in.

    Examples
    --------
    >>> from normscale.rows import SourceFile
    >>> from normscale.jobs.sources import Span
    >>> part_name(Piece(12, (Span(SourceFile("/in/day=1/a.parquet", 1, 1)),)))
    'day=1/part-000012.parquet'
    """
    folders = piece.file.path.partition("?")[0].replace(os.sep, "/").split("/")[:-1]
    return "/".join([*(name for name in folders if "=" in name), f"part-{piece.number:06d}.parquet"])


def _plan_document(job: ScoreJob, pieces: list[Piece]) -> dict[str, Any]:
    limit = job.limit
    return {
        "version": __version__,
        "detector": f"{job.detector.name} {hashlib.sha256(job.detector._pack()).hexdigest()}",
        "setting": "stream" if job.stream else "frozen",
        "by": job.by,
        "order_by": job.order_by,
        "threshold": "none" if limit is None else limit.value,
        "threshold_per_class": None if limit is None or limit.per_class is None else list(limit.per_class),
        "on_invalid": job.on_invalid,
        "probabilities": job.source.layout.probabilities,
        "kept_columns": list(job.source.layout.kept),
        "kernels": backend(),
        "files": [list(file) for file in dict.fromkeys(piece.file for piece in pieces)],
        "pieces": [[(piece.spans[0].rows or range(1)).start, piece.n_bytes] for piece in pieces],
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
