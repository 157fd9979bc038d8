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
from normscale.jobs.options import JobOptions, Paths, ProgressCounter, Tick, with_defaults
from normscale.jobs.pieces import Columns, Layout, PieceRows, Skipped
from normscale.jobs.sources import RowSource
from normscale.outputs import LOGITS, predicted_where_finite
from normscale.rows import SCORE_COLUMNS, TEXT, is_remote, open_score_writer

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
    limit: Threshold | None
    layout: Layout
    stream: bool
    on_invalid: str
    with_file: bool
    by: str = ""
    """The column that names the source of a row, where each has a stream of its own."""
    threads: int = 1
    output: str = ""

    @property
    def columns(self) -> dict[str, Any]:
        """Names and types of what is written."""
        names = ["score"] + ["predicted"] * self.layout.has_logits + ["is_ood"] * (self.limit is not None)
        own = {FILE: TEXT} if self.with_file else {}
        return {**own, **self.layout.kept, **{name: np.dtype(SCORE_COLUMNS[name]) for name in names}}

    def scored(self, rows: PieceRows, scorer: Callable[..., FloatArray]) -> Iterator[Columns]:
        """What is written of every chunk."""
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
                names = np.array([self.layout.name_of(path) for path, _, _ in chunk.origins], object)
                columns[FILE] = np.repeat(names, [n for _, _, n in chunk.origins])
            if self.layout.has_logits:
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
    detector._require_fitted()
    limit = detector.threshold_ if threshold is None else Threshold(_validate.real(threshold, "threshold"))
    moves = stream and detector.has_running_statistics
    if by is not None and not moves:
        raise InvalidInput(f"by={by!r} gives every source a stream; pass stream=True, and a detector that streams.")
    keep_columns = [*keep_columns, *([by] if by is not None and by not in keep_columns else [])]
    source = _source_of(paths, detector, given, keep_columns)
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
    job = ScoreJob(detector, limit, layout, moves, given["on_invalid"], not source.is_one_table, by or "", threads)
    for text in dict.fromkeys(source.look(reads_logits=LOGITS in detector.reads)):
        given["say"](text)
    if is_folder(os.fspath(output)):
        from normscale.jobs.score_folder import score_to_folder

        if source.stays_here:
            raise InvalidInput(f"{source.stays_here} cannot be read in pieces; name a file for its scores, or - .")
        return score_to_folder(job, source.file_pieces(given["piece_rows"]), output, given)
    if given["engine"] not in (None, "here") or given["address"] is not None:
        raise InvalidInput("workers write their scores into a folder, one file a piece; add --output FOLDER.")
    return _score_to_file(job, source, os.fspath(output), given["tick"])


def describe_score(paths: Paths, detector: Detector, **options: Unpack[JobOptions]) -> str:
    """What :func:`score` would read and need, in lines."""
    given = with_defaults(options)
    source = _source_of(paths, detector, given, ())
    return source.describe(source.file_pieces(given["piece_rows"]))


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


def _source_of(paths: Paths, detector: Detector, given: JobOptions, keep: Sequence[str]) -> RowSource:
    names = [*detector.reads, LOGITS]
    probabilities = given["probabilities"]
    return RowSource(paths, names, class_names=detector.class_names, probabilities=probabilities, keep=keep)


def _score_to_file(job: ScoreJob, source: RowSource, output: str, tick: Tick | None) -> ScoreResult:
    """All rows in order, one chunk after the other, by this process."""
    detector = copy.copy(job.detector) if job.stream else job.detector
    rows = PieceRows(source.chunks(), job.layout, detector.reads, job.on_invalid)
    counter = ProgressCounter("scoring", 1, source.n_bytes, tick)
    n_flagged = 0
    with open_score_writer(output, job.columns) as writer:
        for columns in job.scored(rows, detector.stream if job.stream else detector.score):
            writer.append(**columns)
            n_flagged += int(columns["is_ood"].sum()) if job.limit is not None else 0
            share = len(columns["score"]) / source.n_rows if source.n_rows else 0.0
            counter.add(0, len(columns["score"]), int(share * source.n_bytes))
        n_rows = writer.n_rows
    return ScoreResult(output, n_rows, n_flagged if job.limit is not None else None, rows.skipped, detector)
