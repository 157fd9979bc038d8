"""Where a command's rows come from: a file, a pipe, or the embedded sample; looked at once for what is surely wrong."""

from __future__ import annotations

import glob
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from normscale._progress import bar
from normscale._validate import Rows
from normscale.engines.joined_table import JoinedTable, names_many
from normscale.errors import InvalidInput, MissingOutput
from normscale.input_checks.class_order import class_order, in_class_order
from normscale.input_checks.clipped import clipped
from normscale.input_checks.odd_columns import odd_column
from normscale.input_checks.permuted_labels import permuted_labels
from normscale.input_checks.softmaxed import Squashed, log_of_probabilities, percentages, sentence, squashed
from normscale.outputs import LOGITS, ModelOutputs, finite_rows
from normscale.tables import TableReader, open_table
from normscale.tables.gathering import gather

PREFIX = "sample:"
Columns = dict[str, NDArray[Any]]
PROBABILITIES = "--probabilities"
PROBABILITIES_HELP = "The tables hold softmax probabilities instead of logits: take their logarithm."


def note(text: str) -> None:
    """Tell the person at the terminal something that is no error."""
    typer.echo(f"normscale: note: {text}", err=True)


class OnInvalid(StrEnum):
    """What to do with a row that holds NaN or infinity."""

    RAISE = "raise"
    SKIP = "skip"


class Input:
    """A table opened for a command: what it is called, what it holds as far as that is known, and its chunks.

    Parameters
    ----------
    path : str, or several
        A table, a folder or glob of tables, ``-`` for a pipe, or ``sample:NAME``; several are read as one. Nothing but
        the head of a file is read yet.
    names : sequence of str, optional
        Read these arrays only, as far as they are there; labels and head are always read. By default all.
    class_names : sequence of str, optional
        The classes of a detector, or of another table: columns of logits are matched by these names where the table
        has any.
    probabilities : bool
        The logits are probabilities; their logarithm is taken.
    refuse_probabilities : bool
        Refuse logits that are probabilities; False where nothing but the predicted class is made of them.
    check_labels : bool
        Say so where the labels do not go with the logits.
    skip_invalid : bool
        Leave rows with NaN or infinity out and say how many; by default whoever reads the rows refuses them.
    keep : sequence of str
        Further columns, which come beside the chunks in :meth:`chunks_and_columns`.
    """

    path: str
    """The first, where there are several."""
    n_rows: int | None
    """None where it is known only at the end."""
    names: tuple[str, ...]
    """Names of the arrays that are read."""
    n_classes: int | None
    """None without logits and without a head."""
    class_names: tuple[str, ...] | None
    columns: dict[str, np.dtype[Any]]
    """The further columns, and their dtypes."""

    def __init__(
        self,
        path: str | Sequence[str],
        names: Sequence[str] | None = None,
        *,
        class_names: Sequence[str] | None = None,
        probabilities: bool = False,
        refuse_probabilities: bool = True,
        check_labels: bool = False,
        skip_invalid: bool = False,
        keep: Sequence[str] = (),
    ) -> None:
        """Open the table; columns that cannot be matched are refused here."""
        paths = [path] if isinstance(path, str) else list(path)
        self.path = path = paths[0]
        self._probabilities = probabilities
        self._refuse_probabilities, self._check_labels = refuse_probabilities, check_labels
        self._skip_invalid = skip_invalid
        self._notes: list[str] = []
        if len(paths) > 1 and (alone := next((one for one in paths if one == "-" or one.startswith(PREFIX)), None)):
            raise InvalidInput(f"{alone} cannot be read together with other tables; give files, folders and globs.")
        if path.startswith(PREFIX):
            outputs, self.class_names = _from_sample(path, names)
            self.n_rows, self.names, self.n_classes = len(outputs), outputs.names, len(self.class_names)
            if keep:
                raise InvalidInput(f"{path} has no column {keep[0]!r} to keep; the sample has outputs alone.")
            self.columns = {}
            self._chunks: Iterable[tuple[ModelOutputs, Columns]] = [(outputs, {})]
        else:
            wanted = None if names is None else list(dict.fromkeys(names))
            if len(paths) > 1 or names_many(path):
                joined = JoinedTable(paths, wanted)
                if keep:
                    raise InvalidInput(f"--keep-columns reads one table; {path} is not one.")
                self.columns, self._chunks = {}, ((chunk, {}) for chunk in joined.chunks())
                table: JoinedTable | TableReader = joined
            else:
                table = one = open_table(path, names=wanted, keep=keep)
                self.columns, self._chunks = one.columns, one.chunks_and_columns()
            self.n_rows, self.names, self.n_classes = table.n_rows, table.names, table.n_classes
            self.class_names = table.class_names
        self._order = class_order(class_names, self.class_names, path)
        if self._order is not None and self.class_names is not None:
            taken = tuple(self.class_names[i] for i in self._order)
            if left := [name for name in self.class_names if name not in taken]:
                self._notes.append(f"{path}: columns that are no class of the detector are left out: {', '.join(left)}")
            if (np.diff(self._order) < 0).any():
                self._notes.append(f"{path}: the columns of logits are matched by name; they stand in another order")
            self.class_names, self.n_classes = taken, len(taken)

    @property
    def has_logits(self) -> bool:
        """Whether predicted classes are known."""
        return LOGITS in self.names

    def chunks(self, doing: str) -> Iterator[ModelOutputs]:
        """The rows, with a bar that says what is being done with them; the first chunk is looked at."""
        return (chunk for chunk, _ in self.chunks_and_columns(doing))

    def chunks_and_columns(self, doing: str) -> Iterator[tuple[ModelOutputs, Columns]]:
        """The rows and what is kept beside them."""
        is_first = True
        n_rows = n_skipped = 0
        with bar(doing, self.n_rows) as line:
            for chunk, columns in self._chunks:
                n_read = len(chunk)
                if self._order is not None:
                    chunk = in_class_order(chunk, self._order)
                if self._skip_invalid and not (good := finite_rows(chunk)).all():
                    n_skipped += len(chunk) - int(good.sum())
                    chunk, columns = chunk[good], {name: column[good] for name, column in columns.items()}
                if is_first and len(chunk):
                    self._look_at(chunk)
                    is_first = False
                if self._probabilities and self.has_logits:
                    chunk = chunk.replace(logits=log_of_probabilities(chunk.logits, self.path))
                yield chunk, columns
                n_rows += n_read
                line.advance(n_read)
        if n_skipped:
            self._notes.append(f"{self.path}: {n_skipped} of {n_rows} rows hold NaN or infinity and are left out")
        for text in self._notes:
            note(text)
        self._notes = []

    def look(self) -> bool:
        """Look at the first rows alone, for commands whose rows are read elsewhere; False where there are none."""
        first = next((chunk for chunk, _ in self._chunks if len(chunk)), None)
        if first is not None:
            self._look_at(first if self._order is None else in_class_order(first, self._order))
            for text in self._notes:
                note(text)
            self._notes = []
        return first is not None

    def read(self, doing: str = "reading") -> ModelOutputs:
        """All rows; those of a large table stay in a temporary file, see :mod:`normscale.tables.gathering`."""
        outputs = gather(self.chunks(f"{doing} {self.path}"))
        if outputs is None:
            raise InvalidInput(f"{self.path} holds no rows.")
        return outputs

    def _look_at(self, chunk: ModelOutputs) -> None:
        """Refuse what is surely wrong with the first rows, and note what probably is."""
        if not self.has_logits:
            return
        found = None if self._probabilities else squashed(chunk.logits)
        if found is not None and self._refuse_probabilities:
            text = sentence(found, self.path, option=PROBABILITIES)
            if found.kind is Squashed.PROBABILITIES:
                raise InvalidInput(text)
            self._notes.append(text)
        elif found is None and not self._probabilities and self._refuse_probabilities:
            self._look_at_values(chunk.logits)
        odd = odd_column(chunk.logits, self.class_names)
        if odd is not None:
            raise InvalidInput(
                f"{self.path}: {odd}, not a logit. Leave it out of the logits, and call a column of labels 'label'."
            )
        if self._check_labels and chunk.labels is not None:
            wrong = permuted_labels(chunk.labels, chunk.predicted, chunk.n_classes)
            if wrong is not None:
                self._notes.append(f"{self.path}: {wrong}")

    def _look_at_values(self, logits: Rows) -> None:
        if percentages(logits):
            self._notes.append(
                f"{self.path} holds percentages, not logits (every row adds up to 100 and no number is below 0). Give "
                f"the outputs before the softmax; if there are none, divide by 100 and add {PROBABILITIES}."
            )
        elif (where := clipped(logits)) is not None:
            self._notes.append(
                f"the logits of {self.path} look clipped: {where}. Inputs beyond that value cannot be told apart; give "
                "logits as the network makes them."
            )


def input_named(item: str, taken: Container[str]) -> tuple[str, str]:
    """Name and path of a table given as ``NAME=PATH`` or ``PATH``; without a name that of the file or folder serves.

    What stands before ``=`` is no name where it has a slash: it is part of a path, or an object store's options.

    Examples
    --------
    >>> input_named("near=sample:unseen_digits", ()), input_named("sets/noise.npz", ())
    (('near', 'sample:unseen_digits'), ('noise', 'sets/noise.npz'))
    >>> input_named("far=sets/*.parquet", ()), input_named("sets/day=1/*.parquet", ())
    (('far', 'sets/*.parquet'), ('day=1', 'sets/day=1/*.parquet'))
    """
    name, equals, path = item.partition("=")
    if not equals or "/" in name:
        path, plain = item, item.removeprefix(PREFIX).partition("?")[0] if "://" in item else item.removeprefix(PREFIX)
        parts = [part for part in plain.replace(os.sep, "/").split("/") if part and not glob.has_magic(part)]
        name = os.path.splitext(parts[-1])[0] if parts else plain
    if name in taken:
        raise InvalidInput(f"another table is called {name!r}; name this one: OTHER={path}.")
    return name, path


def read_named(
    items: Iterable[str], *, class_names: Sequence[str] | None = None, probabilities: bool = False
) -> dict[str, ModelOutputs]:
    """Read tables given as :func:`input_named` says."""
    found: dict[str, ModelOutputs] = {}
    for item in items:
        name, path = input_named(item, found)
        found[name] = Input(path, class_names=class_names, probabilities=probabilities).read()
    return found


def _from_sample(path: str, names: Sequence[str] | None) -> tuple[ModelOutputs, tuple[str, ...]]:
    from normscale.sample import load_sample

    sample = load_sample()
    sets = {"train": sample.train, "validation": sample.validation, "test": sample.test, **sample.ood}
    name = path.removeprefix(PREFIX)
    if name not in sets:
        known = ", ".join(PREFIX + key for key in sets)
        raise InvalidInput(f"the embedded sample has no set {name!r}; it has {known}.")
    outputs = sets[name]
    kept = [array for array in outputs.names if names is None or array in names]
    if not kept:
        raise MissingOutput(f"{path} has no {' and no '.join(names or ())}; it has {', '.join(outputs.names)}.")
    return outputs.only(*kept), tuple(sample.class_names)
