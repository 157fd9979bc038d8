"""Tables as data engineers have them: .tsv, compressed text, nulls, and columns that are carried along."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from needed_extras import need
from normscale.cli import app
from normscale.rows import open_sink, open_table
from normscale.rows.reader import even_chunks

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(7, 3))
LABELS = np.array([0, 1, 2, -1, 1, 0, 2])
IDS = ["007", "a,b", 'say "x"', "ü", "", "6", "seven"]


@pytest.mark.parametrize("suffix", [".tsv", ".csv.gz", ".tsv.gz"])
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


@pytest.mark.parametrize("suffix", [".tsv", ".csv.gz"])
def test_they_come_through_pipes(tmp_path: Path, suffix: str) -> None:
    import os
    import threading

    path, pipe = tmp_path / f"table{suffix}", tmp_path / "pipe"
    ns.write_table(path, LOGITS)
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()), daemon=True)
    writer.start()
    assert np.array_equal(ns.read_table(pipe).logits, LOGITS)
    writer.join(60)


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
    if path.suffix == ".npz":
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


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".npz", ".parquet"])
def test_columns_are_kept_beside_the_chunks(tmp_path: Path, suffix: str) -> None:
    path = _table_with_ids(tmp_path / f"table{suffix}")
    table = open_table(path, keep=["when", "id", "n"])
    parts = list(even_chunks(table.blocks(), 3))
    assert [len(columns["id"]) for _, columns, _ in parts] == [3, 3, 1]
    assert [text for _, columns, _ in parts for text in columns["id"].tolist()] == IDS
    assert [str(n) for _, columns, _ in parts for n in columns["n"].tolist()] == list("0123456")
    assert str(parts[2][1]["when"][0]) == "2026-01-07"
    assert np.array_equal(np.concatenate([chunk.logits for chunk, _, _ in parts]), LOGITS)
    with pytest.raises(ns.InvalidInput, match=r"has no column 'uid' to keep; it has .*'id'"):
        open_table(path, keep=["uid"])


def test_a_kept_column_is_no_logit(tmp_path: Path) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("id,cat,dog\n1,0.5,1.5\n2,0.25,2.5\n")
    with pytest.raises(ns.FileFormatError, match="looks like row numbers"):
        open_table(path)
    table = open_table(path, keep=["id"])
    assert table.class_names == ("cat", "dog")


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet", ".csv.gz"])
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
        open_sink(tmp_path / "s.safetensors", {"id": np.dtype(object), "score": np.dtype(float)}).__enter__()


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
    ((outputs, kept, _),) = open_table(path, keep=["n"]).blocks()
    np.testing.assert_array_equal(outputs.logits, [[1, 1], [np.nan, 2], [3, np.nan]])
    np.testing.assert_array_equal(outputs.features, [[1, 2], [np.nan, np.nan], [3, np.nan]])
    assert outputs.labels is not None
    assert outputs.labels.tolist() == [1, -1, 0]
    assert kept["n"].tolist() == [5, None, 6]
    detector = ns.Energy().fit(LOGITS[:, :2])
    with pytest.raises(ns.InvalidInput, match="logits row 1 holds NaN in column 0"):
        detector.score(outputs)
    assert np.isnan(detector.score(outputs, on_invalid="skip")).tolist() == [False, True, True]
