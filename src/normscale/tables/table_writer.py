"""Write the outputs of a network in any format that :func:`normscale.tables.open_table` reads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from normscale._atomic import atomic_path
from normscale._validate import Rows
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import ModelOutputs, as_outputs
from normscale.tables.arrow import need_arrow
from normscale.tables.columns import column_names
from normscale.tables.formats import format_by_suffix
from normscale.tables.reader import CHUNK_ELEMENTS


def write_table(
    path: str | os.PathLike[str],
    outputs: ModelOutputs | Any,
    *,
    class_names: Sequence[str] | None = None,
) -> None:
    """Write logits, and features and labels where there are any, to a file that appears whole or not at all.

    Parameters
    ----------
    path : str or path
        Ending in .npz, .npy (logits only), .safetensors, .parquet (needs ``normscale[arrow]``) or .csv; or
        ``-`` for CSV on standard output.
    outputs : ModelOutputs, array of logits, or mapping
    class_names : sequence of str, optional
        One for each class.

    Notes
    -----
    All formats but .csv keep the dtype. Numbers in .csv are written so that reading them gives the same value
    in float64.

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
    table = as_outputs(outputs)
    names = None if class_names is None else [str(entry) for entry in class_names]
    if names is not None and (len(names) != table.n_classes or len(set(names)) != len(names)):
        raise InvalidInput(
            f"class_names must be {table.n_classes} different names, one per class; got {len(names)}"
            f"{'' if len(names) != table.n_classes else ', some twice'}."
        )
    if name == "-":
        _write_csv(sys.stdout, table, names)
        sys.stdout.flush()
        return
    kind = format_by_suffix(name)
    if kind == "npy" and (table.features is not None or table.labels is not None or names is not None):
        raise InvalidInput(
            f"{name}: an .npy file holds logits only; drop features, labels and class names, or write .npz."
        )
    if kind == "parquet":
        need_arrow("pyarrow", name)  # before a temporary file is made
    check_folder(name)
    with atomic_path(name) as temporary:
        if kind == "csv":
            with open(temporary, "w", encoding="utf-8", newline="") as text:
                _write_csv(text, table, names)
        elif kind == "parquet":
            _write_parquet(temporary, table, names)
        elif kind == "safetensors":
            _write_safetensors(temporary, table, names)
        else:
            with open(temporary, "wb") as file:
                if kind == "npy":
                    np.save(file, table.logits, allow_pickle=False)
                else:
                    arrays = _arrays(table)
                    if names is not None:
                        arrays["class_names"] = np.array(names)
                    np.savez(file, **arrays)  # type: ignore[arg-type]


def check_folder(path: str) -> None:
    """Raise before any work is done when a file cannot be made there."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise FileFormatError(f"cannot write {path}: there is no folder {os.path.dirname(path)!r}; make it first.")
    if os.path.isdir(path):
        raise FileFormatError(f"cannot write {path}: it is a folder; give the name of a file in it.")
    if not os.access(folder, os.W_OK):
        raise FileFormatError(f"cannot write {path}: its folder may not be written to; choose another.")


def _arrays(table: ModelOutputs) -> dict[str, Rows]:
    arrays: dict[str, Rows] = {"logits": table.logits}
    if table.features is not None:
        arrays["features"] = table.features
    if table.labels is not None:
        arrays["labels"] = table.labels
    return arrays


def _write_safetensors(path: str, table: ModelOutputs, names: list[str] | None) -> None:
    from safetensors.numpy import save_file

    # The library writes an array's memory as it lies, so a transposed view would come back wrong.
    arrays = {name: np.ascontiguousarray(array) for name, array in _arrays(table).items()}
    save_file(arrays, path, metadata=None if names is None else {"class_names": json.dumps(names)})


def _slices(table: ModelOutputs) -> Iterator[ModelOutputs]:
    """The table in pieces of bounded size."""
    width = table.n_classes + (0 if table.features is None else table.features.shape[1])
    rows = max(1, min(1 << 20, CHUNK_ELEMENTS // width))
    return (table[start : start + rows] for start in range(0, len(table), rows))


def _header(table: ModelOutputs, names: list[str] | None) -> list[str]:
    n_features = 0 if table.features is None else int(table.features.shape[1])
    return column_names(table.n_classes, n_features, table.labels is not None, names)


def _write_csv(file: IO[str], table: ModelOutputs, names: list[str] | None) -> None:
    import csv

    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_header(table, names))
    for part in _slices(table):
        # tolist() turns every float into Python's, whose text is the shortest that gives the same float64
        rows = part.logits.tolist()
        if part.features is not None:
            rows = [a + b for a, b in zip(rows, part.features.tolist(), strict=True)]
        if part.labels is not None:
            rows = [[*row, label] for row, label in zip(rows, part.labels.tolist(), strict=True)]
        writer.writerows(rows)


def _write_parquet(path: str, table: ModelOutputs, names: list[str] | None) -> None:
    arrow, parquet = need_arrow("pyarrow", path), need_arrow("pyarrow.parquet", path)
    header = _header(table, names)
    writer = None
    try:
        # one row group per piece, so that a reader of many classes need not hold a million rows of each
        for part in [*_slices(table)] or [table]:
            columns = list(part.logits.T)
            if part.features is not None:
                columns += list(part.features.T)
            if part.labels is not None:
                columns.append(part.labels)
            piece = arrow.table([arrow.array(np.ascontiguousarray(c)) for c in columns], names=header)
            if writer is None:
                writer = parquet.ParquetWriter(path, piece.schema)
            writer.write_table(piece)
    finally:
        if writer is not None:
            writer.close()
