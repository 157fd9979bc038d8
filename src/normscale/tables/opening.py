"""Open any table: find out its format and hand over to the reader of that format."""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Sequence

from normscale.outputs import ModelOutputs
from normscale.tables.compressed import GZIP
from normscale.tables.formats import check_file, format_by_content, format_by_suffix
from normscale.tables.pipe import PipeSource
from normscale.tables.reader import TableReader


def open_table(
    path: str | os.PathLike[str],
    *,
    chunk_rows: int | None = None,
    names: Sequence[str] | None = None,
    keep: Sequence[str] = (),
) -> TableReader:
    """Open a table of outputs (logits, features, other arrays, labels, a head) to read it chunk by chunk.

    Parameters
    ----------
    path : str or path
        A file ending in .npz, .npy, .safetensors, .parquet (needs ``normscale[arrow]``), .csv, .tsv or .jsonl (also
        compressed: .csv.gz); or ``-``, or a named pipe, which may carry any of these: the first bytes tell. A stream
        of .npy or of text is read as it comes, a chunk as soon as its rows are there; the others go through a
        temporary file.
    chunk_rows : int, optional
        Rows per chunk; by default as many as make about four million numbers.
    names : sequence of str, optional
        Read these arrays only, as far as the table has them; labels and head are always read. By default all.
    keep : sequence of str
        Further columns, such as an id or a time, that :meth:`TableReader.chunks_and_columns` gives beside the chunks;
        texts and numbers, no logits. Not from .npy and .safetensors.

    Raises
    ------
    FileFormatError
        When there is no such file, or it is damaged or not what its name says.
    MissingExtra
        When the file is .parquet and pyarrow is not installed.
    MissingOutput
        When the table has none of ``names``.

    Notes
    -----
    :mod:`normscale.tables.arrays` says how the arrays in .npz and .safetensors files are named,
    :mod:`normscale.tables.columns` how the columns of .csv and .parquet files are. Nothing is ever unpickled.

    Examples
    --------
    >>> import numpy, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "outputs.npz")
    >>> numpy.savez(path, logits=numpy.eye(5), labels=numpy.arange(5))
    >>> [len(chunk) for chunk in open_table(path, chunk_rows=2).chunks()]
    [2, 2, 1]
    """
    name = os.fspath(path)
    if is_pipe(name):
        return _open_pipe(name, chunk_rows, names, keep)
    check_file(name)
    return _reader(format_by_suffix(name), name, chunk_rows, None, names, keep)


def read_table(path: str | os.PathLike[str], *, names: Sequence[str] | None = None) -> ModelOutputs:
    """Read a whole table of outputs; see :func:`open_table` for what it may be.

    Examples
    --------
    >>> import numpy, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "logits.npy")
    >>> numpy.save(path, numpy.zeros((3, 4), dtype=numpy.float32))
    >>> read_table(path)
    ModelOutputs(n=3, logits=4)
    """
    with open_table(path, names=names) as table:
        return table.read()


def is_pipe(path: str) -> bool:
    """Whether a path can be read once only."""
    if path == "-":
        return True
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _reader(
    kind: str,
    file: str,
    chunk_rows: int | None,
    shown: str | None,
    names: Sequence[str] | None,
    keep: Sequence[str],
) -> TableReader:
    """The reader of a format; each is imported only when used."""
    if kind == "npz":
        from normscale.tables.read_npz import NpzReader

        return NpzReader(file, chunk_rows, shown=shown, names=names, keep=keep)
    if kind == "npy":
        from normscale.tables.read_npy import NpyReader

        return NpyReader(file, chunk_rows, shown=shown, names=names, keep=keep)
    if kind == "safetensors":
        from normscale.tables.read_safetensors import SafetensorsReader

        return SafetensorsReader(file, chunk_rows, shown=shown, names=names, keep=keep)
    if kind == "parquet":
        from normscale.tables.read_parquet import ParquetReader

        return ParquetReader(file, chunk_rows, shown=shown, names=names, keep=keep)
    if kind == "jsonl":
        from normscale.tables.read_jsonl import JsonlReader

        return JsonlReader(file, chunk_rows, shown=shown, names=names, keep=keep)
    from normscale.tables.read_csv import CsvReader

    delimiter = "\t" if kind == "tsv" else None
    return CsvReader(file, chunk_rows, shown=shown, names=names, keep=keep, delimiter=delimiter)


def _open_pipe(path: str, chunk_rows: int | None, names: Sequence[str] | None, keep: Sequence[str]) -> TableReader:
    source = PipeSource.open(path)
    try:
        head = source.head()
        if head.startswith(GZIP):
            source = source.decompressed()
            head = source.head()
        if not head:
            raise source.damaged("npy or .csv", "it carries nothing")
        kind = format_by_content(head)
        if kind == "npy":
            from normscale.tables.read_npy import NpyPipeReader

            return NpyPipeReader(source, chunk_rows, names=names, keep=keep)
        if kind == "csv":
            from normscale.tables.read_csv import CsvReader

            return CsvReader(source.shown, chunk_rows, names=names, keep=keep, source=source)
        if kind == "jsonl":
            from normscale.tables.read_jsonl import JsonlReader

            return JsonlReader(source.shown, chunk_rows, names=names, keep=keep, source=source)
        file = source.spill()
        source.close()
    except BaseException:
        source.close()
        raise
    try:
        reader = _reader(kind, file, chunk_rows, source.shown, names, keep)
    except BaseException:
        os.unlink(file)
        raise
    reader.release = weakref.finalize(reader, os.unlink, file)  # runs once: on close, or with the reader's end
    return reader
