"""Write the outputs of a network in any format that :func:`normscale.tables.open_table` reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from normscale._atomic import atomic_path
from normscale._validate import Rows
from normscale.encoding.json_text import write_json
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import FEATURES, LOGITS, ModelOutputs, as_outputs
from normscale.tables.arrays import (
    ARRAYS,
    CLASS_NAMES,
    HEAD_BIAS,
    HEAD_WEIGHT,
    LABELS,
    LARGEST_HEAD,
    RESERVED,
    native,
)
from normscale.tables.arrow import need_arrow
from normscale.tables.columns import logit_columns
from normscale.tables.compressed import create_text
from normscale.tables.formats import format_by_suffix
from normscale.tables.head_text import HEAD, head_to_text
from normscale.tables.reader import CHUNK_ELEMENTS
from normscale.tables.write_npz import write_npz


def write_table(
    path: str | os.PathLike[str],
    outputs: ModelOutputs | Any,
    *,
    class_names: Sequence[str] | None = None,
) -> None:
    """Write outputs, with labels and head where there are any, to a file that appears whole or not at all.

    Parameters
    ----------
    path : str or path
        Ending in .npz, .safetensors or .parquet (needs ``normscale[arrow]``), which keep everything, in .jsonl (all
        but the head), .csv or .tsv (logits and labels only; text also compressed: .csv.gz) or .npy (logits only); or
        ``-`` for CSV on standard output.
    outputs : ModelOutputs, array of logits, or mapping
    class_names : sequence of str, optional
        One for each class.

    Notes
    -----
    All formats but .csv keep float dtypes; integer logits are read back from .parquet as float64. Numbers in .csv are
    written so that reading them gives the same value in float64.

    Examples
    --------
    >>> import numpy, tempfile
    >>> from normscale.tables import read_table
    >>> path = os.path.join(tempfile.mkdtemp(), "outputs.csv")
    >>> write_table(path, {"logits": [[0.1, 2.0], [1.0, 0.0]], "labels": [1, -1]}, class_names=["cat", "dog"])
    >>> with open(path) as file:
    ...     print(file.read())
    logit_cat,logit_dog,label
    0.1,2.0,1
    1.0,0.0,-1
    <BLANKLINE>
    """
    name = os.fspath(path)
    table = _without_booleans(as_outputs(outputs))
    names = None if class_names is None else _checked_names(table, class_names)
    kind = "csv" if name == "-" else format_by_suffix(name)
    _check_that_it_can_hold(name, kind, table, names)
    if name == "-":
        _write_csv(sys.stdout, table, names)
        sys.stdout.flush()
        return
    if kind == "parquet":
        need_arrow("pyarrow", name)  # before a temporary file is made
    check_folder(name)
    with atomic_path(name) as temporary:
        if kind in ("csv", "tsv"):
            with create_text(temporary, named=name) as text:
                _write_csv(text, table, names, "\t" if kind == "tsv" else ",")
        elif kind == "jsonl":
            with create_text(temporary, named=name) as text:
                _write_jsonl(text, table, names)
        elif kind == "parquet":
            _write_parquet(temporary, name, table, names)
        elif kind == "safetensors":
            _write_safetensors(temporary, table, names)
        elif kind == "npy":
            with open(temporary, "wb") as file:
                np.save(file, table.logits, allow_pickle=False)
        else:
            texts = {key: np.array(value, dtype=np.str_) for key, value in _texts(table, names).items()}
            write_npz(temporary, {**_arrays(table), **texts})


def _without_booleans(table: ModelOutputs) -> ModelOutputs:
    """True and False as 1 and 0, which every format can hold."""
    return table.replace(
        **{name: table.array(name).astype(np.float32) for name in table.names if table.array(name).dtype.kind == "b"}
    )


def check_folder(path: str) -> None:
    """Raise before any work is done when a file cannot be made there."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise FileFormatError(f"cannot write {path}: there is no folder {os.path.dirname(path)!r}; make it first.")
    if os.path.isdir(path):
        raise FileFormatError(f"cannot write {path}: it is a folder; give the name of a file in it.")
    if not os.access(folder, os.W_OK):
        raise FileFormatError(f"cannot write {path}: its folder may not be written to; choose another.")


def _checked_names(table: ModelOutputs, class_names: Sequence[str]) -> list[str]:
    names = [str(entry) for entry in class_names]
    if table.get(LOGITS) is None and table.head is None:
        raise InvalidInput("class_names need logits or a head, which say how many classes there are; got neither.")
    if len(names) != table.n_classes or len(set(names)) != len(names):
        raise InvalidInput(
            f"class_names must be {table.n_classes} different names, one per class; got {len(names)}"
            f"{'' if len(names) != table.n_classes else ', some twice'}."
        )
    return names


def _check_that_it_can_hold(path: str, kind: str, table: ModelOutputs, names: list[str] | None) -> None:
    """Raise when the format has no place for a part of the outputs."""
    shown = "standard output" if path == "-" else path
    taken = [name for name in table.names if name in RESERVED]
    if taken:
        raise InvalidInput(f"{shown}: an array cannot be called {taken[0]} in a file, where that means something else.")
    if table.head is not None and table.head.weight.nbytes > LARGEST_HEAD:
        raise InvalidInput(
            f"{shown}: the head takes {table.head.weight.nbytes} bytes; at most {LARGEST_HEAD} are kept."
        )
    broken = [name for name in names or () if "\n" in name or "\r" in name] if kind in ("csv", "tsv") else []
    if broken:
        raise InvalidInput(
            f"{shown}: the class name {broken[0]!r} holds a line break, which a .{kind} file cannot keep. "
            "Write .parquet, .npz or .safetensors instead."
        )
    if kind not in ("csv", "tsv", "npy", "jsonl"):
        return
    extra = [name for name in table.names if name != LOGITS and kind != "jsonl"] + ["head"] * (table.head is not None)
    if kind == "npy":
        extra += ["labels"] * (table.labels is not None) + ["class names"] * (names is not None)
    if extra or (table.get(LOGITS) is None and kind != "jsonl"):
        only = {"npy": "an .npy file holds logits only", "jsonl": "a .jsonl file holds no head"}.get(
            kind, f"a .{kind} file holds logits and labels only"
        )
        what = f"there are also {', '.join(extra)}" if extra else "there are no logits"
        raise InvalidInput(f"{shown}: {only}, and {what}. Write .parquet, .npz or .safetensors instead.")


def _arrays(table: ModelOutputs) -> dict[str, Rows]:
    """Everything but texts, by the names that :mod:`normscale.tables.arrays` reads."""
    arrays = {name: native(table.array(name)) for name in table.names}
    if table.labels is not None:
        arrays[LABELS] = table.labels
    if table.head is not None:
        arrays[HEAD_WEIGHT], arrays[HEAD_BIAS] = map(native, table.head)
    return arrays


def _texts(table: ModelOutputs, names: list[str] | None) -> dict[str, list[str]]:
    texts = {} if names is None else {CLASS_NAMES: names}
    if table.get(LOGITS) is None and table.get(FEATURES) is None:
        texts[ARRAYS] = list(table.names)  # or else a single array would be taken for the logits
    return texts


def _write_safetensors(path: str, table: ModelOutputs, names: list[str] | None) -> None:
    from safetensors.numpy import save_file

    # The library writes an array's memory as it lies, so a transposed view would come back wrong.
    arrays = {name: np.ascontiguousarray(array) for name, array in _arrays(table).items()}
    save_file(arrays, path, metadata={key: write_json(value) for key, value in _texts(table, names).items()} or None)


def _slices(table: ModelOutputs) -> Iterator[ModelOutputs]:
    """The table in pieces of bounded size."""
    width = sum(table.array(name).shape[1] for name in table.names)
    rows = max(1, min(1 << 20, CHUNK_ELEMENTS // width))
    return (table[start : start + rows] for start in range(0, len(table), rows))


def _write_jsonl(file: IO[str], table: ModelOutputs, names: list[str] | None) -> None:
    """One object per line: the logits as one list, or, where the classes have names, a number for each."""
    header = None if names is None or table.get(LOGITS) is None else logit_columns(len(names), names)
    for part in _slices(table):
        columns = {name: part.array(name).tolist() for name in part.names}
        for row in range(len(part)):
            record: dict[str, Any] = {name: rows[row] for name, rows in columns.items()}
            if header is not None:
                record = dict(zip(header, record.pop(LOGITS), strict=True)) | record
            if part.labels is not None:
                record["label"] = int(part.labels[row])
            file.write(write_json(record) + "\n")


def _write_csv(file: IO[str], table: ModelOutputs, names: list[str] | None, delimiter: str = ",") -> None:
    import csv

    writer = csv.writer(file, lineterminator="\n", delimiter=delimiter)
    header = [*logit_columns(table.n_classes, names), *(["label"] if table.labels is not None else [])]
    if any(mark in name for name in header for mark in ";\t"):  # a reader looks for these outside quotes
        csv.writer(file, lineterminator="\n", delimiter=delimiter, quoting=csv.QUOTE_ALL).writerow(header)
    else:
        writer.writerow(header)
    for part in _slices(table):
        # tolist() turns every float into Python's, whose text is the shortest that gives the same float64
        rows = part.logits.tolist()
        if part.labels is not None:
            rows = [[*row, label] for row, label in zip(rows, part.labels.tolist(), strict=True)]
        writer.writerows(rows)


def _write_parquet(path: str, shown: str, table: ModelOutputs, names: list[str] | None) -> None:
    arrow, parquet = need_arrow("pyarrow", path), need_arrow("pyarrow.parquet", path)
    metadata: dict[bytes, str] = {}
    if table.head is not None:
        metadata[HEAD] = head_to_text(shown, table.head)
    header = [] if table.get(LOGITS) is None else logit_columns(table.n_classes, names)
    if not header and names is not None:
        metadata[CLASS_NAMES.encode()] = write_json(names)
    lists = [name for name in table.names if name != LOGITS]
    twice = sorted(set(header) & set(lists))
    if twice:
        raise InvalidInput(f"{shown}: an array and a column of logits are both called {twice[0]}; rename the array.")
    writer = None
    try:
        # one row group per piece, so that a reader of many classes need not hold a million rows of each
        for part in [*_slices(table)] or [table]:
            columns = {}
            if header:
                numbers = native(part.logits)
                columns = {name: arrow.array(np.ascontiguousarray(numbers[:, i])) for i, name in enumerate(header)}
            for name in lists:
                array = native(part.array(name))
                flat = arrow.array(np.ascontiguousarray(array).reshape(-1))
                kind = arrow.list_(arrow.field("item", flat.type, nullable=False), array.shape[1])
                columns[name] = arrow.FixedSizeListArray.from_arrays(flat, type=kind)
            if part.labels is not None:
                columns["label"] = arrow.array(part.labels)
            # never null, so that whole numbers need not become floats when they are read
            fields = [arrow.field(name, column.type, nullable=False) for name, column in columns.items()]
            piece = arrow.table(columns, schema=arrow.schema(fields, metadata=metadata or None))
            if writer is None:
                writer = parquet.ParquetWriter(path, piece.schema)
            writer.write_table(piece)
    finally:
        if writer is not None:
            writer.close()
