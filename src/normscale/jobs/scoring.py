"""Score the rows of tables into a file, or into a folder of one file a piece where a rerun does what is missing."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.detectors.threshold import Threshold
from normscale.errors import InvalidInput
from normscale.jobs.engines import Engine
from normscale.jobs.options import JobOptions, Paths, ProgressCounter, Tick, say_all, with_defaults
from normscale.jobs.pieces import Piece, PieceRows, Skipped
from normscale.jobs.sources import RowSource
from normscale.outputs import LOGITS, predicted_where_finite
from normscale.rows import SCORE_COLUMNS, TEXT, is_remote, open_score_writer
from normscale.rows.chunks import Columns

FILE = "file"
"""The column that says which file a row comes from, where several are scored."""


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
    threads: int = 1
    output: str = ""

    @property
    def columns(self) -> dict[str, Any]:
        """Names and types of what is written."""
        layout = self.source.layout
        names = ["score"] + ["predicted"] * layout.has_logits + ["is_ood"] * (self.limit is not None)
        own = {FILE: TEXT} if self.with_file else {}
        return {**own, **layout.kept, **{name: np.dtype(SCORE_COLUMNS[name]) for name in names}}

    def rows(self, piece: Piece | None) -> PieceRows:
        """The rows of a piece, or all."""
        return self.source.rows(piece, self.detector.reads, self.on_invalid)

    def scored(self, rows: PieceRows, scorer: Callable[..., FloatArray]) -> Iterator[Columns]:
        """What is written of every chunk."""
        layout = self.source.layout
        for chunk, good in rows.with_masks():
            outputs = chunk.outputs
            more = {"by": chunk.columns[self.by]} if self.by else {}
            try:
                if good is None or good.all():
                    scores = scorer(outputs, threads=self.threads, **more)
                else:
                    scores = np.full(len(outputs), np.nan)
                    if good.any():
                        own = {name: column[good] for name, column in more.items()}
                        scores[good] = scorer(outputs[good], threads=self.threads, **own)
            except InvalidInput as error:
                raise rows.explain(error) from None
            columns: Columns = {**chunk.columns, "score": scores}
            if self.with_file:
                paths = [path.partition("?")[0].removeprefix(layout.root) for path, _, _ in chunk.origins]
                columns[FILE] = np.repeat(np.array(paths, object), [n for _, _, n in chunk.origins])
            if layout.has_logits:
                columns["predicted"] = outputs.predicted if good is None else predicted_where_finite(outputs)
            if self.limit is not None:
                columns["is_ood"] = self.detector.decide(scores, outputs, self.limit)
            yield {name: columns[name] for name in self.columns}


def score(
    paths: Paths,
    detector: Detector,
    output: str | os.PathLike[str],
    *,
    stream: bool = False,
    by: str | None = None,
    threshold: float | None = None,
    keep_columns: Sequence[str] = (),
    threads: int = 1,
    **options: Unpack[JobOptions],
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
        With ``stream``: a column, such as a camera's id, whose every value has a stream of its own, made by this
        process. The column is written beside the scores. The result's detector keeps all streams.
    threshold : float, optional
        Flag scores above this, whatever threshold the detector carries.
    keep_columns : sequence of str
        Columns of the tables, such as an id or a time, to write beside the scores.
    threads : int
        Threads that share the work of this process.
    **options
        See :class:`~normscale.jobs.JobOptions`.
    """
    given = with_defaults(options)
    limit = detector.threshold_ if threshold is None else Threshold(_validate.real(threshold, "threshold"))
    moves = stream and detector.has_running_statistics
    if by is not None and not moves:
        raise InvalidInput(f"by={by!r} gives every source a stream; pass stream=True, and a detector that streams.")
    keep_columns = [*keep_columns, *([by] if by is not None and by not in keep_columns else [])]
    source = source_for(paths, detector, given, keep_columns)
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
    job = ScoreJob(detector, source, given["on_invalid"], limit, moves, not source.is_one_table, by or "", threads)
    say_all(source.look(reads_logits=LOGITS in detector.reads), given["say"])
    if is_folder(os.fspath(output)):
        from normscale.jobs.score_folder import score_to_folder

        if source.stays_here:
            raise InvalidInput(f"{source.stays_here} cannot be read in pieces; name a file for its scores, or - .")
        return score_to_folder(job, source.file_pieces(given["piece_rows"]), output, given)
    if given["engine"] not in (None, "here") or given["address"] is not None:
        raise InvalidInput("workers write their scores into a folder, one file a piece; add --output FOLDER.")
    return _score_to_file(job, os.fspath(output), given["tick"])


def source_for(paths: Paths, detector: Detector, given: JobOptions, keep: Sequence[str] = ()) -> RowSource:
    """The rows that a fitted detector scores."""
    detector._require_fitted()
    names, probabilities = [*detector.reads, LOGITS], given["probabilities"]
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
    counter = ProgressCounter("scoring", 1, source.n_bytes, tick)
    n_flagged = 0
    with open_score_writer(output, job.columns) as writer:
        for columns in job.scored(rows, detector.stream if job.stream else detector.score):
            writer.append(**columns)
            n_flagged += int(columns["is_ood"].sum()) if job.limit is not None else 0
            share = len(columns["score"]) / source.n_rows if source.n_rows else 0.0
            counter.add(0, len(columns["score"]), int(share * source.n_bytes))
    return ScoreResult(output, writer.n_rows, n_flagged if job.limit is not None else None, rows.skipped, detector)


def gathered_scores(paths: Paths, detector: Detector, engine: Engine, given: JobOptions) -> tuple[FloatArray, Skipped]:
    """The finite scores of all rows, in order, as fitted; made by an engine, and kept in memory, 8 bytes each."""
    source = source_for(paths, detector, given)
    say_all(source.look(reads_logits=LOGITS in detector.reads), given["say"])
    pieces = source.file_pieces(given["piece_rows"])
    counter = ProgressCounter("scoring", len(pieces), sum(piece.n_bytes for piece in pieces), given["tick"])
    told: dict[int, tuple[FloatArray, Skipped]] = {}
    for place, result in engine.map(_piece_scores, ScoreJob(detector, source, given["on_invalid"]), pieces):
        told[place] = result
        counter.add(1, len(result[0]) + result[1].n, pieces[place].n_bytes)
    found = [told[place] for place in range(len(pieces))]
    scores: FloatArray = np.concatenate([own for own, _ in found])
    if not scores.size:
        raise InvalidInput(f"{source.path} holds no finite score; both sides need some.")
    return scores, sum((skipped for _, skipped in found), Skipped())


def _piece_scores(job: ScoreJob, piece: Piece) -> tuple[FloatArray, Skipped]:
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
    return scores[good], rows.skipped._replace(n=int((~good).sum()))
