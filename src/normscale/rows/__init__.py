"""Rows of logits and scores, from whatever holds them, to whatever keeps them; never pickle.

A format is one file in ``formats/``, or anywhere: see :func:`register_format`.
"""

from __future__ import annotations

from normscale.rows.arrow import need_arrow
from normscale.rows.columns import TEXT
from normscale.rows.format import BodyLimits, TableFormat, format_of, register_format
from normscale.rows.gathering import gather
from normscale.rows.locations import SourceFile, file_system, find_files, names_many
from normscale.rows.opening import is_pipe, open_table, read_table
from normscale.rows.reader import CHUNK_ELEMENTS, ReadOptions, TablePart, TableReader
from normscale.rows.source import is_remote
from normscale.rows.writing import SCORE_COLUMNS, ScoreWriter, check_folder, open_score_writer, write_table

__all__ = [
    "CHUNK_ELEMENTS",
    "SCORE_COLUMNS",
    "TEXT",
    "BodyLimits",
    "ReadOptions",
    "ScoreWriter",
    "SourceFile",
    "TableFormat",
    "TablePart",
    "TableReader",
    "check_folder",
    "file_system",
    "find_files",
    "format_of",
    "gather",
    "is_pipe",
    "is_remote",
    "names_many",
    "need_arrow",
    "open_score_writer",
    "open_table",
    "read_table",
    "register_format",
    "write_table",
]
