"""Where a command's rows come from: a file, a pipe, or the embedded sample; with a progress bar on a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from normscale._progress import bar
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.tables import open_table

PREFIX = "sample:"


class Input:
    """A table opened for a command: what it is called, how many rows it has if known, and its chunks."""

    def __init__(self, path: str) -> None:
        """Open ``path``; nothing but the head of a file is read yet."""
        self.path = path
        self.class_names: tuple[str, ...] | None
        if path.startswith(PREFIX):
            outputs, names = _from_sample(path)
            self.n_rows: int | None = len(outputs)
            self.n_classes = outputs.n_classes
            self.class_names = names
            self._chunks: Iterable[ModelOutputs] = [outputs]
        else:
            table = open_table(path)
            self.n_rows, self.n_classes, self.class_names = table.n_rows, table.n_classes, table.class_names
            self._chunks = table.chunks()

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


def _from_sample(path: str) -> tuple[ModelOutputs, tuple[str, ...]]:
    from normscale.sample import load_sample

    sample = load_sample()
    sets = {"train": sample.train, "validation": sample.validation, "test": sample.test, **sample.ood}
    name = path.removeprefix(PREFIX)
    if name not in sets:
        known = ", ".join(PREFIX + key for key in sets)
        raise InvalidInput(f"the embedded sample has no set {name!r}; it has {known}.")
    return sets[name], tuple(sample.class_names)
