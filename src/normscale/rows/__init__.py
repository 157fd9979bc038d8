"""Rows of logits and scores, from whatever holds them, to whatever keeps them; never pickle.

A format is one file in ``formats/``, or anywhere: see :func:`register_format`.
"""

from __future__ import annotations

from normscale.rows.columns import TEXT
from normscale.rows.files import (
    SourceFile,
    check_folder,
    file_system,
    find_files,
    format_of,
    is_pipe,
    is_remote,
    need_arrow,
    register_format,
)
from normscale.rows.reader import CHUNK_ELEMENTS, TableReader, open_table, read_table
from normscale.rows.writing import open_sink, write_table

__all__ = ["CHUNK_ELEMENTS", "TEXT", "SourceFile", "TableReader", "check_folder", "file_system", "find_files"]
__all__ += ["format_of", "is_pipe", "is_remote", "need_arrow", "open_sink", "open_table"]
__all__ += ["read_table", "register_format", "write_table"]
