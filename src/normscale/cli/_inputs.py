"""Where a command's rows come from: a file, a pipe, or the embedded sample; with a progress bar on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from normscale._progress import bar
from normscale.engines.joined_table import JoinedTable, names_many
from normscale.errors import InvalidInput, MissingOutput
from normscale.outputs import LOGITS, ModelOutputs
from normscale.tables import open_table

PREFIX = "sample:"


class Input:
    """A table opened for a command: what it is called, what it holds as far as that is known, and its chunks."""

    path: str
    n_rows: int | None
    """None where it is known only at the end."""
    names: tuple[str, ...]
    """Names of the arrays that are read."""
    n_classes: int | None
    """None without logits and without a head."""
    class_names: tuple[str, ...] | None

    def __init__(self, path: str, names: Sequence[str] | None = None) -> None:
        """Open ``path``; nothing but the head of a file is read yet.

        Parameters
        ----------
        path : str
            A table, a folder or glob of tables, ``-`` for a pipe, or ``sample:NAME``.
        names : sequence of str, optional
            Read these arrays only, as far as they are there; labels and head are always read. By default all.
        """
        self.path = path
        if path.startswith(PREFIX):
            outputs, self.class_names = _from_sample(path, names)
            self.n_rows, self.names, self.n_classes = len(outputs), outputs.names, len(self.class_names)
            self._chunks: Iterable[ModelOutputs] = [outputs]
        else:
            wanted = None if names is None else list(dict.fromkeys(names))
            table = JoinedTable(path, wanted) if names_many(path) else open_table(path, names=wanted)
            self.n_rows, self.names, self.n_classes = table.n_rows, table.names, table.n_classes
            self.class_names = table.class_names
            self._chunks = table.chunks()

    @property
    def has_logits(self) -> bool:
        """Whether predicted classes are known."""
        return LOGITS in self.names

    def chunks(self, doing: str) -> Iterator[ModelOutputs]:
        """The rows, with a bar that says what is being done with them."""
        with bar(doing, self.n_rows) as line:
            for chunk in self._chunks:
                yield chunk
                line.advance(len(chunk))

    def read(self, doing: str = "reading") -> ModelOutputs:
        """All rows at once."""
        parts = list(self.chunks(f"{doing} {self.path}"))
        if not parts:
            raise InvalidInput(f"{self.path} holds no rows.")
        return parts[0] if len(parts) == 1 else ModelOutputs.concatenate(parts)


def read_named(items: Iterable[str]) -> dict[str, ModelOutputs]:
    """Read tables given as ``NAME=PATH`` or ``PATH``; without a name the file's own serves."""
    found: dict[str, ModelOutputs] = {}
    for item in items:
        name, equals, path = item.partition("=")
        if not equals:
            path, name = item, os.path.splitext(os.path.basename(item.removeprefix(PREFIX)))[0]
        if name in found:
            raise InvalidInput(f"two tables are called {name!r}; name one of them: OTHER={path}.")
        found[name] = Input(path).read()
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
