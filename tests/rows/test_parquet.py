"""Parquet: columns or lists, nulls, and memory that does not grow with the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normscale.errors import FileFormatError, InvalidInput, MissingExtra
from normscale.rows import open_sink, open_table, read_table, write_table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def written(tmp_path: Path, columns: object, **options: object) -> Path:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_float_columns_are_classes(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"cat": [1.0, 2.0], "feature_x": [0.1, 0.2], "dog": [3.0, 4.0], "label": pa.array([1, -1], pa.int8())},
    )
    table = open_table(path)
    assert table.class_names == ("cat", "dog")
    assert (table.n_rows, table.n_classes, table.widths.get("features")) == (2, 2, 1)
    read = table.read()
    np.testing.assert_array_equal(read.logits, [[1, 3], [2, 4]])
    np.testing.assert_array_equal(read.features, [[0.1], [0.2]])
    np.testing.assert_array_equal(read.labels, [1, -1])


def test_marked_columns_leave_all_others_out(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"id": ["x", "y"], "logit_b": pa.array([1, 2], pa.int16()), "score": [9.0, 9.0], "logit_a": [0.5, 1.5]},
    )
    table = open_table(path)
    assert table.class_names == ("b", "a")
    np.testing.assert_array_equal(table.read().logits, [[1, 0.5], [2, 1.5]])


def test_columns_of_mixed_width_become_the_widest(tmp_path: Path) -> None:
    path = written(tmp_path, {"a": pa.array([1.5], pa.float32()), "b": pa.array([0.1], pa.float64())})
    read = read_table(path)
    assert read.logits.dtype == np.float64
    assert read.logits.tolist() == [[1.5, 0.1]]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_lists_are_rows(tmp_path: Path, fixed: bool, dtype: Any) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 4)).astype(dtype)
    features = np.arange(100, dtype=dtype).reshape(50, 2)

    def lists(array: Any) -> object:
        flat = pa.array(array.reshape(-1))
        if fixed:
            return pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
        return pa.ListArray.from_arrays(np.arange(51, dtype=np.int32) * array.shape[1], flat)

    path = written(
        tmp_path,
        {"name": ["x"] * 50, "logits": lists(logits), "features": lists(features), "labels": [0, 1] * 25},
        row_group_size=7,
    )
    for chunk_rows in (1, 3, 49, 100):
        table = open_table(path, chunk_rows=chunk_rows)
        assert (table.n_classes, table.widths.get("features"), table.has_labels) == (4, 2, True)
        read = table.read()
        np.testing.assert_array_equal(read.logits, logits)
        np.testing.assert_array_equal(read.features, features)
        np.testing.assert_array_equal(read.labels, [0, 1] * 25)
        assert read.logits.dtype == dtype
        assert all(chunk.logits.flags.writeable for chunk in table.chunks())
        sizes = [len(chunk) for chunk in table.chunks()]
        assert sizes[:-1] == [chunk_rows] * (len(sizes) - 1)  # row groups do not show


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    table = open_table(written(tmp_path, {"a": [1.0] * 9, "b": [2.0] * 9}), chunk_rows=2)
    written(tmp_path, {"a": [1.0] * 7, "b": [2.0] * 7})
    with pytest.raises(FileFormatError, match="it says 9 rows but holds 7"):
        table.read()


def test_unequal_lists_name_the_row(tmp_path: Path) -> None:
    path = written(tmp_path, {"logits": [[1.0, 2.0]] * 5 + [[1.0, 2.0, 3.0]] + [[0.0, 0.0]] * 4})
    with pytest.raises(InvalidInput, match="logits row 5 has 3 numbers; all rows must have 2"):
        list(open_table(path, chunk_rows=4).chunks())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0], "b": ["x"]}, "column 'b' holds string, and logits are floating-point"),
        ({"a": [1.0], "b": [2.0], "count": [7]}, "column 'count' holds int64, and logits are floating-point"),
        ({"a": [1.0], "b": [2.0], "label": [0.0]}, "column 'label' holds double; labels are whole numbers"),
        ({"a": [1.0]}, "at least two columns of logits"),
        ({"logits": [["x", "y"]]}, "lists of string; expected lists of numbers"),
        ({"logits": [[1.0]]}, "n_classes >= 2 numbers.*got 1"),
        ({"logits": pa.array([], pa.list_(pa.float32()))}, "no rows"),
        ({"index": [1.0], "a": [1.0], "b": [1.0]}, "looks like row numbers"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        open_table(written(tmp_path, columns))


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, {"a": [1.0], "b": [2.0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for action in (
        lambda: open_table(path),
        lambda: write_table(tmp_path / "b.parquet", np.eye(2)),
        lambda: open_sink(tmp_path / "b.parquet", {"score": np.dtype(float)}).__enter__(),
    ):
        with pytest.raises(MissingExtra, match=r"pip install 'normscale\[arrow\]'"):
            action()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's record of peak memory")
def test_memory_stays_bounded_whatever_the_row_groups(tmp_path: Path) -> None:
    """One row group of a million rows, 80 MB of numbers, takes a fraction of that.

    The peak is Linux's VmHWM: getrusage gives a child its parent's peak to start with, which hides all.
    """
    logits = np.random.default_rng(0).normal(size=(10, 1_000_000))
    path = written(
        tmp_path,
        {f"logit_{i}": column for i, column in enumerate(logits)},
        row_group_size=1_000_000,
        use_dictionary=False,
        compression=None,
    )
    code = f"""
import pyarrow.parquet
from normscale.rows import open_table
pyarrow.array([1.0]).to_numpy()  # the first one imports pandas where it is installed: 50 MB of code, no rows

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

table = open_table({str(path)!r}, chunk_rows=10_000)
before, total, rows = peak(), 0.0, 0
for chunk in table.chunks():
    total, rows = total + float(chunk.logits.sum()), rows + len(chunk)
print(rows, total, (peak() - before) // 1024)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, total, megabytes = run.stdout.split()
    assert int(rows) == 1_000_000
    assert float(total) == pytest.approx(logits.sum())
    assert 0 < int(megabytes) < 50


def test_a_first_list_that_is_null_does_not_say_how_many_classes_there_are(tmp_path: Path) -> None:
    table = pa.table({"logits": pa.array([None, [1.0, 2.0, 3.0]], pa.list_(pa.float64()))})
    pq.write_table(table, tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet").logits
    np.testing.assert_array_equal(found, [[np.nan] * 3, [1.0, 2.0, 3.0]])


@pytest.mark.parametrize("chunk_rows", [1, 2, 100])
def test_a_null_among_whole_numbers_is_nan_in_any_chunk(tmp_path: Path, chunk_rows: int) -> None:
    lists = pa.array([[1, 2], [3, 4], None, [None, 5]], pa.list_(pa.int64()))
    read = open_table(written(tmp_path, {"logits": lists}), chunk_rows=chunk_rows).read().logits
    np.testing.assert_array_equal(read, [[1, 2], [3, 4], [np.nan] * 2, [np.nan, 5]])


def test_a_kept_column_with_nulls_behind_a_struct_keeps_them(tmp_path: Path) -> None:
    columns = {
        "meta": pa.array([{"a": 1, "b": 2}] * 3), "id": pa.array([1, None, 3], pa.int64()),
        "n": pa.array([1, 2, 3]), "logit_0": [1.0, 2.0, 3.0], "logit_1": [3.0, 2.0, 1.0],
    }  # fmt: skip
    ((_, kept, _),) = open_table(written(tmp_path, columns), keep=["id", "n"]).blocks()
    assert kept["id"].tolist() == [1, None, 3]
    assert kept["n"].tolist() == [1, 2, 3]
