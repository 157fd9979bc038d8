"""Tables of scores: written in chunks of any size, whole at the end or not there at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normscale.errors import FileFormatError
from normscale.jobs.scoring import SCORE_COLUMNS
from normscale.rows import open_sink
from normscale.rows.formats import parquet as parquet_format

FORMATS = ["npz", "npy", "safetensors", "parquet", "csv"]
SCORE = {"score": np.dtype(np.float64)}


def scores(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    score = rng.normal(size=n) * 10.0 ** rng.integers(-300, 300, n)
    if n > 3:
        score[:4] = [np.inf, -np.inf, -0.0, 0.1]
    return {"score": score, "is_ood": score > 0, "predicted": rng.integers(0, 1000, n)}


def read_back(path: Path) -> dict[str, Any]:
    """Read with the libraries a user would take, not with ours."""
    kind = path.suffix[1:]
    if kind == "npz":
        with np.load(path) as file:
            return dict(file)
    if kind == "npy":
        return {"score": np.load(path)}
    if kind == "safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = parquet.read_table(path)
        return {name: table.column(name).to_numpy() for name in table.column_names}
    lines = [line.split(",") for line in path.read_text().splitlines()]
    columns = dict(zip(lines[0], zip(*lines[1:], strict=True), strict=True)) if len(lines) > 1 else {}
    convert: dict[str, Any] = {"score": float, "is_ood": {"true": True, "false": False}.__getitem__, "predicted": int}
    return {name: np.array(list(map(convert[name], columns.get(name, ()))), SCORE_COLUMNS[name]) for name in lines[0]}


@pytest.mark.parametrize("n", [0, 1, 23])
@pytest.mark.parametrize("step", [1, 7, 100])
@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_written_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: int, n: int
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        monkeypatch.setattr(parquet_format, "_ROW_GROUP", 10)
    path = tmp_path / f"scores.{kind}"
    expected = scores(n)
    with open_sink(path, SCORE_COLUMNS) as sink:
        for start in range(0, n, step):
            sink.write({name: column[start : start + step] for name, column in expected.items()})
            assert not path.exists()
    read = read_back(path)
    assert list(read) == (["score"] if kind == "npy" else list(SCORE_COLUMNS)) or kind == "safetensors"
    assert set(read) == ({"score"} if kind == "npy" else set(SCORE_COLUMNS))
    for name, column in read.items():
        np.testing.assert_array_equal(column, expected[name])
        assert column.dtype == SCORE_COLUMNS[name]
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("kind", FORMATS)
def test_an_error_leaves_the_old_file(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"scores.{kind}"
    path.write_bytes(b"old")

    def write() -> None:
        with open_sink(path, SCORE) as sink:
            sink.write({"score": np.zeros(100_000)})
            raise RuntimeError("the detector failed")

    with pytest.raises(RuntimeError, match="the detector failed"):
        write()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_a_failing_finish_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / f"scores.{kind}"
    path.write_bytes(b"old")

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"), open_sink(path, SCORE) as sink:
        sink.write({"score": np.ones(1)})
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


def test_csv_is_written_as_the_rows_come(tmp_path: Path) -> None:
    with open_sink(tmp_path / "scores.csv", SCORE) as sink:
        sink.write({"score": np.ones(100_000)})
        (temporary,) = tmp_path.iterdir()
        assert temporary.stat().st_size > 100_000


def test_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with open_sink("-", {**SCORE, "is_ood": np.dtype(bool)}) as sink:
        sink.write({"score": np.array([0.1]), "is_ood": np.array([False])})
        assert capsys.readouterr().out == "score,is_ood\n0.1,false\n"  # at once
        sink.write({"score": np.array([1e-300]), "is_ood": np.array([True])})
    assert capsys.readouterr().out == "1e-300,true\n"


def test_wrong_use(tmp_path: Path) -> None:
    with (
        pytest.raises(FileFormatError, match="no folder"),
        open_sink(tmp_path / "nowhere" / "scores.csv", SCORE),
    ):
        pass
    with (
        pytest.raises(FileFormatError, match=r"expected one of \.npy, \.npz"),
        open_sink(tmp_path / "scores.txt", SCORE),
    ):
        pass
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(FileFormatError, match="it is a folder"), open_sink(tmp_path / "folder.csv", SCORE):
        pass
