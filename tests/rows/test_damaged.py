"""Files that are missing, cut off, mislabelled or hostile: one error type, the path, and what to do."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy_format

from normscale.errors import FileFormatError, NormscaleError
from normscale.outputs import ModelOutputs
from normscale.rows import open_table, read_table, write_table

BINARY = ["npz", "npy", "safetensors", "parquet"]
FORMATS = [*BINARY, "csv"]
KEEP_ALL = ["npz", "safetensors", "parquet"]


def written(tmp_path: Path, kind: str) -> Path:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"outputs.{kind}"
    rng = np.random.default_rng(0)
    outputs = ModelOutputs(rng.normal(size=(40, 4)))
    if kind != "npy":
        outputs = outputs.replace(labels=rng.integers(0, 4, 40))
    if kind in KEEP_ALL:
        head = (rng.normal(size=(4, 3)), rng.normal(size=4))
        outputs = outputs.replace(features=rng.normal(size=(40, 3)), layer3=rng.normal(size=(40, 2)), head=head)
    write_table(path, outputs)
    return path


def read_in_chunks(path: Path) -> None:
    for _ in open_table(path, chunk_rows=7).chunks():
        pass


@pytest.mark.parametrize("kind", BINARY)
@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.5, 0.75, 0.9, 0.99, 1.0])
def test_truncated(tmp_path: Path, kind: str, share: float) -> None:
    path = written(tmp_path, kind)
    data = path.read_bytes()
    path.write_bytes(data[: min(int(len(data) * share), len(data) - 1)])
    for action in (read_table, read_in_chunks):
        with pytest.raises(FileFormatError, match=rf"outputs\.{kind} is (damaged|empty).*Make it again"):
            action(path)


def test_truncated_csv_names_its_last_line(tmp_path: Path) -> None:
    path = written(tmp_path, "csv")
    path.write_bytes(path.read_bytes()[:-4] + b"\n")
    with pytest.raises(FileFormatError, match=r"outputs\.csv, line 41: expected"):
        read_table(path)


@pytest.mark.parametrize("kind", BINARY)
def test_a_flipped_byte_is_an_error_or_other_numbers_but_nothing_else(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    data = path.read_bytes()
    for offset in {*range(0, len(data), max(1, len(data) // 120)), *range(12)}:
        broken = bytearray(data)
        broken[offset] ^= 0x41
        path.write_bytes(bytes(broken))
        with suppress(NormscaleError):
            read_in_chunks(path)


def test_the_checksum_of_an_npz_is_compared(tmp_path: Path) -> None:
    path = written(tmp_path, "npz")
    data = bytearray(path.read_bytes())
    data[500] ^= 1  # among the logits, which stay numbers
    path.write_bytes(bytes(data))
    with pytest.raises(FileFormatError, match="CRC"):
        read_table(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_the_checksum_is_compared_at_the_end_of_the_rows(tmp_path: Path, compressed: bool) -> None:
    """A checksum that is wrong in the archive's directory, where nothing else gives it away."""
    path = tmp_path / "a.npz"
    (np.savez_compressed if compressed else np.savez)(path, logits=np.arange(4000.0).reshape(-1, 4))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 16] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FileFormatError, match="CRC"):
        read_in_chunks(path)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (99999999, 2)])
def test_an_npz_whose_header_does_not_fit_is_refused_at_once(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = tmp_path / "a.npz"
    header = io.BytesIO()
    npy_format.write_array_header_1_0(header, {"shape": shape, "fortran_order": False, "descr": "<f8"})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logits.npy", header.getvalue() + bytes(2 * 2 * 8))
    with pytest.raises(FileFormatError, match=r"the size of logits\.npy is not what its header says"):
        open_table(path)


@pytest.mark.parametrize("kind", FORMATS)
def test_empty(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match=rf"outputs\.{kind} is empty; expected"):
        open_table(path)


@pytest.mark.parametrize("kind", BINARY)
def test_not_that_at_all(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    path.write_bytes(b"<html>not found</html>" * 20)
    with pytest.raises(FileFormatError, match=rf"outputs\.{kind} is damaged, or is not an? \.{kind} file"):
        open_table(path)


@pytest.mark.parametrize("named", FORMATS)
@pytest.mark.parametrize("is_really", BINARY)
def test_wrong_suffix_says_the_right_one(tmp_path: Path, named: str, is_really: str) -> None:
    path = written(tmp_path, is_really)
    if named == is_really:
        return
    if named == "parquet":
        pytest.importorskip("pyarrow")
    other = path.rename(tmp_path / f"outputs.{named}")
    with pytest.raises(FileFormatError, match=rf"begins like .* rename it to end in \.{is_really}"):
        open_table(other)


def test_missing_files_suggest_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "train.npz").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(FileFormatError, match=r"no such file: .*trian\.npz; did you mean train\.npz\?") as caught:
        open_table(tmp_path / "trian.npz")
    assert isinstance(caught.value, OSError)
    with pytest.raises(FileFormatError, match=r"the tables in that folder are train\.npz"):
        open_table(tmp_path / "zzzzzzzzzz")
    with pytest.raises(FileFormatError, match=r"its folder .* does not exist either"):
        open_table(tmp_path / "nowhere" / "a.npz")
    with pytest.raises(FileFormatError, match=r"is a folder; give one file in it, such as .*train\.npz"):
        open_table(tmp_path)


@pytest.mark.parametrize(("name", "message"), [("a.txt", "'.txt' is not known"), ("a", "no suffix")])
def test_unknown_suffix(tmp_path: Path, name: str, message: str) -> None:
    path = tmp_path / name
    path.write_text("1,2\n")
    with pytest.raises(FileFormatError, match=message + ".*expected one of .npy, .npz"):
        open_table(path)
    with pytest.raises(FileFormatError, match=message):
        write_table(path, np.eye(2))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    path = written(tmp_path, "npy")
    path.chmod(0)
    with pytest.raises(FileFormatError, match=r"cannot read .*Permission denied"):
        open_table(path)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_pickles_are_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "exploded"
    objects = np.empty((2, 2), dtype=object)
    objects[:] = Bomb(trace)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "b.npz", logits=objects, allow_pickle=True)
    np.savez(tmp_path / "c.npz", logits=np.eye(2), labels=objects[0], class_names=objects[0], allow_pickle=True)
    np.savez(tmp_path / "d.npz", logits=np.eye(2), class_names=objects[0], other=objects, allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "e.npz", "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Bomb(trace)))
    (tmp_path / "f.pkl").write_bytes(pickle.dumps(Bomb(trace)))
    (tmp_path / "g.npy").write_bytes(pickle.dumps(Bomb(trace)))
    (tmp_path / "h.npz").write_bytes(pickle.dumps(Bomb(trace)))
    for name, message in [
        ("a.npy", "holds Python objects, which are pickles"),
        ("b.npz", "logits holds Python objects"),
        ("c.npz", "labels holds Python objects"),
        ("e.npz", r"without \.npy members \(it holds data\.pkl\)"),
        ("f.pkl", "files are pickles, which can run code"),
        ("g.npy", "damaged"),
        ("h.npz", "damaged"),
    ]:
        with pytest.raises(FileFormatError, match=message):
            read_table(tmp_path / name)
    assert len(read_table(tmp_path / "d.npz")) == 2  # objects that nobody asked for are left alone
    assert open_table(tmp_path / "d.npz").class_names is None
    assert not trace.exists()


def test_names_and_shapes_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.eye(2), y=np.eye(2))
    with pytest.raises(FileFormatError, match=r"must hold an array 'logits'.*it holds 'x', 'y'"):
        open_table(path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"logits": np.zeros(3)}, r"logits must have shape \(n, n_classes\) with n_classes >= 2; got \(3,\)"),
        ({"logits": np.zeros((3, 1))}, "n_classes >= 2"),
        ({"logits": np.zeros((3, 2, 2))}, r"got \(3, 2, 2\)"),
        ({"logits": np.eye(3), "labels": np.zeros(2, int)}, "labels must have one entry per row of logits"),
        ({"logits": np.eye(3), "labels": np.zeros((3, 1), int)}, r"labels must have shape \(n,\)"),
        ({"logits": np.eye(3), "features": np.zeros((3, 0))}, r"features must have shape \(n, n_features\)"),
        ({"logits": np.eye(3), "features": np.zeros((4, 2))}, r"\(3\); got shape \(4, 2\)"),
        ({"logits": np.array([["a", "b"]])}, "logits must hold real numbers"),
        ({"logits": np.eye(2) * 1j}, "logits must hold real numbers"),
    ]
    for arrays, message in cases:
        np.savez(path, **arrays)
        with pytest.raises(FileFormatError, match=message):
            open_table(path)
    np.save(tmp_path / "a.npy", np.zeros((2, 2)))
    with open(tmp_path / "a.npy", "ab") as file:
        np.save(file, np.ones((2, 2)))  # a second array behind the first would go unseen
    with pytest.raises(FileFormatError, match="32 bytes of numbers, and there are"):
        open_table(tmp_path / "a.npy")


def test_a_false_size_does_not_exhaust_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((2, 2)))
    path.write_bytes(path.read_bytes().replace(b"(2, 2), }      ", b"(2, 10**15), } "[:15]))
    with pytest.raises(FileFormatError):
        open_table(path)
    np.save(path, np.zeros((2, 2)))
    path.write_bytes(path.read_bytes().replace(b"(2, 2), }             ", b"(2, 99999999999999), }"))
    with pytest.raises(FileFormatError, match="its header says"):
        open_table(path)


def test_safetensors_of_another_kind(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file({"layer.weight": np.eye(2), "layer.bias": np.zeros(2)}, path)
    with pytest.raises(FileFormatError, match=r"it holds 'layer\.\w+', 'layer\.\w+'"):
        open_table(path)
    text = b'{"logits":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"1234")
    with pytest.raises(FileFormatError, match="stored as F8_E4M3; expected one of F64, F32"):
        open_table(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"head_weight": np.ones((3, 2))}, "a head needs both head_weight and head_bias"),
        ({"head_bias": np.ones(3)}, "a head needs both head_weight and head_bias"),
        ({"head_weight": np.ones(3), "head_bias": np.ones(3)}, "head weight must have shape"),
        ({"head_weight": np.ones((3, 2)), "head_bias": np.ones(2)}, r"one number for each of 3 classes; got \(2,\)"),
        ({"head_weight": np.ones((4, 2)), "head_bias": np.ones(4)}, r"head_weight must have shape \(3, 2\)"),
        ({"head_weight": np.ones((3, 5)), "head_bias": np.ones(3)}, r"shape \(3, 2\), as logits and features have"),
        ({"head_weight": np.full((3, 2), np.nan), "head_bias": np.ones(3)}, "finite numbers"),
        ({"head_weight": np.ones((3, 2)), "head_bias": np.full(3, np.inf)}, "head bias"),
        ({"head_weight": np.ones((0, 2)), "head_bias": np.ones(0)}, "head weight"),
    ],
)
@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_heads_that_do_not_fit(tmp_path: Path, kind: str, arrays: dict[str, Any], message: str) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / f"a.{kind}"
    everything = {"logits": np.zeros((5, 3)), "features": np.zeros((5, 2)), **arrays}
    if kind == "npz":
        np.savez(path, **everything)
    else:
        save_file(everything, path)
    with pytest.raises(FileFormatError, match=message):
        open_table(path)


def test_a_head_of_objects_is_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "exploded"
    objects = np.empty((2, 2), dtype=object)
    objects[:] = Bomb(trace)
    np.savez(tmp_path / "a.npz", logits=np.eye(2), head_weight=objects, head_bias=np.ones(2), allow_pickle=True)
    np.savez(tmp_path / "b.npz", layer3=np.eye(2), arrays=objects[0], allow_pickle=True)
    with pytest.raises(FileFormatError, match="head_weight holds Python objects"):
        open_table(tmp_path / "a.npz")
    assert open_table(tmp_path / "b.npz").names == ("logits",)  # a single array, and no list of names
    assert not trace.exists()


def test_a_head_too_large_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    """A few kilobytes that claim to be half a gigabyte of zeros: what a zip bomb looks like."""
    path = tmp_path / "a.npz"
    header = io.BytesIO()
    npy_format.write_array_header_1_0(header, {"shape": (70_000, 1_000), "fortran_order": False, "descr": "<f8"})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("head_weight.npy", "w") as member:
            member.write(header.getvalue())
            for _ in range(560):
                member.write(bytes(1_000_000))
        for name, array in (("head_bias", np.zeros(70_000)), ("features", np.ones((2, 1000)))):
            with archive.open(f"{name}.npy", "w") as member:
                npy_format.write_array(member, array)
    assert path.stat().st_size < 2_000_000
    with pytest.raises(FileFormatError, match="head_weight takes 560000000 bytes; at most"):
        open_table(path)


def head_text(weight: tuple[str, list[int]], size: int = 16, bias: tuple[str, list[int]] = ("F16", [2])) -> bytes:
    """What stands in a file's metadata: base64 of a .safetensors file, here with any header."""
    tensors, offset = {}, 0
    for name, (kind, shape), n_bytes in (("weight", weight, size), ("bias", bias, 4)):
        tensors[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + n_bytes]}
        offset += n_bytes
    header = json.dumps(tensors).encode()
    return base64.b64encode(len(header).to_bytes(8, "little") + header + bytes(offset))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "its head is damaged"),
        (b"!!!!", "its head is damaged"),
        (base64.b64encode(b"[]"), "its head is damaged"),
        (base64.b64encode((100_000).to_bytes(8, "little") + b"[" * 100_000), "its head is damaged"),
        (head_text(("F8_E4M3", [2, 2])), "its head is damaged"),
        (head_text(("F64", [2, -2])), "its head is damaged"),
        (head_text(("F64", [2, 99999999])), "its head is damaged"),
        (head_text(("F64", [2])), "head weight must"),
        (head_text(("F16", [2, 4]), bias=("F16", [1, 2])), "head bias must"),
        (head_text(("F64", [2, 1]))[:-8], "its head is damaged"),
    ],
)
def test_parquet_heads_of_strangers(tmp_path: Path, text: bytes, message: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = pa.table({"logit_a": [1.0], "logit_b": [2.0]}).replace_schema_metadata({"normscale.head": text})
    pq.write_table(table, path)
    with pytest.raises(FileFormatError, match=message):
        open_table(path)


LOGITS = b'"logits": {"dtype": "F64", "shape": [2, 2], "data_offsets": [0, 32]}}'


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"logits": 3}',
        LOGITS.replace(b"32", b"40"),
        b"{" + LOGITS.replace(b"32", b"40"),
        b"{" + LOGITS.replace(b"[0,", b"[8,"),
        b"{" + LOGITS.replace(b"32]", b"32, 1]"),
        b"{" + LOGITS.replace(b"[2, 2]", b"[2, true]"),
        b"{" + LOGITS.replace(b"[2, 2]", b"[-2, -2]"),
        b"{" + LOGITS.replace(b"[2, 2]", b"[2, 99999999999999999999]"),
        b"{" + LOGITS.replace(b'"F64"', b"7"),
        b'{"features": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 32]}, ' + LOGITS,  # they overlap
        b'{"__metadata__": [], ' + LOGITS,
        b"[" * 100_000,
    ],
)
def test_safetensors_headers_of_strangers(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(32))
    with pytest.raises(FileFormatError, match=r"is damaged, or is not a \.safetensors file"):
        open_table(path)
    path.write_bytes((1 << 39).to_bytes(8, "little") + header + bytes(32))
    with pytest.raises(FileFormatError, match="cut off or too long"):
        open_table(path)
