"""Scores in many files: pieces of one column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from normscale._validate import FloatArray
from normscale.errors import FileFormatError, InvalidInput
from normscale.jobs.sources import LISTED, Paths, Piece, Skipped, cut_parts
from normscale.rows import SourceFile, TablePart, find_files
from normscale.rows.formats.parquet import open_parquet
from normscale.rows.opening import source_of


class ScorePiece(NamedTuple):
    """Some scores, of one side."""

    is_ood: bool
    piece: Piece


def plan_scores(paths: Paths, is_ood: bool, column: str, piece_rows: int) -> list[ScorePiece]:
    """Cut files of scores into pieces; only the heads of the files are read."""
    pieces: list[Piece] = []
    for file in find_files(paths):
        with _opened(file) as opened:
            if column not in opened.schema_arrow.names:
                raise FileFormatError(
                    f"{file.path} has no column {column!r}; it has {', '.join(opened.schema_arrow.names[:8])}."
                )
            metadata = opened.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            parts = [TablePart(group.num_rows, 8 * group.num_rows) for group in groups]
        if metadata.num_rows:
            pieces += cut_parts(len(pieces), file, parts, piece_rows)
    if not pieces:
        raise InvalidInput(f"the {'OoD' if is_ood else 'in-distribution'} files hold no scores.")
    return [ScorePiece(is_ood, piece) for piece in pieces]


def read_scores(task: ScorePiece, column: str, on_invalid: str) -> tuple[FloatArray, Skipped]:
    """The finite scores of a piece, without minus zeros, which tie with zeros."""
    piece = task.piece
    first_row = piece.spans[0].first_row
    piece.file.check()
    parts = list(_columns(piece, column))
    scores: FloatArray = np.concatenate([np.empty(0), *parts])
    piece.file.check()
    good = np.isfinite(scores)
    if good.all():
        return scores + 0.0, Skipped()
    bad = np.flatnonzero(~good)
    if on_invalid == "raise":
        raise InvalidInput(
            f"{piece.file.path}: the score in row {first_row + int(bad[0])} is {scores[bad[0]]}; a ranking needs "
            'finite scores. Pass on_invalid="skip" to leave such rows out, or find out why.'
        )
    listed = tuple((piece.file.path, first_row + int(row)) for row in bad[:LISTED])
    return scores[good] + 0.0, Skipped(bad.size, listed)


def _columns(piece: Piece, column: str) -> Iterator[FloatArray]:
    with _opened(piece.file) as file:
        groups: Sequence[int] = piece.spans[0].parts or range(file.metadata.num_row_groups)
        for batch in file.iter_batches(1 << 20, row_groups=groups, columns=[column], use_threads=False):
            values = batch.column(0)
            if values.null_count:
                raise InvalidInput(f"{piece.file.path}: a score is null. Drop the row.")
            yield values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)


def _opened(file: SourceFile) -> Any:
    try:
        return open_parquet(source_of(file.path))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{file.path} is damaged, or is no .parquet file of scores: {error}") from error
