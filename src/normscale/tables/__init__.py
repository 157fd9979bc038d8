"""Tables of logits and scores: .npz, .npy, .safetensors, .parquet, .csv, and pipes; never pickle."""

from __future__ import annotations

from normscale.tables.opening import open_table, read_table
from normscale.tables.reader import TableReader
from normscale.tables.score_writer import SCORE_COLUMNS, ScoreWriter, open_score_writer
from normscale.tables.table_writer import write_table

__all__ = [
    "SCORE_COLUMNS",
    "ScoreWriter",
    "TableReader",
    "open_score_writer",
    "open_table",
    "read_table",
    "write_table",
]
