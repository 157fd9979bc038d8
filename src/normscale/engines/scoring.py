"""Score many files: a map over pieces with one output file each; a rerun does what is missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._kernels import BlockState, backend
from normscale._validate import ON_INVALID, one_of
from normscale._version import __version__
from normscale.detectors.base import Detector
from normscale.detectors.threshold import Threshold
from normscale.encoding.json_text import read_json, write_json
from normscale.engines.fitting import Paths
from normscale.engines.invalid_rows import LISTED, GoodRows, Skipped, naming_the_row
from normscale.engines.job_folder import JobFolder
from normscale.engines.pieces import PIECE_ROWS, Layout, Piece, Pieces, plan_pieces, read_piece
from normscale.engines.running import STARTS, moved_detector, require_moments, start_states, stream_rows
from normscale.engines.spreading import Engine, EngineFailed, open_engine
from normscale.engines.watching import ProgressCounter, Tick
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs, predicted_where_finite
from normscale.state import unpack_state
from normscale.tables.arrow import need_arrow

_REPORT = b"normscale"
"""The key of a piece's report in the metadata of its file."""
MOVED = "_job/detector.safetensors"
"""In the output folder: the detector after a stream."""


class ScoreResult(NamedTuple):
    """What was scored."""

    output: str
    n_rows: int
    n_flagged: int | None
    """None without a threshold."""
    skipped: Skipped
    """Rows whose score is NaN because they held NaN or infinity."""
    n_pieces: int
    n_done_before: int
    """Pieces that an earlier run had finished."""
    detector: Detector
    """After a stream a copy with moved statistics, else the one given."""


class _PieceReport(NamedTuple):
    n_rows: int
    n_flagged: int
    skipped: Skipped


class _ScoreJob(NamedTuple):
    detector: Detector
    limit: Threshold | None
    layout: Layout
    stream: bool
    on_invalid: str
    output: str


def score(
    paths: Paths,
    detector: Detector,
    output: str | os.PathLike[str],
    *,
    stream: bool = False,
    threshold: float | None = None,
    engine: str | Engine = "local",
    workers: int | None = None,
    address: str | None = None,
    on_invalid: str = "raise",
    piece_rows: int = PIECE_ROWS,
    tick: Tick | None = None,
) -> ScoreResult:
    """Score the rows of many files; the same files give the same bytes on every engine.

    Parameters
    ----------
    paths : path, or several
        Files, folders and globs, here or in an object store; see :func:`~normscale.engines.locations.find_files`.
    detector : Detector
        A fitted one; it is not changed. Columns of logits are matched by the names of its classes.
    output : path
        A folder, here or in an object store: ``part-000000.parquet`` and so on, one for each piece, with the columns
        ``score``, ``predicted`` where there are logits, and ``is_ood`` where there is a threshold. What is there
        already of the same job is not made again; another job is refused.
    stream : bool
        Let running statistics take each row in before it is scored, in the order of the files. Exactly, in two passes:
        the moments of every piece, then every piece from the moments of all before it.
    threshold : float, optional
        Flag scores above this, whatever threshold the detector carries.
    engine, workers, address
        As in :func:`~normscale.engines.spreading.open_engine`.
    on_invalid : {"raise", "skip"}
        What to do with a row that holds NaN or infinity: refuse, or give it the score NaN, counted and listed.
    piece_rows : int
        Rows of a piece: of an output file, and of what a worker holds.
    tick : callable, optional
        Told of the progress.
    """
    one_of(on_invalid, "on_invalid", ON_INVALID)
    need_arrow("pyarrow.parquet", os.fspath(output))
    detector._require_fitted()
    stream = stream and detector.has_running_statistics
    if stream:
        require_moments(detector)
    limit = detector.threshold_ if threshold is None else Threshold(_validate.real(threshold, "threshold"))
    plan = plan_pieces(paths, [*detector.reads, LOGITS], piece_rows=piece_rows, class_names=detector.class_names)
    if limit is not None and limit.per_class is not None and not plan.layout.has_logits:
        raise InvalidInput(
            "the detector has one threshold for each predicted class, and there are no logits to predict from. "
            "Add the logits, or give one threshold."
        )
    folder = JobFolder(output)
    job = _ScoreJob(detector, limit, plan.layout, stream, on_invalid, folder.path)
    with folder.working(_plan_document(job, plan)):
        done = _finished(folder, plan.pieces)
        missing = [piece for piece in plan.pieces if piece.number not in done]
        before = len(done)
        with open_engine(engine, workers=workers, address=address) as opened:
            moved = detector
            starts: Sequence[BlockState | None] = [None] * len(plan.pieces)
            if stream and (missing or folder.read(MOVED) is None):
                starts = start_states(detector, plan, on_invalid, folder, opened, tick)
                moved = moved_detector(detector, starts[-1])
            elif stream and (stored := folder.read(MOVED)) is not None:
                moved = type(detector).from_state(*unpack_state(stored))
            counter = ProgressCounter("scoring", len(missing), sum(piece.n_bytes for piece in missing), tick)
            tasks = [(piece, starts[piece.number]) for piece in missing]
            for place, report in opened.map(_score_piece, job, tasks):
                done[missing[place].number] = report
                counter.add(1, report.n_rows, missing[place].n_bytes)
        _require_parts(folder, plan.pieces)
        if stream:
            folder.write(MOVED, moved.pack())
            folder.remove_folder(STARTS)
    reports = [done[piece.number] for piece in plan.pieces]
    return ScoreResult(
        output=folder.path,
        n_rows=sum(report.n_rows for report in reports),
        n_flagged=None if limit is None else sum(report.n_flagged for report in reports),
        skipped=sum((report.skipped for report in reports), Skipped()),
        n_pieces=len(reports),
        n_done_before=before,
        detector=moved,
    )


def _require_parts(folder: JobFolder, pieces: list[Piece]) -> None:
    """Raise where workers wrote to a folder that is not the one seen from here."""
    there = set(folder.names())
    lost = [name for name in (part_name(piece.number) for piece in pieces) if name not in there]
    if lost:
        raise EngineFailed(
            f"{len(lost)} of {len(pieces)} files, such as {lost[0]}, were written and are not in {folder.path}. On a "
            "cluster of several machines the output must be a place that all of them see, such as a shared disk or "
            "s3://bucket/scores."
        )


def part_name(index: int) -> str:
    """The output file of a piece.

    Examples
    --------
    >>> part_name(12)
    'part-000012.parquet'
    """
    return f"part-{index:06d}.parquet"


def _plan_document(job: _ScoreJob, plan: Pieces) -> dict[str, Any]:
    """All that decides the bytes of the output."""
    return {
        "version": __version__,
        "detector": f"{job.detector.name} {hashlib.sha256(job.detector.pack()).hexdigest()}",
        "setting": "stream" if job.stream else "frozen",
        "threshold": "none" if job.limit is None else job.limit.value,
        "threshold_per_class": None if job.limit is None else _listed(job.limit),
        "on_invalid": job.on_invalid,
        "kernels": backend(),
        "files": [list(file) for file in dict.fromkeys(piece.file for piece in plan.pieces)],
        "pieces": [[piece.first_row, piece.n_bytes] for piece in plan.pieces],
    }


def _listed(limit: Threshold) -> list[float] | None:
    return None if limit.per_class is None else list(limit.per_class)


def _score_piece(job: _ScoreJob, task: tuple[Piece, BlockState | None]) -> _PieceReport:
    """Score a piece and write its file: runs in a worker."""
    piece, start = task
    skipped = Skipped()
    columns: list[dict[str, NDArray[Any]]] = []
    if job.on_invalid == "skip":
        rows = GoodRows(piece, job.layout, job.detector.reads)
        columns = list(_columns(job, start, rows.with_masks()))
        skipped = rows.skipped
    else:
        columns = naming_the_row(
            piece,
            job.layout,
            job.detector.reads,
            lambda: list(_columns(job, start, ((chunk, None) for chunk in read_piece(piece, job.layout)))),
        )
    joined = {name: np.concatenate([empty, *(part[name] for part in columns)]) for name, empty in _no_rows(job).items()}
    flagged = int(joined["is_ood"].sum()) if "is_ood" in joined else 0
    report = _PieceReport(len(joined["score"]), flagged, skipped)
    JobFolder(job.output).write(part_name(piece.number), _parquet_bytes(joined, report))
    return report


def _no_rows(job: _ScoreJob) -> dict[str, NDArray[Any]]:
    """The columns of a table without rows."""
    columns: dict[str, NDArray[Any]] = {"score": np.empty(0)}
    if job.layout.has_logits:
        columns["predicted"] = np.empty(0, np.int64)
    if job.limit is not None:
        columns["is_ood"] = np.empty(0, np.bool_)
    return columns


def _columns(
    job: _ScoreJob, start: BlockState | None, chunks: Iterator[tuple[ModelOutputs, Any]]
) -> Iterator[dict[str, NDArray[Any]]]:
    scorer = job.detector.score if start is None else stream_rows(job.detector, start)
    for chunk, good in chunks:
        if good is None or good.all():
            scores = scorer(chunk)
        else:
            scores = np.full(len(chunk), np.nan)
            if good.any():
                scores[good] = scorer(chunk[good])
        columns: dict[str, NDArray[Any]] = {"score": scores}
        predicted = chunk.predicted if job.layout.has_logits else None
        if predicted is not None:
            columns["predicted"] = predicted if job.on_invalid == "raise" else predicted_where_finite(chunk)
        if job.limit is not None:
            columns["is_ood"] = job.limit.flags(scores, predicted)
        yield columns


def _parquet_bytes(columns: dict[str, NDArray[Any]], report: _PieceReport) -> bytes:
    """A Parquet file; the report is in it, so that a rerun need not read rows to know it."""
    import pyarrow
    import pyarrow.parquet

    document = {"n_rows": report.n_rows, "n_flagged": report.n_flagged, "skipped": list(report.skipped)}
    table = pyarrow.table(columns).replace_schema_metadata({_REPORT: write_json(document)})
    sink = pyarrow.BufferOutputStream()
    dictionaries = [name for name in columns if name != "score"]
    pyarrow.parquet.write_table(table, sink, use_dictionary=dictionaries, write_page_checksum=True)
    return bytes(sink.getvalue())


def _finished(folder: JobFolder, pieces: list[Piece]) -> dict[int, _PieceReport]:
    """The reports of pieces whose file is there and whole; a damaged file counts as missing."""
    there = set(folder.names())
    found = {}
    for piece in pieces:
        name = part_name(piece.number)
        report = _stored_report(folder, name) if name in there else None
        if report is not None and piece.n_rows in (None, report.n_rows):
            found[piece.number] = report
    return found


def _stored_report(folder: JobFolder, name: str) -> _PieceReport | None:
    import pyarrow
    import pyarrow.parquet

    from normscale.engines.locations import file_system, is_remote

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
