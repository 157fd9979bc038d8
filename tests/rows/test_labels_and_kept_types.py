"""Labels that are names of classes, and columns that keep their types on the way to the scores."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from normscale.cli import app
from normscale.rows import open_sink, open_table

LOGITS = np.array([[2.0, 1.0], [0.5, 1.5], [3.0, 0.0], [0.0, 1.0]])
TEXTS = ["cat", "dog", "", "dog"]


def table_of(tmp_path: Path, kind: str, labels: list[Any], names: tuple[str, str] = ("logit_cat", "logit_dog")) -> Path:
    path = tmp_path / f"t.{kind}"
    if kind == "npz":
        arrays: dict[str, Any] = {"logits": LOGITS, "labels": np.array(labels)}
        if names[0] != "logit_0":
            arrays["class_names"] = np.array([name.removeprefix("logit_") for name in names])
        np.savez(path, **arrays)
    elif kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {name: LOGITS[:, i] for i, name in enumerate(names)}
        label = pa.array([one or None for one in labels]).dictionary_encode()
        pq.write_table(pa.table({**columns, "label": label}), path)
    else:
        lines = [",".join([*map(repr, row), one]) for row, one in zip(LOGITS.tolist(), labels, strict=True)]
        path.write_text("\n".join([",".join([*names, "label"]), *lines]) + "\n")
    return path


@pytest.mark.parametrize("kind", ["csv", "npz", "parquet"])
def test_labels_may_be_names_of_classes(tmp_path: Path, kind: str) -> None:
    path = table_of(tmp_path, kind, TEXTS)
    for chunk_rows in (1, 3, None):
        with open_table(path, chunk_rows=chunk_rows) as table:
            assert table.read().labels.tolist() == [0, 1, -1, 1]  # type: ignore[union-attr]
    path = table_of(tmp_path, kind, ["cat", "dog", "owl", "dog"])
    with pytest.raises(ns.InvalidInput, match=r"labels row 2 is 'owl', which is none of the classes 'cat', 'dog'"):
        ns.read_table(path)
    path = table_of(tmp_path, kind, TEXTS, ("logit_0", "logit_1"))
    with pytest.raises(ns.InvalidInput, match=r"labels row 0 is the text 'cat', and nothing names the classes"):
        ns.read_table(path)
    with open_table(path, class_names=["dog", "cat"]) as table:
        assert table.read().labels.tolist() == [1, 0, -1, 0]  # type: ignore[union-attr]


def test_a_csv_whose_first_label_is_missing(tmp_path: Path) -> None:
    path = table_of(tmp_path, "csv", ["", "dog", "cat", ""])
    assert ns.read_table(path).labels.tolist() == [-1, 1, 0, -1]  # type: ignore[union-attr]
    path.write_text(path.read_text().replace("label", "labels"))
    ((chunk, kept, _),) = open_table(path, keep=["labels"]).blocks()
    assert chunk.labels.tolist() == [-1, 1, 0, -1]  # type: ignore[union-attr]
    assert kept["labels"].tolist() == ["", "dog", "cat", ""]


@pytest.mark.parametrize("labels", [["1", "", "0", "1"], ["", "1", "0", ""], ["-1", "1", "0", ""]])
def test_a_label_that_is_empty_is_not_known(tmp_path: Path, labels: list[str]) -> None:
    path = table_of(tmp_path, "csv", labels)
    assert ns.read_table(path).labels.tolist() == [int(one or -1) for one in labels]  # type: ignore[union-attr]


def test_a_label_between_two_classes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("logit_a,logit_b,label\n1,2,a\n1,2,0.5\n")
    with pytest.raises(ns.InvalidInput, match=r"labels row 1 is '0\.5', which is none of the classes 'a', 'b'"):
        ns.read_table(path)


def test_commands_take_labels_of_texts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 2)) * 3
    names = np.array(["cat", "dog"])[logits.argmax(axis=1)]
    lines = [f"{a!r},{b!r},{name}" for (a, b), name in zip(logits.tolist(), names, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["logit_cat,logit_dog,label", *lines]))
    out = tmp_path / "d.safetensors"
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "t.csv"), "-d", "norm_scaling", "-o", str(out)])
    assert done.exit_code == 0, done.output
    expected = ns.NormScaling().fit(ns.ModelOutputs(logits, labels=logits.argmax(axis=1)))
    np.testing.assert_array_equal(ns.load_detector(out).score(logits), expected.score(logits))


def test_dataframes_of_any_kind_take_labels_of_texts() -> None:
    from normscale.dataframes import read_dataframe
    from normscale.outputs import is_dataframe

    columns = {"logit_cat": LOGITS[:, 0], "logit_dog": LOGITS[:, 1], "label": ["cat", "dog", None, "dog"]}
    frames = [pytest.importorskip("pandas").DataFrame(columns), pytest.importorskip("pyarrow").table(columns)]
    for frame in frames:
        assert is_dataframe(frame)
        outputs, class_names = read_dataframe(frame)
        assert class_names == ("cat", "dog")
        np.testing.assert_array_equal(outputs.logits, LOGITS)
        assert outputs.labels.tolist() == [0, 1, -1, 1]  # type: ignore[union-attr]
    np.testing.assert_array_equal(ns.Energy().fit(frames[1]).score(frames[0]), ns.Energy().fit(LOGITS).score(LOGITS))


ZONED = datetime.datetime(2026, 11, 18, 1, 2, 3, 456789, tzinfo=datetime.UTC)


def kept_table(path: Path) -> Any:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {
            "when": pa.array([ZONED, None, ZONED, ZONED], pa.timestamp("us", tz="Europe/Zurich")),
            "nanos": pa.array([1, 2, 1_700_000_000_000_000_001, 4], pa.timestamp("ns")),
            "day": pa.array([datetime.date(2026, 11, 18)] * 4, pa.date32()),
            "id": pa.array([2**62 + 1, None, 3, 4], pa.int64()),
            "price": pa.array([Decimal("1.50")] * 4, pa.decimal128(10, 2)),
            "camera": pa.array(["a", None, "b", "a"]).dictionary_encode(),
            "ok": pa.array([True, None, False, True]),
            "logit_a": LOGITS[:, 0],
            "logit_b": LOGITS[:, 1],
        }
    )
    pq.write_table(table, path)
    return table


KEEP = ["when", "nanos", "day", "id", "price", "camera", "ok"]


@pytest.mark.parametrize("chunk_rows", [1, 3, None])
def test_kept_columns_keep_their_types_in_parquet(tmp_path: Path, chunk_rows: int | None) -> None:
    table = kept_table(tmp_path / "t.parquet")
    with (
        open_table(tmp_path / "t.parquet", chunk_rows=chunk_rows, keep=KEEP) as reader,
        open_sink(tmp_path / "s.parquet", {**reader.columns, "score": np.dtype(float)}) as sink,
    ):
        for chunk, columns, _ in reader.blocks():
            sink.write({**columns, "score": chunk.logits[:, 0]})
    back = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "s.parquet")
    for name in KEEP:
        expected = table.column(name)
        kind = expected.type.value_type if name == "camera" else expected.type
        assert back.schema.field(name).type == kind
        assert back.column(name).equals(expected.cast(kind))  # nanoseconds have no Python value without pandas
    assert back.column("score").to_pylist() == LOGITS[:, 0].tolist()


def test_kept_columns_in_texts_and_arrays(tmp_path: Path) -> None:
    kept_table(tmp_path / "t.parquet")
    ns.Energy().fit(LOGITS).save(tmp_path / "d.safetensors")
    for suffix in ("csv", "npz"):
        arguments = ["score", str(tmp_path / "d.safetensors"), str(tmp_path / "t.parquet"), "--keep-columns",
                     "when,day,id", "-o", str(tmp_path / f"s.{suffix}")]  # fmt: skip
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
    lines = (tmp_path / "s.csv").read_text().splitlines()
    assert lines[1].startswith("2026-11-18T01:02:03.456789Z,2026-11-18,4611686018427387905,")
    assert lines[2].startswith(",2026-11-18,,")
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["day"].dtype == np.dtype("M8[D]")
        assert arrays["when"][0] == np.datetime64("2026-11-18T01:02:03.456789")
        assert np.isnat(arrays["when"][1])
    reader = open_table(tmp_path / "t.parquet", keep=["when"])
    with pytest.raises(ns.InvalidInput, match="holds no texts and times"):
        open_sink(tmp_path / "s.safetensors", {**reader.columns, "score": np.dtype(float)}).__enter__()
    reader.close()


def test_a_parquet_file_is_opened_once_by_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    pq.write_table(
        pa.table({"logit_a": np.arange(9.0), "logit_b": np.ones(9)}), tmp_path / "t.parquet", row_group_size=4
    )
    opened: list[str] = []
    original = pq.ParquetFile

    def watched(path: str, **options: Any) -> Any:
        opened.append(path)
        return original(path, **options)

    monkeypatch.setattr(pq, "ParquetFile", watched)
    with open_table(tmp_path / "t.parquet") as reader:
        assert reader.edges == [0, 4, 8, 9]
        assert len(reader.read()) == 9
        assert len(reader.read()) == 9
        for rows in (range(4, 9), range(2, 6), range(9), range(8, 9)):
            chunks = list(reader.blocks(rows))
            assert [chunk.origin(0)[1] + row for chunk in chunks for row in range(len(chunk.outputs))] == list(rows)
            assert [one for chunk in chunks for one in chunk.outputs.logits[:, 0].tolist()] == list(rows)
    assert len(opened) == 1
