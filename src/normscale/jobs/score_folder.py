"""Scores in a folder: one Parquet file a piece, made by any engine; a rerun makes what is missing."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from normscale._kernels import backend
from normscale._validate import FloatArray
from normscale._version import __version__
from normscale.detectors.base import Detector
from normscale.encoding.json_text import read_json, write_json
from normscale.jobs import running
from normscale.jobs.job_folder import JobFolder
from normscale.jobs.options import JobOptions, ProgressCounter, Tick
from normscale.jobs.pieces import LISTED, Columns, Piece, PieceRows, Skipped, read_piece
from normscale.jobs.scoring import ScoreJob, ScoreResult
from normscale.jobs.spreading import Engine, EngineFailed, open_engine
from normscale.rows import TEXT, file_system, is_remote, need_arrow
from normscale.state import unpack_state

MOVED = "_job/detector.safetensors"
"""The detector after a stream."""
_CHAIN = "_job/chain"
"""The detector after every piece of a stream in order."""
_REPORT = b"normscale"
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
    in_order = job.stream and (bool(job.by) or not running.streams_in_pieces(job.detector))
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
            folder.remove_folder(_CHAIN if in_order else running.STARTS)
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
    counter = ProgressCounter("scoring", len(missing), sum(piece.n_bytes for piece in missing), tick)
    moved = job.detector
    stored = folder.read(MOVED) if job.stream and not missing else None
    if stored is not None:
        return type(moved).from_state(*unpack_state(stored))
    if in_order:
        return _stream_in_order(job, pieces, folder, done, counter)
    starts: Sequence[Any] = [None] * len(pieces)
    if job.stream:
        starts = running.start_states(moved, pieces, job.layout, job.on_invalid, folder, engine, tick)
        moved = copy.copy(moved)
        moved.state_ = starts[-1]
    for place, report in engine.map(_score_piece, job, [(piece, starts[piece.number]) for piece in missing]):
        done[missing[place].number] = report
        counter.add(1, report.n_rows, missing[place].n_bytes)
    return moved


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
    if state is None:
        return _score_with(job, piece, job.detector.score)

    def stream(outputs: Any, threads: int) -> FloatArray:
        nonlocal state
        scores, state = job.detector.step(state, outputs)
        return scores

    return _score_with(job, piece, stream)


def _score_with(job: ScoreJob, piece: Piece, scorer: Callable[..., FloatArray]) -> _PieceReport:
    rows = PieceRows(read_piece(piece, job.layout), job.layout, job.detector.reads, job.on_invalid)
    chunks = list(job.scored(rows, scorer))
    empty = {name: np.empty(0, dtype if isinstance(dtype, np.dtype) else None) for name, dtype in job.columns.items()}
    joined = {name: np.concatenate([chunk[name] for chunk in chunks] or [empty[name]]) for name in empty}
    flagged = int(joined["is_ood"].sum()) if "is_ood" in joined else 0
    report = _PieceReport(len(joined["score"]), flagged, rows.skipped)
    JobFolder(job.output).write(part_name(piece), _parquet_bytes(job, joined, report))
    return report


def part_name(piece: Piece) -> str:
    """The output file of a piece, below the ``key=value`` folders that its input is in.

    Examples
    --------
    >>> from normscale.rows import SourceFile
    >>> from normscale.jobs.pieces import Span
    >>> part_name(Piece(12, (Span(SourceFile("/in/day=1/a.parquet", 1, 1)),), 5, 1))
    'day=1/part-000012.parquet'
    """
    folders = piece.file.path.partition("?")[0].replace(os.sep, "/").split("/")[:-1]
    return "/".join([*(name for name in folders if "=" in name), f"part-{piece.number:06d}.parquet"])


def _plan_document(job: ScoreJob, pieces: list[Piece]) -> dict[str, Any]:
    """All that decides the bytes of the output."""
    limit = job.limit
    return {
        "version": __version__,
        "detector": f"{job.detector.name} {hashlib.sha256(job.detector.pack()).hexdigest()}",
        "setting": f"stream by {job.by}" if job.by else "stream" if job.stream else "frozen",
        "threshold": "none" if limit is None else limit.value,
        "threshold_per_class": None if limit is None or limit.per_class is None else list(limit.per_class),
        "on_invalid": job.on_invalid,
        "probabilities": job.layout.probabilities,
        "kept_columns": list(job.layout.kept),
        "kernels": backend(),
        "files": [list(file) for file in dict.fromkeys(piece.file for piece in pieces)],
        "pieces": [[piece.spans[0].first_row, piece.n_bytes] for piece in pieces],
    }


def _parquet_bytes(job: ScoreJob, columns: Columns, report: _PieceReport) -> bytes:
    """A Parquet file; the report is in it, so that a rerun need not read rows to know it."""
    import pyarrow
    import pyarrow.parquet

    document = {"n_rows": report.n_rows, "n_flagged": report.n_flagged, "skipped": list(report.skipped)}
    types = {name: kind for name, kind in job.columns.items() if isinstance(kind, pyarrow.DataType)}
    arrays = {
        name: pyarrow.array(column, types.get(name, pyarrow.string() if column.dtype == TEXT else None))
        for name, column in columns.items()
    }
    table = pyarrow.table(arrays).replace_schema_metadata({_REPORT: write_json(document)})
    sink = pyarrow.BufferOutputStream()
    dictionaries = [name for name in columns if name != "score"]
    pyarrow.parquet.write_table(table, sink, use_dictionary=dictionaries, write_page_checksum=True)
    return bytes(sink.getvalue())


def _missing_parts(folder: JobFolder, pieces: list[Piece]) -> list[Piece]:
    by_folder: dict[str, set[str]] = {}
    missing = []
    for piece in pieces:
        below, _, name = part_name(piece).rpartition("/")
        if below not in by_folder:
            by_folder[below] = set(folder.names(below))
        missing += [] if name in by_folder[below] else [piece]
    return missing


def _finished(folder: JobFolder, pieces: list[Piece]) -> dict[int, _PieceReport]:
    """The reports of pieces whose file is there and whole; a damaged file counts as missing."""
    missing = set(_missing_parts(folder, pieces))
    found = {}
    for piece in pieces:
        report = None if piece in missing else _stored_report(folder, part_name(piece))
        if report is not None and piece.n_rows in (None, report.n_rows):
            found[piece.number] = report
    return found


def _stored_report(folder: JobFolder, name: str) -> _PieceReport | None:
    import pyarrow
    import pyarrow.parquet

    try:
        path = folder.at(name)
        system, inside = file_system(path) if is_remote(path) else (None, path)
        metadata = pyarrow.parquet.read_metadata(inside, filesystem=system)
        document = read_json(metadata.metadata[_REPORT])
        count, rows = document["skipped"]
        if metadata.num_rows != document["n_rows"]:
            return None
        listed = tuple((str(path), int(row)) for path, row in rows[:LISTED])
        return _PieceReport(document["n_rows"], document["n_flagged"], Skipped(count, listed))
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException):
        return None
