"""Write rows in any format: the outputs of a network at once, or scores as they are made.

A file appears whole when it is finished, and not at all when an error comes before that.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscale._atomic import atomic_path
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, Head, ModelOutputs, as_outputs
from normscale.rows.arrays import ARRAYS, CLASS_NAMES, HEAD_BIAS, HEAD_WEIGHT, RESERVED, native
from normscale.rows.columns import LABELS, TEXT, logit_columns
from normscale.rows.files import check_folder, format_of
from normscale.rows.reader import CHUNK_ELEMENTS, Columns, TableReader


class Sink(ABC):
    """A table that is being written: it takes columns of one length, as often as they come; messages call it ``path``.

    A type of a column is numpy's, whose object stands for texts and whose subarrays for the rows of an array, or
    pyarrow's, for what numpy has no type for. ``texts`` are lists and records that stand beside the rows, by name.
    """

    def __init__(
        self,
        file: Any,
        path: str,
        columns: Mapping[str, Any],
        head: Head | None = None,
        texts: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.file, self.path, self.columns, self.head, self.texts = file, path, dict(columns), head, texts
        self.open()

    def open(self) -> None:  # noqa: B027 - some have nothing to begin with
        """Begin the file."""

    @abstractmethod
    def write(self, columns: Columns) -> None:
        """Add rows: an array for each column."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is left and close the file."""

    def abandon(self) -> None:  # noqa: B027 - most have nothing to close
        """Close the file without caring for its content."""


class GatheringSink(Sink):
    """For formats whose head holds the number of rows: all is written at the end, by :meth:`save`."""

    def open(self) -> None:
        self._parts: list[Columns] = []

    @abstractmethod
    def save(self, arrays: Columns) -> None:
        """Write the file."""

    def write(self, columns: Columns) -> None:
        self._parts.append(columns)

    def finish(self) -> None:
        head = self.head
        arrays = {} if head is None else {HEAD_WEIGHT: native(head.weight), HEAD_BIAS: native(head.bias)}
        self.save({**self._gathered(), **arrays})

    def _gathered(self) -> Columns:
        kinds = {name: kind if isinstance(kind, np.dtype) else TEXT for name, kind in self.columns.items()}
        parts, self._parts = self._parts or [{name: np.empty(0, kind) for name, kind in kinds.items()}], []
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in kinds}


def texts_of(column: NDArray[Any], kind: Any = None) -> list[str]:
    """A column as texts: times in ISO 8601, what is missing as an empty one.

    Examples
    --------
    >>> texts_of(np.array(["2026-11-18T01:00", "NaT"], "M8[s]")), texts_of(np.array(["a", None, 2], object))
    (['2026-11-18T01:00:00', ''], ['a', '', '2'])
    """
    if column.dtype.kind == "M":
        zone = "Z" if getattr(kind, "tz", None) else ""
        return ["" if text == "NaT" else text + zone for text in np.datetime_as_string(column).tolist()]
    return ["" if value is None else value if isinstance(value, str) else str(value) for value in column.tolist()]


@contextmanager
def open_sink(path: str | os.PathLike[str], columns: Mapping[str, Any], **more: Any) -> Iterator[Sink]:
    """Write a table in the body of a ``with`` statement; it is in its place after the body, unless that raised.

    Parameters
    ----------
    path : str or path
        In any format of :func:`~normscale.rows.open_table` (.npy keeps one column alone), or ``-`` for CSV on standard
        output. Text and Parquet are written as the rows come; the others are gathered in memory until the end.
    columns : mapping from name to dtype
        As :class:`Sink` has them; those in :attr:`TableReader.columns` are.
    **more
        ``head`` and ``texts`` of :class:`Sink`.

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "scores.csv")
    >>> with open_sink(path, {"score": np.dtype(float), "is_ood": np.dtype(bool)}) as table:
    ...     table.write({"score": np.array([0.5, -1.25]), "is_ood": np.array([True, False])})
    >>> with open(path) as file:
    ...     file.read()
    'score,is_ood\\n0.5,true\\n-1.25,false\\n'
    """
    name = os.fspath(path)
    format = format_of(name)
    if format.sink is None:
        raise InvalidInput(f"{name}: {format.described} is read and not written; choose another suffix.")
    if name != "-":
        check_folder(name)
    with nullcontext(name) if name == "-" else atomic_path(name) as file:
        sink = format.sink(file, name, columns, **more)
        try:
            yield sink
            sink.finish()
        except BaseException:
            sink.abandon()
            raise


def write_table(
    path: str | os.PathLike[str],
    outputs: ModelOutputs | Any,
    *,
    class_names: Sequence[str] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write outputs, with labels and head where there are any, to a file that appears whole or not at all.

    Parameters
    ----------
    path : str or path
        Ending in .npz, .safetensors or .parquet (needs ``normscale[arrow]``), which keep everything, in .csv or
        .tsv (logits and labels only; also compressed: .csv.gz) or .npy (logits only); or ``-`` for CSV on standard
        output.
    outputs : ModelOutputs, array of logits, or mapping
    class_names : sequence of str, optional
        One for each class.
    columns : mapping of sequences of str, optional
        Texts beside the rows, such as where each came from; not in .npz, .safetensors and .npy files.

    Notes
    -----
    All formats but .csv keep float dtypes; integer logits are read back from .parquet as float64. Numbers in .csv are
    written so that reading them gives the same value in float64.

    Examples
    --------
    >>> import numpy, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "outputs.csv")
    >>> write_table(path, {"logits": [[0.1, 2.0], [1.0, 0.0]], "labels": [1, -1]}, class_names=["cat", "dog"])
    >>> with open(path) as file:
    ...     file.read()
    'logit_cat,logit_dog,label\\n0.1,2.0,1\\n1.0,0.0,-1\\n'
    """
    name = os.fspath(path)
    table = as_outputs(outputs)
    table = table.replace(  # True and False as 1 and 0, which every format can hold
        **{name: table.array(name).astype(np.float32) for name in table.names if table.array(name).dtype.kind == "b"}
    )
    names = None if class_names is None else _checked_names(table, class_names)
    format = format_of(name)
    _check_place("standard output" if name == "-" else name, format, table, names)
    has_logits = table.get(LOGITS) is not None
    in_columns = has_logits and format.by_columns
    header = logit_columns(table.n_classes, names) if in_columns else None
    if header is not None and (twice := sorted(set(header) & set(table.names))):
        raise InvalidInput(f"{name}: an array and a column of logits are both called {twice[0]}; rename the array.")
    named = {
        CLASS_NAMES: None if header is not None else names,
        ARRAYS: None if has_logits or table.get("features") is not None else list(table.names),
    }
    more_texts = {key: found for key, found in named.items() if found is not None}
    first = _columns_of(table[:0], header, format)
    kinds: dict[str, np.dtype[Any]] = {key: np.dtype((one.dtype, one.shape[1:])) for key, one in first.items()}
    texts = {key: np.array(column, dtype=TEXT) for key, column in (columns or {}).items()}
    kinds |= dict.fromkeys(texts, TEXT)
    width = sum(table.array(array).shape[1] for array in table.names)
    step = max(1, min(1 << 20, CHUNK_ELEMENTS // width)) if format.by_columns else max(1, len(table))
    with open_sink(name, kinds, head=table.head, texts=more_texts) as sink:
        for start in range(0, len(table), step):
            beside = {key: column[start : start + step] for key, column in texts.items()}
            sink.write({**_columns_of(table[start : start + step], header, format), **beside})


def _columns_of(table: ModelOutputs, header: list[str] | None, format: type[TableReader]) -> Columns:
    columns: Columns = {}
    for name in table.names:
        array = native(table.array(name))
        if name == LOGITS and header is not None:
            columns |= {key: np.ascontiguousarray(array[:, i]) for i, key in enumerate(header)}
        else:
            columns[name] = np.ascontiguousarray(array)
    if table.labels is not None:
        columns["label" if format.by_columns else LABELS] = table.labels
    return columns


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


def _check_place(shown: str, format: type[TableReader], table: ModelOutputs, names: list[str] | None) -> None:
    taken = [name for name in table.names if name in RESERVED]
    if taken:
        raise InvalidInput(f"{shown}: an array cannot be called {taken[0]} in a file, where that means something else.")
    if table.head is not None and (size := table.head.weight.nbytes) > format.largest_head:
        others = "; write .npz or .safetensors" if format.by_columns else ""
        raise InvalidInput(f"{shown}: the head takes {size} bytes; at most {format.largest_head} are kept{others}.")
    there = {
        "arrays": [name for name in table.names if name != LOGITS],
        "head": ["head"] * (table.head is not None),
        "labels": ["labels"] * (table.labels is not None),
        "class names": ["class names"] * (names is not None),
    }
    extra = [one for part, found in there.items() if part not in format.keeps for one in found]
    if extra or (table.get(LOGITS) is None and "arrays" not in format.keeps):
        kept = [part for part in there if part in format.keeps and part not in ("arrays", "class names")]
        article = format.described.partition(" ")[0]
        holds = "no head" if "arrays" in format.keeps else f"{' and '.join(['logits', *kept])} only"
        only = f"{article} {format.suffixes[0]} file holds {holds}"
        what = f"there are also {', '.join(extra)}" if extra else "there are no logits"
        raise InvalidInput(f"{shown}: {only}, and {what}. Write .parquet, .npz or .safetensors instead.")
