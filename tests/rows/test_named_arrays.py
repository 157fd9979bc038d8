"""Tables of arrays by any name, with labels, class names and the head: what is written comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from normscale.errors import FileFormatError, InvalidInput, MissingOutput
from normscale.outputs import Head, ModelOutputs, check_name
from normscale.rows import open_table, read_table, write_table
from normscale.rows.arrays import RESERVED

KEEP_ALL = ["npz", "safetensors", "parquet"]
SOME_NAMES = ["layer3", "embedding", "perturbed_logits", "file", "args", "allow_pickle", "Label", "LABELS", "feature_0"]
DTYPES: list[np.dtype[Any]] = [
    np.dtype(np.float16),
    np.dtype(np.float32),
    np.dtype(np.float64),
    np.dtype(">f4"),
    np.dtype(np.int16),
]


def need(kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")


def allowed(name: str) -> bool:
    try:
        check_name(name)
    except InvalidInput:
        return False
    return name not in RESERVED and name != "self"


names = st.one_of(
    st.sampled_from(SOME_NAMES), st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True), st.just("größe")
).filter(allowed)


@st.composite
def outputs(draw: st.DrawFn) -> ModelOutputs:
    n = draw(st.integers(0, 9))
    numbers = {"allow_nan": True, "allow_infinity": True}

    def matrix(width: int) -> Any:
        dtype = draw(st.sampled_from(DTYPES))
        elements = numbers if dtype.kind == "f" else None
        return draw(hnp.arrays(dtype, (n, width), elements=elements))

    n_classes, n_features = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    others = draw(st.lists(names, unique=True, max_size=3))
    arrays = {name: matrix(draw(st.integers(1, 5))) for name in others if name not in ("logits", "features")}
    if draw(st.booleans()):
        arrays["logits"] = matrix(n_classes)
    if draw(st.booleans()) or not arrays:
        arrays["features"] = matrix(n_features)
    head = None
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(DTYPES[:3]))
        finite = {"min_value": -100, "max_value": 100}
        weight = draw(hnp.arrays(dtype, (n_classes, n_features), elements=finite))
        head = Head(weight, draw(hnp.arrays(dtype, n_classes, elements=finite)))
    labels = draw(st.none() | hnp.arrays(np.int64, n, elements=st.integers(-1, n_classes - 1)))
    return ModelOutputs(**arrays, labels=labels, head=head)


def assert_same(read: ModelOutputs, written: ModelOutputs, *, logits_as: Any = None) -> None:
    assert set(read.names) == set(written.names)
    for name in written.names:
        mine, theirs = read.array(name), written.array(name)
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
        expected = logits_as if name == "logits" and theirs.dtype.kind != "f" and logits_as else theirs.dtype
        assert mine.dtype == np.dtype(expected).newbyteorder("=")
        assert mine.flags.writeable
    assert (read.labels is None) == (written.labels is None)
    if read.labels is not None and written.labels is not None:
        np.testing.assert_array_equal(read.labels, written.labels)
    assert (read.head is None) == (written.head is None)
    if read.head is not None and written.head is not None:
        assert read.head.equals(written.head)
        assert read.head.weight.dtype == written.head.weight.dtype


@pytest.mark.parametrize("kind", KEEP_ALL)
@given(written=outputs(), chunk_rows=st.integers(1, 10), with_names=st.booleans())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_everything_comes_back(
    tmp_path: Path, kind: str, written: ModelOutputs, chunk_rows: int, with_names: bool
) -> None:
    need(kind)
    path = tmp_path / f"outputs.{kind}"
    class_names = None
    if with_names and ("logits" in written.names or written.head is not None):
        class_names = tuple(f"class {i}" for i in range(written.n_classes))
    if kind == "parquet" and "logits" in written.names:
        taken = {f"logit_{i}" for i in (class_names or range(written.n_classes))}
        if taken & set(written.names):
            with pytest.raises(InvalidInput, match="rename the array"):
                write_table(path, written, class_names=class_names)
            return
    write_table(path, written, class_names=class_names)
    as_float = np.float64 if kind == "parquet" else None  # columns of whole numbers are read as float64
    assert_same(read_table(path), written, logits_as=as_float)
    table = open_table(path, chunk_rows=chunk_rows)
    assert table.class_names == class_names
    assert table.n_rows == len(written)
    assert table.widths == {name: written.array(name).shape[1] for name in written.names}
    chunks = list(table.chunks())
    assert [len(chunk) for chunk in chunks[:-1]] == [chunk_rows] * (len(chunks) - 1)
    if chunks:
        assert_same(ModelOutputs.concatenate(chunks), written, logits_as=as_float)
        assert chunks[0].head is table.head
    for name in written.names:
        only = read_table(path, names=[name, "something_else"])
        assert only.names == (name,)
        assert (only.labels is None) == (written.labels is None)


@pytest.mark.parametrize("kind", ["csv", "npy"])
@given(written=outputs())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_and_npy_keep_logits_or_say_what_would(tmp_path: Path, kind: str, written: ModelOutputs) -> None:
    path = tmp_path / f"outputs.{kind}"
    fits = written.names == ("logits",) and written.head is None and (kind == "csv" or written.labels is None)
    if fits:
        write_table(path, written)
        np.testing.assert_array_equal(read_table(path).logits, written.logits)
        path.unlink()
        return
    with pytest.raises(
        InvalidInput, match=r"outputs\.(csv|npy): an? .*Write \.parquet, \.npz or \.safetensors instead"
    ):
        write_table(path, written)
    assert not path.exists()


def make(**more: Any) -> ModelOutputs:
    rng = np.random.default_rng(0)
    return ModelOutputs(
        rng.normal(size=(20, 3)),
        rng.normal(size=(20, 4)).astype(np.float32),
        labels=rng.integers(-1, 3, 20),
        head=(rng.normal(size=(3, 4)), rng.normal(size=3)),
        **more,
    )


@pytest.mark.parametrize("kind", KEEP_ALL)
def test_only_what_is_asked_for_is_read(tmp_path: Path, kind: str) -> None:
    need(kind)
    path = tmp_path / f"a.{kind}"
    written = make(layer3=np.ones((20, 7)))
    write_table(path, written)
    table = open_table(path, names=["layer3"], chunk_rows=6)
    assert (table.names, table.n_classes, table.widths.get("features")) == (("layer3",), 3, None)
    assert all(chunk.names == ("layer3",) for chunk in table.chunks())
    assert table.read().head is not None
    with pytest.raises(MissingOutput, match=rf"a\.{kind} has no layer4 and no x; it has logits, features, layer3"):
        open_table(path, names=["layer4", "x"])


@pytest.mark.parametrize("kind", KEEP_ALL)
def test_a_single_array_keeps_its_name(tmp_path: Path, kind: str) -> None:
    need(kind)
    path = tmp_path / f"a.{kind}"
    for name in ("features", "perturbed_logits", "embedding", "logits"):
        write_table(path, {name: np.eye(3)})
        table = open_table(path)
        assert table.names == (name,)
        assert table.n_classes == (3 if name == "logits" else None)
        assert read_table(path).names == (name,)
    with pytest.raises(InvalidInput, match="class_names need logits or a head"):
        write_table(path, {"features": np.eye(3)}, class_names=["a", "b", "c"])


@pytest.mark.parametrize("kind", KEEP_ALL)
def test_names_that_mean_something_else_in_a_file_are_refused(tmp_path: Path, kind: str) -> None:
    for name in RESERVED - {"labels"}:
        with pytest.raises(InvalidInput, match=f"an array cannot be called {name} in a file"):
            write_table(tmp_path / f"a.{kind}", {"logits": np.eye(2), name: np.eye(2)})
    assert not list(tmp_path.iterdir())


def test_labels_are_checked_against_the_head_without_logits(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, features=np.ones((2, 4)), labels=[0, 3], head_weight=np.ones((3, 4)), head_bias=np.ones(3))
    with pytest.raises(InvalidInput, match=r"rows 0 to 1: labels\[1\] is 3"):
        read_table(path)


def test_foreign_arrays_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    foreign: dict[str, Any] = {
        "maps": np.zeros((5, 2, 2)), "ids": np.arange(5), "texts": np.array(list("abcde")), "confusion": np.eye(3),
        "when": np.zeros((5, 1), "M8[s]"), "not-a-word": np.zeros((5, 2)),
    }  # fmt: skip
    np.savez(path, logits=np.zeros((5, 3)), layer3=np.ones((5, 2)), **foreign)
    table = open_table(path)
    assert table.names == ("logits", "layer3")
    with pytest.raises(FileFormatError, match=r"maps must have shape \(n, width\); got \(5, 2, 2\)"):
        open_table(path, names=["maps"])
    with pytest.raises(FileFormatError, match="when must hold real numbers; got records or dates"):
        open_table(path, names=["when"])


def test_parquet_columns_beside_lists(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    columns = {
        "id": ["x", "y"], "time": [1.0, 2.0], "features": [[1.0, 2.0], [3.0, 4.0]], "tags": [["a"], []],
        "history": [[1], [2, 3]], "label": [0, 1],
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)
    table = open_table(path, names=["features"])
    assert (table.names, table.n_classes, table.has_labels) == (("features",), None, True)
    np.testing.assert_array_equal(table.read().features, [[1, 2], [3, 4]])
    assert open_table(path).names == ("features", "history")
    with pytest.raises(InvalidInput, match="history row 1 has 2 numbers; all rows must have 1"):
        read_table(path)
    with pytest.raises(FileFormatError, match="column 'tags' holds lists of string"):
        open_table(path, names=["tags"])


def test_a_large_head_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("normscale.rows.formats.parquet.Parquet.largest_head", 95)
    with pytest.raises(InvalidInput, match=r"96 bytes; at most 95 are kept; write \.npz or \.safetensors"):
        write_table(tmp_path / "a.parquet", make())
    monkeypatch.setattr("normscale.rows.reader.TableReader.largest_head", 50)
    with pytest.raises(InvalidInput, match="the head takes 96 bytes; at most 50 are kept"):
        write_table(tmp_path / "a.npz", make())
    assert not list(tmp_path.iterdir())


def test_a_large_head_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    write_table(tmp_path / "a.parquet", make())
    monkeypatch.setattr("normscale.rows.formats.parquet.Parquet.largest_head", 95)
    with pytest.raises(FileFormatError, match=r"its head takes \d+ bytes; at most 190 are read"):
        open_table(tmp_path / "a.parquet")


def test_arrays_asked_for_by_name_need_no_logits_beside_them(tmp_path: Path) -> None:
    layers: dict[str, Any] = {"layer3": np.ones((4, 3), np.float32), "layer4": np.zeros((4, 2), np.float32)}
    np.savez(tmp_path / "foreign.npz", labels=np.arange(4), **layers)
    found = read_table(tmp_path / "foreign.npz", names=["layer3", "layer4"])
    assert set(found.names) == set(layers)
    np.savez(tmp_path / "one.npz", embedding=layers["layer3"])
    assert read_table(tmp_path / "one.npz", names=["embedding"]).names == ("embedding",)
    assert read_table(tmp_path / "one.npz").names == ("logits",)


def test_class_names_of_somebody_else_are_not_ours_to_read(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"logits": np.eye(3)}, tmp_path / "f.safetensors", metadata={"class_names": "cat,dog,eel"})
    assert read_table(tmp_path / "f.safetensors").n_classes == 3


@pytest.mark.parametrize("suffix", (".npz", ".safetensors", ".parquet", ".csv"))
def test_true_and_false_are_one_and_zero(tmp_path: Path, suffix: str) -> None:
    need(suffix.removeprefix("."))
    write_table(tmp_path / f"b{suffix}", ModelOutputs(np.eye(3) > 0))
    np.testing.assert_array_equal(read_table(tmp_path / f"b{suffix}").logits, np.eye(3))
