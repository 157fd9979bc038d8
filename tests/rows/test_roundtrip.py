"""What is written in any format comes back, in chunks of any size."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.rows import open_table, read_table, write_table

FORMATS = ["npz", "npy", "safetensors", "parquet", "csv"]


def need(kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")


def make(dtype: Any, n: int = 23, *, features: bool = False, labels: bool = False) -> ModelOutputs:
    rng = np.random.default_rng(n)
    return ModelOutputs(
        rng.normal(size=(n, 5), scale=7).astype(dtype),
        rng.normal(size=(n, 3)).astype(dtype) if features else None,
        rng.integers(-1, 5, n) if labels else None,
    )


def assert_same(read: ModelOutputs, written: ModelOutputs, *, dtype: Any = None) -> None:
    assert set(read.names) == set(written.names)
    for name in written.names:
        np.testing.assert_array_equal(read.array(name), written.array(name), err_msg=name)
        assert read.array(name).dtype == (written.array(name).dtype if dtype is None else dtype)
    assert (read.labels is None) == (written.labels is None)
    if written.labels is not None:
        np.testing.assert_array_equal(read.labels, written.labels)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", FORMATS)
def test_roundtrip(tmp_path: Path, kind: str, dtype: Any, features: bool, labels: bool) -> None:
    need(kind)
    path = tmp_path / f"outputs.{kind}"
    outputs = make(dtype, features=features, labels=labels)
    if kind == "npy" and (features or labels):
        with pytest.raises(InvalidInput, match=r"an \.npy file holds logits only"):
            write_table(path, outputs)
        assert not list(tmp_path.iterdir())
        return
    if kind == "csv" and features:
        with pytest.raises(
            InvalidInput, match=r"a \.csv file holds logits and labels only, and there are also features"
        ):
            write_table(path, outputs)
        assert not list(tmp_path.iterdir())
        return
    write_table(path, outputs)
    expected = np.float64 if kind == "csv" else dtype
    assert_same(read_table(path), outputs, dtype=expected)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    for chunk_rows in (1, 7, 23, 100):
        table = open_table(path, chunk_rows=chunk_rows)
        assert (table.n_classes, table.has_labels, "features" in table.widths) == (5, labels, features)
        assert table.n_rows == (None if kind == "csv" else 23)
        chunks = list(table.chunks())
        assert [len(chunk) for chunk in chunks[:-1]] == [chunk_rows] * (22 // chunk_rows)
        assert_same(ModelOutputs.concatenate(chunks), outputs, dtype=expected)
        assert_same(table.read(), outputs, dtype=expected)  # a file can be read again
        for chunk in chunks:
            assert chunk.logits.flags.writeable  # compiled kernels take read-only arrays for another type
            assert chunk.logits.dtype.isnative


@pytest.mark.parametrize("kind", FORMATS)
def test_no_rows(tmp_path: Path, kind: str) -> None:
    need(kind)
    path = tmp_path / f"outputs.{kind}"
    write_table(path, np.empty((0, 4), np.float32))
    table = open_table(path)
    assert list(table.chunks()) == []
    assert table.read().logits.shape == (0, 4)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "parquet", "csv"])
def test_class_names_come_back(tmp_path: Path, kind: str) -> None:
    need(kind)
    path = tmp_path / f"outputs.{kind}"
    names = ("great white shark", "tench, Tinca tinca", 'the "so-called" café', "label", "x.y")
    write_table(path, make(np.float32, labels=True), class_names=names)
    assert open_table(path).class_names == names
    names = ("a;b", "c\td", '"', "e", "f")
    write_table(path, make(np.float32), class_names=names)
    assert open_table(path).class_names == names
    np.testing.assert_array_equal(read_table(path).logits, make(np.float32).logits)
    broken = ("a\nb", *"cdef")
    if kind == "csv":
        with pytest.raises(InvalidInput, match="holds a line break"):
            write_table(path, make(np.float32), class_names=broken)
    else:
        write_table(path, make(np.float32), class_names=broken)
        assert open_table(path).class_names == broken
    write_table(path, make(np.float32))
    assert open_table(path).class_names is None
    with pytest.raises(InvalidInput, match="class_names must be 5 different names"):
        write_table(path, make(np.float32), class_names=["a", "b"])
    with pytest.raises(InvalidInput, match="some twice"):
        write_table(path, make(np.float32), class_names=list("aabcd"))


@pytest.mark.parametrize("kind", FORMATS)
@given(
    logits=hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        st.tuples(st.integers(1, 12), st.integers(2, 4)),
        elements={"allow_nan": True, "allow_infinity": True},
    ),
    chunk_rows=st.integers(1, 13),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_float_survives(tmp_path: Path, kind: str, logits: Any, chunk_rows: int) -> None:
    need(kind)
    path = tmp_path / f"any.{kind}"
    write_table(path, logits)
    chunks = [chunk.logits for chunk in open_table(path, chunk_rows=chunk_rows).chunks()]
    np.testing.assert_array_equal(np.concatenate(chunks), logits)
    assert not np.any(np.signbit(np.concatenate(chunks)) != np.signbit(logits), where=~np.isnan(logits))


@pytest.mark.parametrize("kind", FORMATS)
def test_views_and_foreign_orders_are_written_right(tmp_path: Path, kind: str) -> None:
    need(kind)
    path = tmp_path / f"view.{kind}"
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for logits in (base.T, base[::2, 1::2], base[::-1], np.asfortranarray(base)):
        write_table(path, logits)
        np.testing.assert_array_equal(read_table(path).logits, logits)
        chunks = [chunk.logits for chunk in open_table(path, chunk_rows=2).chunks()]
        np.testing.assert_array_equal(np.concatenate(chunks), logits)


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_fortran_order_and_big_endian_files_of_numpy(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"numpy.{kind}"
    logits = np.random.default_rng(0).normal(size=(50, 4))
    for stored in (np.asfortranarray(logits), logits.astype(">f8"), np.asfortranarray(logits.astype(">f8"))):
        if kind == "npz":
            np.savez_compressed(path, stored)  # its only array is called arr_0
        else:
            np.save(path, stored)
        for chunk_rows in (3, 50):
            chunks = [chunk.logits for chunk in open_table(path, chunk_rows=chunk_rows).chunks()]
            np.testing.assert_array_equal(np.concatenate(chunks), logits)
            assert all(chunk.dtype.isnative for chunk in chunks)


def test_npz_with_other_names(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    logits, labels = np.eye(3), np.array([0, 1, 2], np.uint8)
    np.savez_compressed(path, my_logits=logits, label=labels)
    read = read_table(path)
    np.testing.assert_array_equal(read.logits, logits)
    np.testing.assert_array_equal(read.labels, labels)
    np.savez(path, logits=logits, time=np.arange(7), names=np.array(["a", "b"]))  # others are left alone
    np.testing.assert_array_equal(read_table(path).logits, logits)


def test_npz_members_are_read_side_by_side_and_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    outputs = make(np.float64, 1000, features=True, labels=True)
    write_table(path, outputs)
    largest = 0
    original = zipfile.ZipExtFile.readinto

    def watched(self: zipfile.ZipExtFile, buffer: Any) -> int:
        nonlocal largest
        largest = max(largest, len(buffer))
        return original(self, buffer)

    monkeypatch.setattr(zipfile.ZipExtFile, "readinto", watched)
    chunks = list(open_table(path, chunk_rows=10).chunks())
    assert_same(ModelOutputs.concatenate(chunks), outputs)
    assert largest == 10 * 5 * 8


def test_default_chunks_hold_about_four_million_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_table(path, make(np.float64, features=True))
    assert open_table(path).chunk_rows == 2**22 // 8
    with pytest.raises(InvalidInput, match="chunk_rows must be a whole number >= 1"):
        open_table(path, chunk_rows=0)


def test_safetensors_bfloat16_and_offsets(tmp_path: Path) -> None:
    import json

    path = tmp_path / "a.safetensors"
    values = np.array([[1.0, -2.5, 3e38], [0.0, 1e-38, 7.0], [-0.5, 2.0, 65536.0]], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32)
    header = {
        "labels": {"dtype": "I8", "shape": [3], "data_offsets": [0, 3]},
        "logits": {"dtype": "BF16", "shape": [3, 3], "data_offsets": [3, 21]},  # not aligned
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes([0, 2, 255]) + bits.tobytes())
    for chunk_rows in (1, 2, 3):
        read = ModelOutputs.concatenate(open_table(path, chunk_rows=chunk_rows).chunks())
        np.testing.assert_array_equal(read.logits, exact)
        assert read.logits.dtype == np.float32
        assert read.labels is not None
        assert read.labels.tolist() == [0, 2, -1]


def test_label_out_of_range_names_the_file_and_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, logits=np.zeros((10, 3)), labels=np.array([0] * 7 + [3] + [0] * 2))
    chunks = open_table(path, chunk_rows=4).chunks()
    next(chunks)
    with pytest.raises(InvalidInput, match=r"a\.npz, rows 4 to 7: labels\[3\] is 3"):
        next(chunks)


def test_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    write_table("-", ModelOutputs([[1.5, 2.0]], labels=[1]))
    text = capsys.readouterr().out
    assert text == "logit_0,logit_1,label\n1.5,2.0,1\n"
    assert np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1).tolist() == [1.5, 2.0, 1.0]
