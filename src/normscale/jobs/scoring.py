"""Score the rows of tables into a file, or into a folder of one file a piece where a rerun does what is missing."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._validate import FloatArray, IntArray
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput
from normscale.jobs.running import Engine, JobOptions, Paths, ProgressCounter, Tick, run
from normscale.jobs.sources import MemoryBound, Piece, PieceRows, RowSource, Skipped
from normscale.metrics.thresholds import Threshold
from normscale.outputs import LOGITS, predicted_where_finite
from normscale.rows import CHUNK_ELEMENTS, TEXT, is_remote, open_sink
from normscale.rows.reader import Chunk, Columns

FILE = "file"
"""The column that says which file a row comes from, where several are scored."""
SCORE_COLUMNS = {"score": np.dtype(np.float64), "is_ood": np.dtype(np.bool_), "predicted": np.dtype(np.int64)}
"""The columns of every table of scores: the score (higher is more OoD), whether it is flagged, the class."""


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


class ScoreJob(NamedTuple):
    """What all tasks of a job share."""

    detector: Detector
    source: RowSource
    on_invalid: str = "raise"
    limit: Threshold | None = None
    stream: bool = False
    with_file: bool = False
    by: str = ""
    """The column that names the source of a row, where each has a stream of its own."""
    order_by: str = ""
    """The column by which a stream is sorted."""
    memory: int | str | None = None
    threads: int = 1
    output: str = ""

    @property
    def columns(self) -> dict[str, Any]:
        """Names and types of what is written."""
        layout = self.source.layout
        names = ["score"] + ["predicted"] * layout.has_logits + ["is_ood"] * (self.limit is not None)
        own = {FILE: TEXT} if self.with_file else {}
        return {**own, **layout.kept, **{name: SCORE_COLUMNS[name] for name in names}}

    def rows(self, piece: Piece | None) -> PieceRows:
        """The rows of a piece, or all."""
        return self.source.rows(piece, self.detector.reads, self.on_invalid)

    def scored(self, rows: PieceRows, scorer: Callable[..., FloatArray]) -> Iterator[Columns]:
        """What is written of every chunk, in the order of the rows."""
        layout = self.source.layout
        for chunk, good in self._sorted_at_once(rows) if self.order_by else rows.with_masks():
            outputs = chunk.outputs
            with rows.explained():
                if good is None or good.all():
                    scores = self.streamed(chunk, scorer)
                else:
                    scores = np.full(len(outputs), np.nan)
                    scores[good] = self.streamed(chunk.take(good), scorer)
            columns: Columns = {**chunk.columns, "score": scores}
            if self.with_file:
                paths = [path.partition("?")[0].removeprefix(layout.root) for path, _, _ in chunk.origins]
                columns[FILE] = np.repeat(np.array(paths, object), [n for _, _, n in chunk.origins])
            if layout.has_logits:
                columns["predicted"] = outputs.predicted if good is None else predicted_where_finite(outputs)
            if self.limit is not None:
                columns["is_ood"] = self.detector.predict(outputs, scores=scores, threshold=self.limit)
            yield {name: columns[name] for name in self.columns}

    def streamed(self, chunk: Chunk, scorer: Callable[..., FloatArray]) -> FloatArray:
        """The scores of a chunk of good rows; it is given to the scorer in the order of the stream."""
        sources = chunk.columns[self.by] if self.by else None
        if not self.order_by:
            more = {} if sources is None else {"by": sources}
            return scorer(chunk.outputs, threads=self.threads, **more) if len(chunk.outputs) else np.empty(0)
        order = _order(chunk.columns[self.order_by], self.order_by)
        scores, step = np.empty(len(order)), max(1, CHUNK_ELEMENTS // sum(self.source.layout.widths.values()))
        for start in range(0, len(order), step):
            places = order[start : start + step]
            more = {} if sources is None else {"by": sources[places]}
            scores[places] = scorer(chunk.outputs[places], threads=self.threads, **more)
        return scores

    def memory_bound(self) -> MemoryBound:
        """Counts rows that are sorted: they are in memory twice, as they were read and in their order."""
        why = f"order_by={self.order_by!r} sorts all rows of the stream"
        return MemoryBound(self.memory, why, "sort the tables before", copies=2)

    def _sorted_at_once(self, rows: PieceRows) -> Iterator[tuple[Chunk, NDArray[np.bool_] | None]]:
        bound, found = self.memory_bound(), []
        for chunk, good in rows.with_masks():
            bound.add(chunk.outputs, self.source.n_rows)
            found.append((chunk, good))
        masks = [good for _, good in found if good is not None]
        if found:
            yield Chunk.join([chunk for chunk, _ in found]), np.concatenate(masks) if masks else None


def _order(column: NDArray[Any], name: str) -> IntArray:
    """The places of rows in the order of a column: numbers, times, or texts; texts that are numbers count as these."""
    if column.dtype.kind == "O":
        values = column.tolist()
        missing = [value is None or value == "" for value in values]
        try:
            column = np.array([np.nan if value is None else float(value) for value in values])
        except (TypeError, ValueError):
            column = np.array(values)
    else:
        missing = [False]
    lost = np.array(missing) if any(missing) else column != column  # NaN and NaT are not what they are
    if np.any(lost):
        raise InvalidInput(f"row {int(np.argmax(lost))} has no {name}, so its place in the stream is not known.")
    return np.argsort(column, kind="stable")


def score(
    paths: Paths,
    detector: Detector,
    output: str | os.PathLike[str],
    *,
    stream: bool = False,
    by: str | None = None,
    order_by: str | None = None,
    threshold: float | None = None,
    keep_columns: Sequence[str] = (),
    threads: int = 1,
    **options: Any,
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
    by : str, optional
        With ``stream``: a column, such as a camera's id, whose every value has a stream of its own. Workers share the
        sources among them. The column is written beside the scores. The result's detector keeps all streams.
    order_by : str, optional
        With ``stream``: a column, such as a time, in whose order the stream takes the rows; rows with the same value
        keep the order of the files. The scores stand in the order of the files all the same. All rows that a process
        streams are in its memory.
    threshold : float, optional
        Flag scores above this, whatever threshold the detector carries.
    keep_columns : sequence of str
        Columns of the tables, such as an id or a time, to write beside the scores.
    threads : int
        Threads that share the work of this process.
    **options
        See :class:`~normscale.jobs.JobOptions`.
    """
    given = JobOptions(**options)
    limit = detector.threshold_ if threshold is None else Threshold(_validate.real(threshold, "threshold"))
    moves = stream and detector._runs
    for option, column in {"by": by, "order_by": order_by}.items():
        if column is not None and not moves:
            raise InvalidInput(f"{option}={column!r} is for streams; pass stream=True, and a detector that streams.")
    kept = list(dict.fromkeys([*keep_columns, *filter(None, (by, order_by))]))
    source = source_for(paths, detector, given, kept)
    layout = source.layout
    if limit is not None and limit.per_class is not None and not layout.has_logits:
        raise InvalidInput(
            f"the detector has one threshold for each predicted class, and {source.path} has no logits to predict "
            "from. Add the logits to the table, or give one threshold."
        )
    if taken := [name for name in layout.kept if name in (*SCORE_COLUMNS, FILE)]:
        raise InvalidInput(
            f"the column {taken[0]!r} of {source.path} cannot be kept: the scores have one of that name."
        )
    job = ScoreJob(detector, source, given.on_invalid, limit, moves, not source.is_one_table)
    job = job._replace(by=by or "", order_by=order_by or "", memory=given.memory, threads=threads)
    source.look(given.say, reads_logits=LOGITS in detector.reads)
    if is_folder(os.fspath(output)):
        from normscale.jobs.score_folder import score_to_folder

        source.refuse_pieces("name a file for its scores, or - ")
        return score_to_folder(job, source.file_pieces(given.piece_rows), output, given)
    if given.engine not in (None, "here") or given.address is not None:
        raise InvalidInput("workers write their scores into a folder, one file a piece; add --output FOLDER.")
    return _score_to_file(job, os.fspath(output), given.tick)


def source_for(paths: Paths, detector: Detector, given: JobOptions, keep: Sequence[str] = ()) -> RowSource:
    """The rows that a fitted detector scores."""
    detector._require_fitted()
    names, probabilities = [*detector.reads, LOGITS], given.probabilities
    return RowSource(paths, names, class_names=detector.class_names, probabilities=probabilities, keep=keep)


def is_folder(output: str) -> bool:
    """Whether scores go into a folder: an object store's, one that is there, or a name without a suffix.

    Examples
    --------
    >>> is_folder("scores.csv"), is_folder("-"), is_folder("scores"), is_folder("s3://bucket/scores")
    (False, False, True, True)
    """
    plain = not os.path.splitext(os.path.basename(output))[1] or output.endswith(("/", os.sep))
    return output != "-" and (is_remote(output) or os.path.isdir(output) or plain)


def _score_to_file(job: ScoreJob, output: str, tick: Tick | None) -> ScoreResult:
    detector = copy.copy(job.detector) if job.stream else job.detector
    rows, source = job.rows(None), job.source
    counter = ProgressCounter("scoring", 1, tick)
    n_rows = n_flagged = 0
    with open_sink(output, job.columns) as sink:
        for columns in job.scored(rows, detector.stream if job.stream else detector.score):
            sink.write(columns)
            n_flagged += int(columns["is_ood"].sum()) if job.limit is not None else 0
            n_scored = len(columns["score"])
            n_rows += n_scored
            counter.add(n_scored / source.n_rows if source.n_rows else 0.0, n_scored)
    return ScoreResult(output, n_rows, n_flagged if job.limit is not None else None, rows.skipped, detector)


def gathered_scores(paths: Paths, detector: Detector, engine: Engine, given: JobOptions) -> tuple[FloatArray, Skipped]:
    """The finite scores of all rows, in order, as fitted; made by an engine, and kept in memory, 8 bytes each."""
    source = source_for(paths, detector, given)
    source.look(given.say, reads_logits=LOGITS in detector.reads)
    pieces = source.file_pieces(given.piece_rows)
    job = ScoreJob(detector, source, given.on_invalid)
    found = run(engine, _piece_scores, job, pieces, ProgressCounter("scoring", len(pieces), given.tick))
    scores: FloatArray = np.concatenate([own for own, _ in found])
    if not scores.size:
        raise InvalidInput(f"{source.path} holds no finite score; both sides need some.")
    return scores, sum((skipped for _, skipped in found), Skipped())


def _piece_scores(job: ScoreJob, piece: Piece) -> tuple[tuple[FloatArray, Skipped], int]:
    """The finite scores of a piece: runs in a worker."""
    rows = job.rows(piece)
    scores = np.concatenate([np.empty(0), *(columns["score"] for columns in job.scored(rows, job.detector.score))])
    good = np.isfinite(scores)
    if not good.all() and job.on_invalid == "raise":
        bad = int(np.argmin(good))
        raise InvalidInput(
            f"{piece.file.path}: a score is {scores[bad]}; a ranking needs finite scores. Pass "
            'on_invalid="skip" to leave such rows out, or find out why.'
        )
    return (scores[good], rows.skipped._replace(n=int((~good).sum()))), len(scores)
