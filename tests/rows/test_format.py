"""A format from outside the package: one class, and it is read, written and sniffed like the others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from normscale.cli import app
from normscale.rows import TableReader, format_of, open_table, register_format
from normscale.rows.files import _formats, formats
from normscale.rows.reader import Block, Columns
from normscale.rows.writing import GatheringSink

MAGIC = b"HALVES1\n"


class HalvesSink(GatheringSink):
    """The logits, or a column of scores twice."""

    def save(self, arrays: Columns) -> None:
        rows = arrays["logits"] if "logits" in arrays else np.stack([arrays["score"]] * 2, axis=1)
        Path(self.file).write_bytes(MAGIC + rows.shape[1].to_bytes(4, "little") + rows.astype("<f2").tobytes())


class Halves(TableReader):
    """A magic word, the number of columns as four bytes, then rows of half floats."""

    name, described, suffixes = "halves", "an .f16 file (rows of half floats)", (".f16",)
    magic, sink, keeps = (MAGIC,), HalvesSink, frozenset()

    def _read_head(self) -> None:
        with self.source.open() as file:
            if file.read(8) != MAGIC:
                raise ValueError("it does not begin like one")
            width = int.from_bytes(file.read(4), "little")
            size = file.seek(0, io.SEEK_END) - 12
        if width < 2 or size % (2 * width):
            raise ValueError("it is cut off")
        self.widths, self.n_rows = {"logits": width}, size // (2 * width)

    def _blocks(self) -> Iterator[Block]:
        with self.source.open() as file:
            file.seek(12)
            while data := file.read(2 * self.widths["logits"] * self.chunk_rows):
                yield {"logits": np.frombuffer(data, "<f2").reshape(-1, self.widths["logits"]).astype(np.float32)}


@pytest.fixture
def halves() -> Iterator[type[TableReader]]:
    yield register_format(Halves)
    _formats.pop("halves")


ROWS = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float16).astype(np.float32)


@pytest.mark.usefixtures("halves")
def test_a_foreign_format_is_read_and_written_by_the_commands(tmp_path: Path) -> None:
    table, detector, scores = tmp_path / "t.f16", tmp_path / "d.safetensors", tmp_path / "scores.f16"
    ns.write_table(table, ROWS)
    assert [len(chunk) for chunk in open_table(table, chunk_rows=16).chunks()] == [16, 14]
    for arguments in (["fit", str(table), "-d", "energy", "-o", str(detector)],
                      ["score", str(detector), str(table), "-o", str(scores)]):  # fmt: skip
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    expected = ns.load_detector(detector).score(ROWS)
    np.testing.assert_allclose(ns.read_table(scores).logits[:, 0], expected, rtol=1e-3)
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(ns.FileFormatError, match=r"t\.f16 is damaged, or is not an \.f16 file .*: it is cut off"):
        open_table(table)
    table.rename(tmp_path / "t.npz")
    with pytest.raises(ns.FileFormatError, match=r"begins like an \.f16 file .* rename it to end in \.f16"):
        open_table(tmp_path / "t.npz")
    with pytest.raises(ns.InvalidInput, match=r"an \.f16 file holds logits only, and there are also labels"):
        ns.write_table(tmp_path / "l.f16", ns.ModelOutputs(ROWS, labels=np.zeros(30, int)))


@pytest.mark.usefixtures("halves")
def test_a_foreign_format_comes_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    ns.write_table(tmp_path / "t.f16", ROWS)
    data = io.BytesIO((tmp_path / "t.f16").read_bytes())
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=data))
    with open_table("-") as table:
        assert table.name == "halves"
        np.testing.assert_array_equal(table.read().logits, ROWS)


def test_names_are_taken_once(halves: type[TableReader]) -> None:
    class Other(Halves):
        name, suffixes = "other", (".csv",)

    with pytest.raises(ns.InvalidInput, match=r"the format csv is called \.csv already"):
        register_format(Other)
    Other.suffixes = (".F16",)
    with pytest.raises(ns.InvalidInput, match="begin with a point and have small letters"):
        register_format(Other)
    assert register_format(halves) is halves  # a module that is loaded again
    assert [format.name for format in formats()].count("halves") == 1


def test_a_format_that_is_only_read_says_so(tmp_path: Path) -> None:
    class ReadOnly(TableReader):
        name, described, suffixes = "read_only", "an .ro file", (".ro",)

        def _read_head(self) -> None:
            raise NotImplementedError

        def _blocks(self) -> Iterator[Block]:
            raise NotImplementedError

    register_format(ReadOnly)
    try:
        with pytest.raises(ns.InvalidInput, match=r"an \.ro file is read and not written"):
            ns.write_table(tmp_path / "a.ro", ROWS)
        assert not list(tmp_path.iterdir())
    finally:
        _formats.pop("read_only")
    with pytest.raises(ns.FileFormatError, match=r"'\.ro' is not known"):
        format_of("a.ro")
