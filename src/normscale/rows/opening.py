"""Open any table: find out its format and hand over to the reader of that format."""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Sequence

from normscale.errors import FileFormatError
from normscale.outputs import ModelOutputs
from normscale.rows.format import format_of, format_of_content, names_a_table
from normscale.rows.reader import ReadOptions, TableReader
from normscale.rows.source import GZIP, ByteSource, Pipe, is_remote


def open_table(
    path: str | os.PathLike[str],
    *,
    chunk_rows: int | None = None,
    names: Sequence[str] | None = None,
    keep: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    parts: range | None = None,
) -> TableReader:
    """Open a table of outputs (logits, features, other arrays, labels, a head) to read it chunk by chunk.

    Parameters
    ----------
    path : str or path
        A file ending in .npz, .npy, .safetensors, .parquet (needs ``normscale[arrow]``), .csv, .tsv or .jsonl (also
        compressed: .csv.gz); or ``-``, or a named pipe, which may carry any of these: the first bytes tell. A stream
        of .npy or of text is read as it comes, a chunk as soon as its rows are there; the others go through a
        temporary file. A path with a scheme (``s3://...``) is read from its object store.
    chunk_rows : int, optional
        Rows per chunk; by default as many as make about four million numbers.
    names : sequence of str, optional
        Read these arrays only, as far as the table has them; labels and head are always read. By default all.
    keep : sequence of str
        Further columns, such as an id or a time, that :meth:`TableReader.chunks_and_columns` gives beside the chunks,
        with their types. Not from .npy and .safetensors.
    class_names : sequence of str, optional
        What labels that are texts are matched to where the table itself does not name its classes.
    parts : range, optional
        Read these of the reader's ``parts`` only: row groups of a Parquet file. By default all.

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
    :mod:`normscale.rows.arrays` says how the arrays in .npz and .safetensors files are named,
    :mod:`normscale.rows.columns` how the columns of .csv and .parquet files are. Nothing is ever unpickled. JSON is
    strict, see :mod:`normscale.encoding.json_text`: NaN and infinity are texts.

    Examples
    --------
    >>> import numpy, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "outputs.npz")
    >>> numpy.savez(path, logits=numpy.eye(5), labels=numpy.arange(5))
    >>> [len(chunk) for chunk in open_table(path, chunk_rows=2).chunks()]
    [2, 2, 1]
    """
    name = os.fspath(path)
    options = ReadOptions(chunk_rows, names, keep, class_names, parts)
    if is_pipe(name):
        return _open_pipe(name, options)
    source = source_of(name)
    return format_of(name).open(source, options)


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


def source_of(path: str) -> ByteSource:
    """The bytes of a file, here or in an object store; raises where there is none here."""
    if is_remote(path):
        return ByteSource.of_store(path)
    check_file(path)
    return ByteSource.of_file(path)


def check_file(path: str) -> None:
    """Raise the most helpful :class:`FileFormatError` when ``path`` is not a file that can be read."""
    try:
        if os.path.isdir(path):
            raise FileFormatError(f"{path} is a folder; give one file in it, such as {_example_in(path)}.")
        with open(path, "rb"):
            return
    except FileNotFoundError:
        raise _missing(path) from None
    except FileFormatError:
        raise
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}. Check its permissions.") from error


def _missing(path: str) -> FileFormatError:
    """Say that a file is missing, and which files there might have been meant."""
    import difflib

    folder, name = os.path.split(path)
    try:
        there = sorted(os.listdir(folder or "."))
    except OSError:
        return FileFormatError(f"no such file: {path}; its folder {folder!r} does not exist either.")
    close = difflib.get_close_matches(name, there, n=3)
    if close:
        return FileFormatError(f"no such file: {path}; did you mean {' or '.join(close)}?")
    tables = [entry for entry in there if names_a_table(entry)]
    if tables:
        shown = ", ".join(tables[:5]) + (f" and {len(tables) - 5} more" if len(tables) > 5 else "")
        return FileFormatError(f"no such file: {path}; the tables in that folder are {shown}.")
    return FileFormatError(f"no such file: {path}; there are no tables in that folder.")


def _example_in(folder: str) -> str:
    try:
        tables = sorted(entry for entry in os.listdir(folder) if names_a_table(entry))
    except OSError:
        tables = []
    return os.path.join(folder, tables[0] if tables else "outputs.npz")


def _open_pipe(path: str, options: ReadOptions) -> TableReader:
    pipe = Pipe.of_path(path)
    try:
        if pipe.head().startswith(GZIP):
            pipe = pipe.decompressed()
        head = pipe.head()
        if not head:
            raise pipe.damaged("npy or .csv", "it carries nothing")
        format = format_of_content(head)
        if format.streams or format.is_text:
            return format.open(pipe, options)
        file = pipe.spill()
        pipe.close()
    except BaseException:
        pipe.close()
        raise
    source = ByteSource.of_file(file, pipe.shown)
    source.release = weakref.finalize(source, os.unlink, file)  # runs once: on close, or with the source's end
    try:
        return format.open(source, options)
    except BaseException:
        source.close()
        raise
