"""Tables as data engineers have them: .tsv, .jsonl, compressed text, nulls, and columns that are carried along."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from needed_extras import need
from normscale.cli import app
from normscale.rows import open_score_writer, open_table

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(7, 3))
LABELS = np.array([0, 1, 2, -1, 1, 0, 2])
IDS = ["007", "a,b", 'say "x"', "ü", "", "6", "seven"]


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".csv.gz", ".tsv.gz", ".jsonl.gz"])
@pytest.mark.parametrize("names", [None, ("cat", "dog", "big owl")])
def test_text_formats_come_back_as_they_were(tmp_path: Path, suffix: str, names: tuple[str, ...] | None) -> None:
    path = tmp_path / f"table{suffix}"
    ns.write_table(path, ns.ModelOutputs(LOGITS, labels=LABELS), class_names=names)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == suffix.endswith(".gz")
    table = open_table(path, chunk_rows=2)
    assert table.class_names == names
    parts = list(table.chunks())
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    back = ns.ModelOutputs.concatenate(parts)
    assert np.array_equal(back.logits, LOGITS)
    assert np.array_equal(back.labels, LABELS)  # type: ignore[arg-type]
    again = tmp_path / f"again{suffix}"
    ns.write_table(again, ns.ModelOutputs(LOGITS, labels=LABELS), class_names=names)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv.gz"])
def test_they_come_through_pipes(tmp_path: Path, suffix: str) -> None:
    import os
    import threading

    path, pipe = tmp_path / f"table{suffix}", tmp_path / "pipe"
    ns.write_table(path, LOGITS)
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    assert np.array_equal(ns.read_table(pipe).logits, LOGITS)
    writer.join()


def test_lines_of_json_may_hold_what_json_has(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"id": "x", "logits": [1, null, "NaN"], "features": [0.5], "label": null, "more": {"a": 1}}\n\n'
        '{"label": 2, "features": [1], "logits": ["NaN", "-Infinity", 2.5], "id": "y"}\n'
    )
    table = open_table(path, keep=["id"])
    assert table.left_out == {}
    ((outputs, columns),) = table.chunks_and_columns()
    assert repr(outputs) == "ModelOutputs(n=2, logits=3, features=1, labels)"
    np.testing.assert_array_equal(outputs.logits, [[1, np.nan, np.nan], [np.nan, -np.inf, 2.5]])
    assert outputs.labels is not None
    assert outputs.labels.tolist() == [-1, 2]
    assert columns["id"].tolist() == ["x", "y"]
    path.write_text("[1.0, 2.0]\n[3.0, 4.0]\n")
    assert ns.read_table(path).logits.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("text", "says"),
    (
        ('{"logits": [1, 2]}\n{"logits": [1]}\n', "line 2: logits must be 2 numbers"),
        ('{"logits": [1, 2]}\n{"logit": [1, 2]}\n', "line 2: logits must be there in every line"),
        ('{"logits": [1, 2]}\n{"logits": [1, "x"]}\n', "line 2: expected numbers in logits, got 'x'"),
        ('{"logits": [1, 2]}\n{"logits": [1, tr', "line 2: not JSON"),
        ('{"a": 1}\n', "at least two columns of logits"),
        ("\n\n", "no line with anything on it"),
        ('{"logits": [1, 2]}\n3\n', "line 2: expected an object or a list"),
        ('{"logits": [1, 2]}\n{"logits": [1, NaN]}\n', "line 2: not JSON .NaN is not JSON"),
        ('{"logits": [1, Infinity]}\n', "line 1: not JSON .Infinity is not JSON"),
        ('{"logits": [1, 2]}\n{"logits": [1, "2.5"]}\n', "line 2: expected numbers in logits, got '2.5'"),
    ),
)
def test_damaged_lines_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(ns.FileFormatError, match=says):
        ns.read_table(path)


def test_compressed_text_that_breaks_off(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"1.0,2.0\n" * 1000)[:40])
    with pytest.raises(ns.FileFormatError, match="is damaged, or is not"):
        ns.read_table(path)
    with pytest.raises(ns.FileFormatError, match=r"'\.npz\.gz' is not known"):
        open_table(_written(tmp_path / "a.npz.gz"))


def _written(path: Path) -> Path:
    path.write_bytes(b"x")
    return path


def _table_with_ids(path: Path) -> Path:
    """The logits with an id, a time and a number for each row."""
    rows = [
        {"id": one, "when": f"2026-01-0{i + 1}", "n": i, "logit_a": z[0], "logit_b": z[1], "logit_c": z[2]}
        for i, (one, z) in enumerate(zip(IDS, LOGITS.tolist(), strict=True))
    ]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".npz":
        np.savez(path, logits=LOGITS, id=np.array(IDS), n=np.arange(7), when=np.array([str(r["when"]) for r in rows]))
    elif path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        import datetime

        columns: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]}
        columns["when"] = [datetime.date.fromisoformat(str(text)) for text in columns["when"]]
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)
    else:
        import csv

        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".npz", ".parquet"])
def test_columns_are_kept_beside_the_chunks(tmp_path: Path, suffix: str) -> None:
    path = _table_with_ids(tmp_path / f"table{suffix}")
    table = open_table(path, chunk_rows=3, keep=["when", "id", "n"])
    parts = list(table.chunks_and_columns())
    assert [len(columns["id"]) for _, columns in parts] == [3, 3, 1]
    assert [text for _, columns in parts for text in columns["id"].tolist()] == IDS
    assert [str(n) for _, columns in parts for n in columns["n"].tolist()] == list("0123456")
    assert str(parts[2][1]["when"][0]) == "2026-01-07"
    assert np.array_equal(np.concatenate([chunk.logits for chunk, _ in parts]), LOGITS)
    with pytest.raises(ns.InvalidInput, match=r"has no column 'uid' to keep; it has .*'id'"):
        open_table(path, keep=["uid"])


def test_a_kept_column_is_no_logit(tmp_path: Path) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("id,cat,dog\n1,0.5,1.5\n2,0.25,2.5\n")
    with pytest.raises(ns.FileFormatError, match="looks like row numbers"):
        open_table(path)
    table = open_table(path, keep=["id"])
    assert table.class_names == ("cat", "dog")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".npz", ".parquet", ".csv.gz"])
def test_score_carries_columns_to_its_output(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        need("pyarrow")
    table, detector = _table_with_ids(tmp_path / "table.csv"), tmp_path / "energy.safetensors"
    ns.Energy().fit(LOGITS).save(detector)
    out = tmp_path / f"scores{suffix}"
    done = CliRunner().invoke(app, ["score", str(detector), str(table), "-o", str(out), "--keep-columns", "id,when"])
    assert done.exit_code == 0, done.exception
    rows: list[dict[str, Any]]
    if suffix == ".npz":
        with np.load(out) as file:
            arrays = {key: file[key] for key in file}
        rows = [dict(zip(arrays, values, strict=True)) for values in zip(*(arrays[key] for key in arrays), strict=True)]
    elif suffix == ".parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    else:
        import csv

        text = gzip.decompress(out.read_bytes()).decode() if suffix == ".csv.gz" else out.read_text()
        rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == ["id", "when", "score", "predicted"]
    assert [str(row["id"]) for row in rows] == IDS
    np.testing.assert_allclose([float(row["score"]) for row in rows], ns.Energy().score(LOGITS), rtol=1e-12)


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    detector = tmp_path / "energy.safetensors"
    ns.Energy().fit(LOGITS).save(detector)
    clash = tmp_path / "clash.csv"
    clash.write_text("score,logit_a,logit_b,logit_c\nx,1,2,3\n")
    for arguments, says in (
        ((str(clash), "--keep-columns", "score"), "'score' of .* cannot be kept"),
        (("sample:test", "--keep-columns", "id"), "sample:test has no column 'id' to keep"),
    ):
        done = CliRunner().invoke(app, ["score", str(detector), *arguments])
        assert isinstance(done.exception, ns.InvalidInput)
        assert re.search(says, str(done.exception))
    with pytest.raises(ns.InvalidInput, match="holds no texts"):
        open_score_writer(tmp_path / "s.safetensors", {"id": object, "score": float})


def test_nulls_of_parquet_are_nan(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")

    path = tmp_path / "nulls.parquet"
    columns = {
        "logit_a": arrow.array([1.0, None, 3.0]),
        "logit_b": arrow.array([1, 2, None], arrow.int64()),
        "features": arrow.array([[1.0, 2.0], None, [3.0, None]], arrow.list_(arrow.float32())),
        "label": arrow.array([1, None, 0]),
        "n": arrow.array([5, None, 6]),
    }
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path)
    ((outputs, kept),) = open_table(path, keep=["n"]).chunks_and_columns()
    np.testing.assert_array_equal(outputs.logits, [[1, 1], [np.nan, 2], [3, np.nan]])
    np.testing.assert_array_equal(outputs.features, [[1, 2], [np.nan, np.nan], [3, np.nan]])
    assert outputs.labels is not None
    assert outputs.labels.tolist() == [1, -1, 0]
    assert kept["n"].tolist() == [5, None, 6]
    detector = ns.Energy().fit(LOGITS[:, :2])
    with pytest.raises(ns.InvalidInput, match="logits row 1 holds NaN in column 0"):
        detector.score(outputs)
    assert np.isnan(detector.score(outputs, on_invalid="skip")).tolist() == [False, True, True]


def test_a_row_of_jsonl_that_is_null_holds_nan(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"logits": [1.0, 2.0]}\n{"logits": null}\n')
    found = ns.read_table(tmp_path / "t.jsonl").logits
    np.testing.assert_array_equal(found, [[1.0, 2.0], [np.nan, np.nan]])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([1, 2**63 + 1], "line 2: 'id' is 9223372036854775809, and in the first lines a whole number of at most 64"),
        ([1, 2**70], "line 2: 'id' is 1180591620717411303424"),
        ([1.5, [1]], r"line 2: 'id' is \[1\], and in the first lines a number;"),
        ([1.5, "abc"], "line 2: 'id' is \"abc\", and in the first lines a number;"),
        ([1, 2.5], "line 2: 'id' is 2.5, and in the first lines a whole number"),
    ],
)
def test_a_kept_value_of_another_kind_is_named_with_its_line(tmp_path: Path, values: list[Any], says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"logits": [1.0, 2.0], "id": one}) + "\n" for one in values))
    with pytest.raises(ns.FileFormatError, match=says):
        list(open_table(path, chunk_rows=1, keep=["id"]).chunks_and_columns())
