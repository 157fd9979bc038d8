"""Standard input and named pipes: any format, as the bytes come."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import ModelOutputs
from normscale.rows import open_table, read_table, write_table


class Trickle(io.RawIOBase):
    """A pipe whose writer sends a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self.data, self.step, self.taken = data, step, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self.data[self.taken : self.taken + min(self.step, len(buffer))]
        buffer[: len(piece)] = piece
        self.taken += len(piece)
        return len(piece)


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes, step: int = 1 << 16) -> Trickle:
    raw = Trickle(data, step)
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BufferedReader(raw, buffer_size=1)))
    return raw


def data_of(kind: str, outputs: ModelOutputs) -> bytes:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{kind}"
        write_table(path, outputs)
        return path.read_bytes()


@pytest.fixture
def outputs() -> ModelOutputs:
    return ModelOutputs(np.random.default_rng(0).normal(size=(31, 4)))


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize("kind", ["npz", "npy", "safetensors", "parquet", "csv"])
def test_the_first_bytes_tell_the_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outputs: ModelOutputs, kind: str, step: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for chunk_rows in (1, 7, None):
        stdin(monkeypatch, data_of(kind, outputs), step)
        with open_table("-", chunk_rows=chunk_rows) as table:
            assert table.path == "standard input"
            assert table.name == kind
            chunks = list(table.chunks())
        np.testing.assert_array_equal(ModelOutputs.concatenate(chunks).logits, outputs.logits)
        assert [len(chunk) for chunk in chunks[:-1]] == [chunk_rows] * (len(chunks) - 1)
    assert not list(tmp_path.iterdir())


def test_a_fortran_array_comes_through(monkeypatch: pytest.MonkeyPatch, outputs: ModelOutputs) -> None:
    stream = io.BytesIO()
    np.save(stream, np.asfortranarray(outputs.logits))
    stdin(monkeypatch, stream.getvalue(), 50)
    with open_table("-", chunk_rows=4) as table:
        read = ModelOutputs.concatenate(table.chunks())
    np.testing.assert_array_equal(read.logits, outputs.logits)


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_streams_are_not_slurped(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """After the first rows came out, most of the stream has not been touched."""
    outputs = ModelOutputs(np.random.default_rng(0).normal(size=(5000, 4)))
    data = data_of(kind, outputs)
    raw = stdin(monkeypatch, data, 100)
    with open_table("-", chunk_rows=10) as table:
        chunks = table.chunks()
        first = next(chunks)
        assert raw.taken < 3000
        np.testing.assert_array_equal(first.logits, outputs.logits[:10])


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_a_pipe_is_read_once(monkeypatch: pytest.MonkeyPatch, outputs: ModelOutputs, kind: str) -> None:
    stdin(monkeypatch, data_of(kind, outputs))
    with open_table("-") as table:
        assert len(table.read()) == 31
        with pytest.raises(InvalidInput, match="is a pipe and can be read only once"):
            table.read()


@pytest.mark.parametrize("kind", ["npz", "npy", "safetensors", "parquet"])
def test_a_writer_that_dies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outputs: ModelOutputs, kind: str) -> None:
    data = data_of(kind, outputs)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for length in (7, 9, 60, len(data) // 2, len(data) - 1):
        stdin(monkeypatch, data[:length])
        with pytest.raises(FileFormatError, match="standard input"):
            read_table("-")
    assert not list(tmp_path.iterdir())


def test_a_pipe_that_breaks_leaves_no_temporary_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outputs: ModelOutputs
) -> None:
    raw = stdin(monkeypatch, data_of("npz", outputs), 100)
    original = raw.readinto

    def broken(buffer: memoryview) -> int:
        if raw.taken > 500:
            raise OSError("the disk is gone")
        return original(buffer)

    monkeypatch.setattr(raw, "readinto", broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OSError, match="the disk is gone"):
        open_table("-")
    assert not list(tmp_path.iterdir())


def test_trailing_bytes_and_silence(monkeypatch: pytest.MonkeyPatch, outputs: ModelOutputs) -> None:
    stdin(monkeypatch, data_of("npy", outputs) + b"x")
    with pytest.raises(FileFormatError, match="more bytes follow"):
        read_table("-")
    stdin(monkeypatch, b"")
    with pytest.raises(FileFormatError, match="standard input carries nothing"):
        read_table("-")
    stdin(monkeypatch, b"1,2\n3\n")
    with pytest.raises(FileFormatError, match="standard input, line 2: expected 2 fields, got 1"):
        read_table("-")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipe(tmp_path: Path, outputs: ModelOutputs) -> None:
    """What the shell makes of ``<(command)``: a pipe with a name that says nothing."""
    path = tmp_path / "63"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data_of("csv", outputs),), daemon=True)
    writer.start()
    with open_table(path) as table:
        np.testing.assert_array_equal(table.read().logits, outputs.logits)
    writer.join(60)


def test_rows_come_out_while_the_writer_still_writes(tmp_path: Path) -> None:
    """A slow program writes a row, and writes the next only when it saw the first come back."""
    code = (
        "import numpy as np\n"
        "from normscale.rows import open_sink, open_table\n"
        "with open_table('-', chunk_rows=1) as table, open_sink('-', {'score': np.dtype(float)}) as sink:\n"
        "    for chunk in table.chunks():\n"
        "        sink.write({'score': chunk.logits.sum(axis=1)})\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    watchdog = threading.Timer(20, child.kill)  # a row that is held back would be waited for without end
    watchdog.start()
    assert child.stdin is not None
    assert child.stdout is not None
    for i in range(4):
        child.stdin.write(f"{i},0.5\n")
        child.stdin.flush()
        if i == 0:
            assert child.stdout.readline() == "score\n"
        assert child.stdout.readline() == f"{i + 0.5}\n"
    child.stdin.close()
    assert child.stdout.read() == ""
    child.stdout.close()
    assert child.wait(60) == 0
    watchdog.cancel()
