"""Score the rows of tables into a file, or into a folder of one file a piece where a rerun does what is missing."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._kernels import backend
from normscale._validate import ON_INVALID, FloatArray, one_of
from normscale._version import __version__
from normscale.detectors.base import Detector
from normscale.detectors.threshold import Threshold
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput
from normscale.jobs.fitting import Say, warn
from normscale.jobs.job_folder import JobFolder
from normscale.jobs.sources import (
    LISTED,
    PIECE_ROWS,
    Columns,
    Layout,
    Paths,
    Piece,
    PieceRows,
    RowSource,
    Skipped,
    read_piece,
)
from normscale.jobs.spreading import Engine, EngineFailed, open_engine
from normscale.jobs.watching import ProgressCounter, Tick
from normscale.outputs import LOGITS, predicted_where_finite
from normscale.rows import SCORE_COLUMNS, TEXT, file_system, is_remote, need_arrow, open_score_writer
from normscale.state import unpack_state

FILE = "file"
"""The column that says which file a row comes from, where several are scored."""
MOVED = "_job/detector.safetensors"
"""In the output folder: the detector after a stream."""
_CHAIN = "_job/chain"
"""In the output folder: the detector after every piece of a stream in order."""
_REPORT = b"normscale"
"""The key of a piece's report in the metadata of its file."""


class ScoreResult(NamedTuple):
    """What was scored."""

    output: str
    n_rows: int
    n_flagged: int | None
    """None without a threshold."""
    skipped: Skipped
    """Rows whose score is NaN because they held NaN or infinity."""
    detector: Detector
    """After a stream a copy with moved statistics, else the one given."""
    n_pieces: int | None = None
    """Files of scores; None where the scores are one file."""
    n_done_before: int = 0
    """Of these, how many an earlier run had finished."""


class _ScoreJob(NamedTuple):
    detector: Detector
    limit: Threshold | None
    layout: Layout
    stream: bool
    on_invalid: str
    with_file: bool
    threads: int = 1
    output: str = ""

    @property
    def columns(self) -> dict[str, Any]:
        """Names and types of what is written."""
        names = ["score"] + ["predicted"] * self.layout.has_logits + ["is_ood"] * (self.limit is not None)
        own = {FILE: TEXT} if self.with_file else {}
        return {**own, **self.layout.kept, **{name: np.dtype(SCORE_COLUMNS[name]) for name in names}}


def score(
    paths: Paths,
    detector: Detector,
    output: str | os.PathLike[str],
    *,
    stream: bool = False,
    threshold: float | None = None,
    keep_columns: Sequence[str] = (),
    probabilities: bool = False,
    on_invalid: str = "raise",
    threads: int = 1,
    engine: str | Engine | None = None,
    workers: int | None = None,
    address: str | None = None,
    piece_rows: int = PIECE_ROWS,
    tick: Tick | None = None,
    say: Say = warn,
) -> ScoreResult:
    """Score the rows of tables; the same files give the same bytes on every engine.

    Beside the score stand ``predicted`` where there are logits, ``is_ood`` where there is a threshold, the columns to
    keep, and ``file`` where several files are scored.

    Parameters
    ----------
    paths : path, or several
        Files, folders and globs, here or in an object store; a pipe; ``sample:NAME``.
    detector : Detector
        A fitted one; it is not changed. Columns of logits are matched by the names of its classes.
    output : path
        A file, or ``-`` for CSV on standard output: all rows in order, made by this process. Or a folder, here or in
        an object store, for work that is spread: ``part-000000.parquet`` and so on, one for each piece, below
        ``key=value`` folders where the input has such. What is there already of the same job is not made again;
        another job is refused.
    stream : bool
        Let running statistics take each row in before it is scored, in the order of the files. Where the statistics
        of pieces can be merged, exactly and side by side, in two passes; else one piece after the other.
    threshold : float, optional
        Flag scores above this, whatever threshold the detector carries.
    keep_columns : sequence of str
        Columns of the tables, such as an id or a time, to write beside the scores.
    probabilities : bool
        The tables hold probabilities in the place of logits; their logarithm is taken.
    on_invalid : {"raise", "skip"}
        What to do with a row that holds NaN or infinity: refuse, or give it the score NaN, counted and listed.
    threads : int
        Threads that share the work of this process.
    engine, workers, address
        As in :func:`~normscale.jobs.spreading.open_engine`.
    piece_rows : int
        Rows of a piece: of an output file, and of what a worker holds.
    tick : callable, optional
        Called with the progress.
    say : callable
        Called with every remark on the rows; by default they are warnings.
    """
    one_of(on_invalid, "on_invalid", ON_INVALID)
    detector._require_fitted()
    limit = detector.threshold_ if threshold is None else Threshold(_validate.real(threshold, "threshold"))
    source = _source_of(paths, detector, probabilities, keep_columns)
    layout = source.layout
    if limit is not None and limit.per_class is not None and not layout.has_logits:
        raise InvalidInput(
            f"the detector has one threshold for each predicted class, and {source.path} has no logits to predict "
            "from. Add the logits to the table, or give one threshold."
        )
    job = _ScoreJob(
        detector,
        limit,
        layout,
        stream and detector.has_running_statistics,
        on_invalid,
        not source.is_one_table,
        threads,
    )
    made = [name for name in job.columns if name not in layout.kept]
    if taken := [name for name in layout.kept if name in (*made, *SCORE_COLUMNS, FILE)]:
        raise InvalidInput(
            f"the column {taken[0]!r} of {source.path} cannot be kept: the scores have one of that name."
        )
    source.look(reads_logits=LOGITS in detector.reads)
    for text in source.notes:
        say(text)
    if not is_folder(os.fspath(output)):
        if engine not in (None, "here") or address is not None:
            raise InvalidInput("workers write their scores into a folder, one file a piece; add --output FOLDER.")
        return _score_to_file(job, source, os.fspath(output), tick)
    if source.stays_here:
        raise InvalidInput(f"{source.stays_here} cannot be read in pieces; name a file for its scores, or - .")
    pieces = source.file_pieces(piece_rows)
    folder = JobFolder(output)
    need_arrow("pyarrow.parquet", folder.path)
    job = job._replace(output=folder.path)
    in_order = job.stream and not _streams_in_pieces(detector)
    where: str | Engine | None = "here" if in_order else engine
    n_tasks = len(pieces)
    with (
        folder.working(_plan_document(job, pieces)),
        open_engine(where, workers=None if in_order else workers, address=address, n_tasks=n_tasks) as opened,
    ):
        return _score_to_folder(job, pieces, folder, opened, in_order, tick)


def describe_score(
    paths: Paths, detector: Detector, *, piece_rows: int = PIECE_ROWS, probabilities: bool = False
) -> str:
    """What :func:`score` would read and need, in lines."""
    source = _source_of(paths, detector, probabilities, ())
    return source.describe(source.file_pieces(piece_rows))


def is_folder(output: str) -> bool:
    """Whether scores go into a folder: an object store's, one that is there, or a name without a suffix.

    Examples
    --------
    >>> is_folder("scores.csv"), is_folder("-"), is_folder("scores"), is_folder("s3://bucket/scores")
    (False, False, True, True)
    """
    if output == "-":
        return False
    plain = not os.path.splitext(os.path.basename(output))[1]
    return is_remote(output) or output.endswith(("/", os.sep)) or os.path.isdir(output) or plain


def _source_of(paths: Paths, detector: Detector, probabilities: bool, keep: Sequence[str]) -> RowSource:
    names = [*detector.reads, LOGITS]
    return RowSource(paths, names, class_names=detector.class_names, probabilities=probabilities, keep=keep)


def _streams_in_pieces(detector: Detector) -> bool:
    from normscale.jobs.running import streams_in_pieces

    return streams_in_pieces(detector)


def _score_to_file(job: _ScoreJob, source: RowSource, output: str, tick: Tick | None) -> ScoreResult:
    """All rows in order, one chunk after the other, by this process."""
    detector = copy.copy(job.detector) if job.stream else job.detector
    rows = PieceRows(source.chunks(), detector.reads, job.on_invalid)
    counter = ProgressCounter("scoring", 1, source.n_bytes, tick)
    n_flagged = 0
    with open_score_writer(output, job.columns) as writer:
        for columns in _scored(job, rows, detector.stream if job.stream else detector.score):
            writer.append(**columns)
            n_flagged += int(columns["is_ood"].sum()) if job.limit is not None else 0
            share = len(columns["score"]) / source.n_rows if source.n_rows else 0.0
            counter.add(0, len(columns["score"]), int(share * source.n_bytes))
        n_rows = writer.n_rows
    return ScoreResult(output, n_rows, n_flagged if job.limit is not None else None, rows.skipped, detector)


def _scored(job: _ScoreJob, rows: PieceRows, scorer: Callable[..., FloatArray]) -> Iterator[Columns]:
    """What is written of every chunk."""
    for chunk, good in rows.with_masks():
        outputs = chunk.outputs
        try:
            if good is None or good.all():
                scores = scorer(outputs, threads=job.threads)
            else:
                scores = np.full(len(outputs), np.nan)
                if good.any():
                    scores[good] = scorer(outputs[good], threads=job.threads)
        except InvalidInput as error:
            raise rows.explain(error) from None
        columns: Columns = {**chunk.columns, "score": scores}
        if job.with_file:
            names = np.array([job.layout.name_of(path) for path, _, _ in chunk.origins], object)
            columns[FILE] = np.repeat(names, [n for _, _, n in chunk.origins])
        predicted = outputs.predicted if job.layout.has_logits else None
        if predicted is not None:
            columns["predicted"] = predicted if good is None else predicted_where_finite(outputs)
        if job.limit is not None:
            columns["is_ood"] = job.detector.decide(scores, outputs, job.limit)
        yield {name: columns[name] for name in job.columns}


class _PieceReport(NamedTuple):
    n_rows: int
    n_flagged: int
    skipped: Skipped


def _score_to_folder(
    job: _ScoreJob, pieces: list[Piece], folder: JobFolder, engine: Engine, in_order: bool, tick: Tick | None
) -> ScoreResult:
    done = _finished(folder, pieces)
    before = len(done)
    missing = [piece for piece in pieces if piece.number not in done]
    counter = ProgressCounter("scoring", len(missing), sum(piece.n_bytes for piece in missing), tick)
    moved = job.detector
    stored = folder.read(MOVED) if job.stream and not missing else None
    if stored is not None:
        moved = type(moved).from_state(*unpack_state(stored))
    elif in_order:
        moved = _stream_in_order(job, pieces, folder, done, counter)
    else:
        starts: Sequence[Any] = [None] * len(pieces)
        if job.stream:
            from normscale.jobs import running

            starts = running.start_states(moved, pieces, job.layout, job.on_invalid, folder, engine, tick)
            moved = running.moved_detector(moved, starts[-1])
        for place, report in engine.map(_score_piece, job, [(piece, starts[piece.number]) for piece in missing]):
            done[missing[place].number] = report
            counter.add(1, report.n_rows, missing[place].n_bytes)
    _require_parts(folder, pieces)
    if job.stream:
        folder.write(MOVED, moved.pack())
        folder.remove_folder(_CHAIN)
        if not in_order:
            from normscale.jobs.running import STARTS

            folder.remove_folder(STARTS)
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


def _stream_in_order(
    job: _ScoreJob, pieces: list[Piece], folder: JobFolder, done: dict[int, _PieceReport], counter: ProgressCounter
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


def _score_piece(job: _ScoreJob, task: tuple[Piece, Any]) -> _PieceReport:
    """Score a piece and write its file: runs in a worker."""
    piece, start = task
    if start is None:
        return _score_with(job, piece, job.detector.score)
    from normscale.jobs.running import stream_rows

    stream = stream_rows(job.detector, start)
    return _score_with(job, piece, lambda outputs, threads: stream(outputs))


def _score_with(job: _ScoreJob, piece: Piece, scorer: Callable[..., FloatArray]) -> _PieceReport:
    rows = PieceRows(read_piece(piece, job.layout), job.detector.reads, job.on_invalid)
    chunks = list(_scored(job, rows, scorer))
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
    >>> from normscale.jobs.sources import Span
    >>> part_name(Piece(12, (Span(SourceFile("/in/day=1/a.parquet", 1, 1), None, 0, 0, None),), 5, 1))
    'day=1/part-000012.parquet'
    """
    folders = piece.file.path.partition("?")[0].replace(os.sep, "/").split("/")[:-1]
    return "/".join([*(name for name in folders if "=" in name), f"part-{piece.number:06d}.parquet"])


def _plan_document(job: _ScoreJob, pieces: list[Piece]) -> dict[str, Any]:
    """All that decides the bytes of the output."""
    limit = job.limit
    return {
        "version": __version__,
        "detector": f"{job.detector.name} {hashlib.sha256(job.detector.pack()).hexdigest()}",
        "setting": "stream" if job.stream else "frozen",
        "threshold": "none" if limit is None else limit.value,
        "threshold_per_class": None if limit is None or limit.per_class is None else list(limit.per_class),
        "on_invalid": job.on_invalid,
        "probabilities": job.layout.probabilities,
        "kept_columns": list(job.layout.kept),
        "kernels": backend(),
        "files": [list(file) for file in dict.fromkeys(piece.file for piece in pieces)],
        "pieces": [[piece.spans[0].first_row, piece.n_bytes] for piece in pieces],
    }


def _parquet_bytes(job: _ScoreJob, columns: dict[str, NDArray[Any]], report: _PieceReport) -> bytes:
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


def _require_parts(folder: JobFolder, pieces: list[Piece]) -> None:
    """Raise where workers wrote to a folder that is not the one seen from here."""
    lost = [part_name(piece) for piece in _missing_parts(folder, pieces)]
    if lost:
        raise EngineFailed(
            f"{len(lost)} of {len(pieces)} files, such as {lost[0]}, were written and are not in {folder.path}. On a "
            "cluster of several machines the output must be a place that all of them see, such as a shared disk or "
            "s3://bucket/scores."
        )


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
