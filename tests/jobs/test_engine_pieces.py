"""Which files, in which order, cut into which pieces."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import normscale as ns
from jobs.parts import CLASSES, logits_of, write_folder, write_logits
from normscale import jobs
from normscale.jobs.fitting import merged_in_order
from normscale.jobs.running import PIECE_ROWS
from normscale.jobs.sources import Layout, Piece, RowSource
from normscale.rows import find_files


class Plan(NamedTuple):
    layout: Layout
    pieces: list[Piece]
    n_empty: int
    source: RowSource


def plan_pieces(paths: Any, names: list[str] | None = None, *, piece_rows: int = PIECE_ROWS, **options: Any) -> Plan:
    source = RowSource(paths, names, **options)
    return Plan(source.layout, source.file_pieces(piece_rows), source.n_empty, source)


def names(files: object) -> list[str]:
    return [os.path.basename(file.path) for file in files]  # type: ignore[attr-defined]


def test_files_folders_and_globs_have_a_defined_order(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.npy", "c10.csv", "c9.csv", "_plan.parquet", ".hidden.npy", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    for folder in ("deep", "_job", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "d.npz").write_bytes(b"x")
    assert names(find_files(tmp_path)) == ["a.npy", "b.parquet", "c10.csv", "c9.csv", "d.npz"]
    assert names(find_files(str(tmp_path / "c*"))) == ["c10.csv", "c9.csv"]
    assert names(find_files([tmp_path / "c9.csv", str(tmp_path / "*.npy")])) == ["c9.csv", "a.npy"]
    with pytest.raises(ns.InvalidInput, match=r"a\.npy is named twice"):
        find_files([tmp_path, tmp_path / "a.npy"])
    for name in ("e.csv.gz", "f.npz.gz"):
        (tmp_path / name).write_bytes(b"x")
    assert names(find_files(str(tmp_path / "*.gz"))) == ["e.csv.gz"]  # text alone may be compressed
    assert "e.csv.gz" in names(find_files(tmp_path))
    with pytest.raises(ns.FileFormatError, match=r"\*\.safetensors matches no table"):
        find_files(str(tmp_path / "*.safetensors"))
    with pytest.raises(ns.FileFormatError, match="no such file"):
        find_files(tmp_path / "missing.npy")
    with pytest.raises(ns.InvalidInput, match="no tables were given"):
        find_files([])
    (tmp_path / "with[1].npy").write_bytes(b"x")
    assert names(find_files(tmp_path / "with[1].npy")) == ["with[1].npy"]


def test_pieces_cover_all_rows_once_in_the_order_of_the_first_file(tmp_path: Path) -> None:
    rows = write_folder(tmp_path / "in")
    plan = plan_pieces(tmp_path / "in", ["logits"], piece_rows=250)
    assert [piece.n_rows for piece in plan.pieces] == [200, 250, 1, 200, 200, 200, 100]
    assert [(piece.spans[0].rows or range(1)).start for piece in plan.pieces] == [0, 200, 0, 0, 200, 400, 600]
    assert [piece.number for piece in plan.pieces] == list(range(7))
    assert plan.n_empty == 1
    chunks = [chunk for piece in plan.pieces for chunk in plan.source.chunks(piece)]
    read = [chunk.outputs.logits.astype(np.float64) for chunk in chunks]
    np.testing.assert_array_equal(np.concatenate(read), rows)
    whole = plan_pieces(tmp_path / "in", piece_rows=10**9).pieces
    assert [piece.n_rows for piece in whole] == [450, 1, 700]
    assert [piece.n_rows for piece in plan_pieces(tmp_path / "in", piece_rows=1).pieces].count(100) == 11


@pytest.mark.parametrize("piece_rows", [1, 99, 100, 333, 1151])
def test_pieces_of_rows_are_the_same_whatever_files_the_rows_are_in(tmp_path: Path, piece_rows: int) -> None:
    rows = write_folder(tmp_path / "in")
    write_logits(tmp_path / "one.parquet", rows, group=270, label=np.zeros(len(rows), int))
    np.savez(tmp_path / "one.npz", logits=rows, labels=np.zeros(len(rows), int))
    for path in (tmp_path / "in", tmp_path / "one.parquet", tmp_path / "one.npz"):
        source = RowSource(path, ["logits"])
        pieces = source.row_pieces(piece_rows)
        assert [piece.n_rows for piece in pieces] == [len(rows[a : a + piece_rows]) for a in range(0, 1151, piece_rows)]
        for piece in pieces[:: max(1, len(pieces) // 7)]:
            read = [chunk.outputs.logits for chunk in source.chunks(piece)]
            start = piece.number * piece_rows
            np.testing.assert_array_equal(np.concatenate(read), rows[start : start + piece_rows])


def test_a_row_knows_its_file(tmp_path: Path) -> None:
    write_folder(tmp_path / "in")
    source = RowSource(tmp_path / "in", ["logits"])
    ((chunk, _),) = source.rows(None, ["logits"], "raise").with_masks()
    assert len(chunk.outputs) == 1151
    found = [chunk.origin(row) for row in (0, 449, 450, 451, 1150)]
    where = [str(tmp_path / "in" / f"{number}.parquet") for number in (0, 0, 1, 3, 3)]
    assert found == list(zip(where, (0, 449, 0, 0, 699), strict=True))


def test_other_formats_are_a_piece_each(tmp_path: Path) -> None:
    rows = logits_of(20)
    np.save(tmp_path / "a.npy", rows)
    np.savez(tmp_path / "b.npz", logits=rows)
    (tmp_path / "c.csv").write_text("logit_0,logit_1,logit_2,logit_3,logit_4\n" + "1,2,3,4,5\n" * 3)
    plan = plan_pieces(tmp_path)
    assert [piece.n_rows for piece in plan.pieces] == [20, 20, None]
    assert sum(len(chunk.outputs) for piece in plan.pieces for chunk in plan.source.chunks(piece)) == 43


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write_logits(tmp_path / "a.parquet", logits_of(10))
    pq.write_table(pa.table({f"logit_x{i}": np.zeros(3) for i in range(CLASSES)}), tmp_path / "b.parquet")
    with pytest.raises(ns.InvalidInput, match=r"b\.parquet has no column of logits for 'c0', .* it has 'x0', "):
        plan_pieces(tmp_path)
    pq.write_table(pa.table({f"logit_{i}": np.zeros(3) for i in range(CLASSES)}), tmp_path / "b.parquet")
    with pytest.raises(ns.FileFormatError, match=r"do not have the same columns of logits: only one has 'logit_0'"):
        plan_pieces(tmp_path)
    write_logits(tmp_path / "b.parquet", logits_of(10)[:, :4])
    with pytest.raises(ns.FileFormatError, match=r"b\.parquet holds 4 logits, and .*a\.parquet holds 5 logits"):
        plan_pieces(tmp_path)
    write_logits(tmp_path / "b.parquet", logits_of(10), label=np.zeros(10, int))
    with pytest.raises(ns.FileFormatError, match="5 logits \\+ labels, and"):
        plan_pieces(tmp_path)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_features_come_in_the_order_of_the_first_file(tmp_path: Path, suffix: str) -> None:
    for name, order in {"a": (0, 1, 2), "b": (2, 0, 1)}.items():
        columns: dict[str, Any] = {"logit_a": [1.5], "logit_b": [2.5], **{f"feature_{i}": [i + 0.5] for i in order}}
        if suffix == "parquet":
            pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
            continue
        mark = "\t" if suffix == "tsv" else ","
        rows = [mark.join(columns), mark.join(str(column[0]) for column in columns.values())]
        lines = [json.dumps({key: column[0] for key, column in columns.items()})] if suffix == "jsonl" else rows
        (tmp_path / f"{name}.{suffix}").write_text("\n".join(lines) + "\n")
    assert jobs.read(tmp_path).features.tolist() == [[0.5, 1.5, 2.5]] * 2
    (tmp_path / f"b.{suffix}").unlink()
    (tmp_path / "b.csv").write_text("logit_a,logit_b,feature_0,feature_1,feature_x\n1,2,3,4,5\n")
    with pytest.raises(ns.FileFormatError, match=r"the same columns of features: only one has 'feature_2'"):
        plan_pieces(tmp_path)


def test_columns_are_matched_by_the_names_of_the_classes(tmp_path: Path) -> None:
    rows, labels = logits_of(30), np.arange(30) % CLASSES
    write_logits(tmp_path / "a.parquet", rows, order=[4, 2, 0, 1, 3], label=labels)
    write_logits(tmp_path / "b.parquet", rows, order=[1, 0, 2, 4, 3], label=labels)
    header = ",".join(["label", *(f"logit_c{i}" for i in (3, 2, 1, 0, 4))])
    lines = [
        ",".join(map(repr, [int(label), *row[[3, 2, 1, 0, 4]].tolist()]))
        for label, row in zip(labels, rows, strict=True)
    ]
    (tmp_path / "c.csv").write_text("\n".join([header, *lines]) + "\n")
    for wanted in (None, ["c2", "c1", "c0"]):
        plan = plan_pieces(tmp_path, class_names=wanted)
        places = [4, 2, 0, 1, 3] if wanted is None else [2, 1, 0]
        assert plan.layout.class_names == tuple(f"c{i}" for i in places)
        for piece, own in zip(plan.pieces, ([4, 2, 0, 1, 3], [1, 0, 2, 4, 3], [3, 2, 1, 0, 4]), strict=True):
            ((chunk, _, _),) = plan.source.chunks(piece)
            np.testing.assert_array_equal(chunk.logits, rows[:, places])
            assert chunk.labels is not None  # a label is the number of a column of its file
            turned = [places.index(own[label]) if own[label] in places else -1 for label in labels]
            assert chunk.labels.tolist() == turned
    with pytest.raises(ns.InvalidInput, match=r"a\.parquet has no column of logits for 'cat'"):
        plan_pieces(tmp_path, class_names=["c1", "cat"])
    (tmp_path / "c.csv").write_text("\n".join([header.replace("c3", "owl"), *lines]) + "\n")
    with pytest.raises(ns.InvalidInput, match=r"c\.csv has no column of logits for 'c3'; .* it has 'owl' instead"):
        plan_pieces(tmp_path)


def test_empty_and_torn_and_changed_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_logits(path, logits_of(0))
    with pytest.raises(ns.FileFormatError, match="holds no rows"):
        plan_pieces(path)
    write_logits(path, logits_of(300))
    plan = plan_pieces(path)
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(ns.FileFormatError, match="damaged"):
        plan_pieces(path)
    with pytest.raises(ns.FileFormatError, match="has changed since this job was planned"):
        list(plan.source.chunks(plan.pieces[0]))
    path.unlink()
    with pytest.raises(ns.FileFormatError, match="is gone since this job was planned"):
        list(plan.source.chunks(plan.pieces[0]))


def test_damage_that_size_and_time_do_not_tell_is_found_by_checksums(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({f"logit_{i}": column for i, column in enumerate(logits_of(1000).T)})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    plan = plan_pieces(path)
    status, data = path.stat(), bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ns.FileFormatError, match=r"(?i)checksum|crc"):
        list(plan.source.chunks(plan.pieces[0]))


def shape(places: range) -> str:
    """The tree, written down by halving: level by level neighbours are put together."""
    level = [str(place) for place in places]
    while len(level) > 1:
        pairs = [f"({a} {b})" for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 31])
def test_tasks_that_are_subtrees_merge_to_the_same_tree(n: int) -> None:
    join = "({} {})".format
    for step in (1, 2, 4, 8):
        parts = [merged_in_order([str(i) for i in range(a, min(a + step, n))], join) for a in range(0, n, step)]
        assert merged_in_order(parts, join) == shape(range(n))
