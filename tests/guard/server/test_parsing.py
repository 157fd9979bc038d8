"""Bodies of requests: what is understood gives the numbers that were sent; everything else is a refusal in words."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy_format

from normscale.errors import InvalidInput, MissingExtra
from normscale.guard.server.parsing import ARROW_STREAM, JSON, NPY, BadRequest, read_inputs, read_outputs
from normscale.rows.formats.npy import parse_header

ARROW_FILE = "application/vnd.apache.arrow.file"
WIDTH = 3
ROWS = np.array([[1.5, -2.25, 1e-300], [3.0, 4.0, -5e300], [0.1, 0.2, 0.3]])


def rows_of(
    body: bytes | bytearray, content_type: str | None = JSON, *, width: int = WIDTH, max_rows: int = 100
) -> Any:
    return read_outputs(body, content_type, widths={"logits": width}, max_rows=max_rows).logits


def refused(status: int, match: str, read: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(BadRequest, match=match) as caught:
        read(*args, **kwargs)
    assert caught.value.status == status
    sentence = str(caught.value)
    assert sentence.isascii()
    assert len(sentence) < 400
    return sentence


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    npy_format.write_array(file, np.asanyarray(array), version=version, allow_pickle=True)
    return file.getvalue()


def npy_with(header: str | bytes, data: bytes = b"", version: int = 1) -> bytes:
    """An .npy with any text as its header."""
    text = header.encode() if isinstance(header, str) else header
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def arrow(table: Any, *, file: bool = False, chunk: int | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    make = pa.ipc.new_file if file else pa.ipc.new_stream
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return sink.getvalue()


def columns(rows: np.ndarray[Any, np.dtype[Any]]) -> Any:
    return pa.table({f"class {index}": np.ascontiguousarray(rows[:, index]) for index in range(rows.shape[1])})


def check_good(rows: Any, width: int = WIDTH) -> None:
    """What is promised of everything that is not refused."""
    assert rows.ndim == 2
    assert rows.shape[1] == width
    assert len(rows) >= 1
    assert rows.dtype in (np.float32, np.float64)
    assert rows.flags.c_contiguous
    assert rows.flags.writeable
    assert rows.flags.aligned
    assert np.isfinite(rows).all()


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "content_type",
    [None, "application/json", "application/json; charset=utf-8", "Application/JSON", "application/problem+json"],
)
def test_json_rows(content_type: str | None) -> None:
    rows = rows_of(json.dumps({"logits": ROWS.tolist()}).encode(), content_type)
    check_good(rows)
    assert (rows == ROWS).all()
    rows = rows_of(json.dumps({"logits": ROWS[1].tolist()}).encode(), content_type)
    check_good(rows)
    assert (rows == ROWS[1:2]).all()


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.floats(allow_nan=False, width=64)))
def test_json_numbers_are_those_that_python_reads(array: Any) -> None:
    array = np.nan_to_num(array, posinf=1.0, neginf=-1.0)
    body = json.dumps({"logits": array.tolist()}).encode()
    rows = rows_of(body, JSON, width=array.shape[1], max_rows=len(array))
    assert rows.tolist() == json.loads(body)["logits"]


@given(st.integers(-(10**40), 10**40), st.integers(-30, 30))
def test_json_numbers_are_rounded_to_the_nearest_double(mantissa: int, exponent: int) -> None:
    rows = rows_of(f'{{"logits":[{mantissa}e{exponent},0,0]}}'.encode())
    assert rows[0, 0] == float(Fraction(mantissa) * Fraction(10) ** exponent)


@pytest.mark.parametrize(
    ("body", "status", "match"),
    [
        (b"", 400, "not JSON"),
        (b"\xef\xbb\xbf" + b'{"logits":[1,2,3]}', 400, "not JSON"),
        (b'{"logits":[1,2,3]}x', 400, "trailing"),
        (b'{"logits":[1,2,3]', 400, "not JSON"),
        (b'{"logits":[1,2,NaN]}', 400, "not JSON"),
        (b'{"logits":[1,2,Infinity]}', 400, "not JSON"),
        (b'{"logits":[1,2,-Infinity]}', 400, "not JSON"),
        (b'{"logits":[1,2,1e400]}', 422, "out of range"),
        (b'{"logits":[1,2,' + b"9" * 400 + b"]}", 422, "out of range"),
        (b'{"logits":[1,2,null]}', 422, "got `null`"),
        (b'{"logits":[1,2,"3"]}', 422, "got `str`"),
        (b'{"logits":[1,2,true]}', 422, "got `bool`"),
        (b'{"logits":[1,2,{}]}', 422, "got `object`"),
        (b'{"logits":[1,2,[3]]}', 422, "not a mix"),
        (b'{"logits":[[1,2,3],4]}', 422, "not a mix"),
        (b'{"logits":[[1,2,3],[1,2]]}', 422, "row 1 must hold 3 numbers, one for each class; got 2"),
        (b'{"logits":[[1,2,3],[]]}', 422, "row 1 must hold 3 numbers, one for each class; got 0"),
        (b'{"logits":[1,2]}', 422, "must hold 3 numbers, one for each class; got 2"),
        (b'{"logits":[]}', 422, "no rows"),
        (b'{"logits":[[]]}', 422, "got 0"),
        (b'{"logits":[[[1,2,3]]]}', 422, "Expected `float`, got `array`"),
        (b'{"logits":3}', 422, "Expected `array`, got `int`"),
        (b'{"logits":null}', 422, "got `null`"),
        (b"[[1,2,3]]", 422, "Expected `object`"),
        (b"{}", 422, "missing required field `logits`"),
        (b'{"logits":[1,2,3],"extra":1}', 422, "unknown field `extra`"),
        (b'{"logits":[1,2,3],"logits":[4,5,6]}', 422, "more than once"),
        (b'{"logits":[1,2,3],"log\\u0069ts":[4,5,6]}', 422, "more than once"),
        (b'{"a\xff":1}', 400, "not JSON"),
        (b'{"logits":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422, "Expected"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422, "unknown field"),
        (b"[" * 100_000, 422, "Expected `object`"),
        (b'{"' + b"x" * 100_000 + b'":1}', 422, "unknown field `xxx"),
        (('{"' + "\u2028" * 9999 + '":1}').encode(), 422, "unknown field"),
        ('{"caf\u00e9\u2028":1}'.encode(), 422, r"unknown field `caf\\xe9\\u2028`"),
    ],
)
def test_json_that_is_refused(body: bytes, status: int, match: str) -> None:
    refused(status, match, rows_of, body)


def test_the_bound_on_rows_is_exact_in_every_format() -> None:
    body = json.dumps({"logits": ROWS.tolist()}).encode()
    assert len(rows_of(body, max_rows=3)) == 3
    refused(413, "more than 6 numbers in one request", rows_of, body, max_rows=2)
    refused(413, "3 rows in one request; at most 2", rows_of, npy(ROWS), NPY, max_rows=2)
    refused(413, "more than 2 rows", rows_of, arrow(columns(ROWS)), ARROW_STREAM, max_rows=2)
    refused(413, "more than 2 rows", rows_of, arrow(columns(ROWS), chunk=1), ARROW_STREAM, max_rows=2)


def peak_of(read: Callable[[], Any]) -> int:
    """Bytes allocated at the worst moment."""
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_many_numbers_are_refused_before_they_are_made() -> None:
    body = b'{"logits":[' + b"1," * 1_000_000 + b"1]}"
    assert peak_of(lambda: rows_of(body)) < 100_000
    lists = b'{"logits":[' + b"[]," * 1_000_000 + b"[]]}"
    assert peak_of(lambda: rows_of(lists)) < 100_000


# ---------------------------------------------------------------- .npy


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "i1", "u1", "<i2", ">u4", "<i8", ">i8"])
def test_npy_rows(version: tuple[int, int], order: Any, dtype: str) -> None:
    array = np.asarray((np.arange(12).reshape(4, 3) * 7) % 100, dtype=dtype, order=order)
    for body in (npy(array, version), bytearray(npy(array, version))):
        for content_type in (NPY, "application/octet-stream", "application/x-npy; v=1"):
            rows = rows_of(body, content_type)
            check_good(rows)
            assert rows.dtype == (np.float32 if dtype[1:] in ("f2", "f4") else np.float64)
            assert (rows == array).all()
    one = rows_of(npy(array[2], version), NPY)
    assert one.shape == (1, 3)
    assert (one[0] == array[2]).all()


def test_npy_is_not_copied_when_it_may_be_written_to() -> None:
    body = bytearray(npy(np.eye(3)))
    rows = rows_of(body, NPY)
    rows[0, 0] = 7.0
    assert rows_of(body, NPY)[0, 0] == 7.0
    assert rows.base is not None


def test_npy_at_an_odd_place_is_aligned() -> None:
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), }\n"
    rows = rows_of(bytearray(npy_with(header, ROWS[0].tobytes())), NPY)
    check_good(rows)
    assert (rows == ROWS[:1]).all()


@pytest.mark.parametrize(
    "header",
    [
        '{"shape":(1,3),"fortran_order":False,"descr":"<f8"}',
        "{'fortran_order': False, 'shape': (1, 3,), 'descr': '<f8',}   \n",
        "{ 'descr' : '=f8' ,\n 'fortran_order' : True , 'shape' : ( 1 , 3 ) }",
        "{'descr': 'f8', 'fortran_order': False, 'shape': (3,)}",
    ],
)
def test_npy_headers_that_other_writers_make(header: str) -> None:
    assert (rows_of(npy_with(header, ROWS[0].tobytes()), NPY) == ROWS[:1]).all()


@given(
    hnp.array_shapes(min_dims=0, max_dims=5, min_side=0),
    st.sampled_from(["<f2", ">f4", "<f8", "|i1", "<u8", ">i2"]),
    st.booleans(),
)
def test_the_header_says_what_numpy_says(shape: tuple[int, ...], dtype: str, fortran: bool) -> None:
    body = npy(np.zeros(shape, dtype, order="F" if fortran else "C"))
    file = io.BytesIO(body[8:])
    theirs = npy_format.read_array_header_1_0(file)
    mine = parse_header(body)
    assert (mine.shape, mine.fortran_order, mine.dtype) == theirs
    assert mine.offset == 8 + file.tell()


GOOD = "{'descr': '<f8', 'fortran_order': False, 'shape': (%s), }"


@pytest.mark.parametrize(
    ("body", "status", "match"),
    [
        (b"", 400, "does not begin like one"),
        (b"\x93NUMPY", 400, "does not begin like one"),
        (b"\x93NUMPY\x04\x00" + bytes(200), 400, "version is 4.0"),
        (b"\x93NUMPY\x01\x01" + bytes(200), 400, "version is 1.1"),
        (npy(ROWS)[:-1], 400, "its header says 72 bytes of numbers, and there are 71"),
        (npy(ROWS) + b"\0", 400, "and there are 73"),
        (npy(ROWS)[:100], 400, "ends within its header"),
        (npy_with(GOOD % "1342177280, 3"), 413, "1342177280 rows in one request; at most 100"),
        (npy_with(GOOD % "9999999999999999999, 3"), 413, "rows in one request"),
        (npy_with(GOOD % "99999999999999999999, 3"), 400, "the shape in its header cannot be read"),
        (npy_with(GOOD % "-1, 3"), 400, "the shape in its header cannot be read"),
        (npy_with(GOOD % "10**9, 3"), 400, "the shape in its header cannot be read"),
        (npy_with(GOOD % "True, 3"), 400, "the shape in its header cannot be read"),
        (npy_with(GOOD % "1.0, 3"), 400, "the shape in its header cannot be read"),
        (npy_with(GOOD % "01, 3"), 400, "the shape in its header cannot be read"),
        (npy_with(GOOD % "3", bytes(24)), 400, "a number and no tuple"),
        (npy_with("{'descr': '<f8' 'fortran_order': False, 'shape': (1, 3)}", bytes(24)), 400, "not a dictionary of"),
        (
            npy_with("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3),,}", bytes(24)),
            400,
            "not a dictionary of",
        ),
        (npy_with(GOOD % "1, 3" + "\v", bytes(24)), 400, "not a dictionary of"),
        (npy_with(GOOD % "0, 3"), 422, "holds no rows"),
        (npy_with(GOOD % "1, 4", bytes(32)), 422, "must hold logits of 3 columns; got logits of 4 columns"),
        (npy_with(GOOD % ""), 422, r"got \(\)"),
        (npy_with(GOOD % ("1," * 33)), 400, "33 axes"),
        (npy_with(GOOD % "1, 3, 1", bytes(24)), 422, r"got \(1, 3, 1\)"),
        (npy_with("{'descr': '<f8', 'shape': (1, 3)}"), 400, "not a dictionary of"),
        (npy_with("{'descr': '<f8', 'descr': '<f8', 'shape': (1, 3)}"), 400, "descr twice"),
        (npy_with("['descr': '<f8', 'fortran_order': False, 'shape': (1, 3)]"), 400, "not a dictionary"),
        (npy_with(GOOD % "1, 3" + "; import os"), 400, "not a dictionary"),
        (npy_with("__import__('os').abort()"), 400, "not a dictionary"),
        (npy_with("{'descr': '<f8', 'fortran_order': 0, 'shape': (1, 3)}"), 400, "fortran_order in its header"),
        (npy_with("(" * 4096), 400, "not a dictionary"),
        (npy_with("-" * 4096), 400, "not a dictionary"),
        (npy_with("{" + " " * 4095), 400, "not a dictionary"),
        (npy_with(" " * 5000), 400, "5000 bytes long, and 4096 are allowed"),
        (npy_with(b"\xff" * 100), 400, "not a dictionary"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(64), 400, "4294967295 bytes long"),
        (npy(np.zeros((1, 3), "O")), 422, "Python objects, which are pickles"),
        (npy(np.zeros((1, 3), "c16")), 422, "real numbers; got dtype complex128"),
        (npy(np.zeros((1, 3), "?")), 422, r"it holds \|b1"),
        (npy(np.zeros((1, 3), "<U5")), 422, "real numbers; got dtype <U5"),
        (npy(np.zeros((1, 3), "M8[s]")), 422, "real numbers; got records or dates"),
        (npy(np.zeros(3, [("a", "<f8")])), 422, "real numbers; got records or dates"),
        (npy(np.zeros((1, 3), "g")), 422, "must hold float16 to float64"),
        (npy([[1.0, np.nan, 2.0]]), 422, "row 0 holds NaN in column 1; nothing was taken in"),
        (npy([[1.0, 0.0, 2.0], [1.0, 0.0, -np.inf]]), 422, "row 1 holds infinity in column 2"),
        (npy(np.array([1.0, np.inf, 2.0], "<f2")), 422, "row 0 holds infinity in column 1"),
    ],
)
def test_npy_that_is_refused(body: bytes, status: int, match: str) -> None:
    refused(status, match, rows_of, body, NPY)


def test_a_false_size_allocates_nothing() -> None:
    for shape in ("1342177280, 3", "447392426666, 3", "3,"):
        body = npy_with(GOOD % shape, bytes(16))
        assert peak_of(lambda body=body: rows_of(body, NPY, max_rows=1 << 60)) < 20_000  # type: ignore[misc]


# ---------------------------------------------------------------- Arrow


@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize("chunk", [None, 1, 2])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrow_rows(file: bool, chunk: int | None, dtype: Any) -> None:
    array = np.random.default_rng(0).normal(size=(5, 3)).astype(dtype)
    kind = pa.from_numpy_dtype(dtype)
    flat = pa.array(array.reshape(-1))
    lists = [list(row) for row in array]
    tables = [
        columns(array),
        pa.table({"logits": pa.FixedSizeListArray.from_arrays(flat, 3)}),
        pa.table({"logits": pa.array(lists, pa.list_(kind))}),
        pa.table({"logits": pa.array(lists, pa.large_list(kind))}),
    ]
    for table in tables:
        body = arrow(table, file=file, chunk=chunk)
        rows = rows_of(body, ARROW_FILE if file else ARROW_STREAM)
        check_good(rows)
        assert rows.dtype == (np.float64 if dtype is np.float64 else np.float32)
        assert (rows == array).all()
        sliced = rows_of(arrow(table.slice(1, 3), file=file, chunk=chunk), ARROW_FILE if file else ARROW_STREAM)
        assert (sliced == array[1:4]).all()


def test_arrow_columns_of_two_widths_become_the_wider() -> None:
    table = pa.table({"a": pa.array([0.1], pa.float32()), "b": pa.array([0.1]), "c": pa.array([1.0], pa.float16())})
    rows = rows_of(arrow(table), ARROW_STREAM)
    assert rows.tolist() == [[float(np.float32(0.1)), 0.1, 1.0]]


def big_endian() -> bytes:
    """A stream whose schema says that its numbers are big-endian; pyarrow cannot be asked to write one."""
    table = columns(ROWS).rename_columns(["\1\0\1\0", "b", "c"])
    body = bytearray(arrow(table))
    metadata = memoryview(body)[8:]
    message = struct.unpack_from("<I", metadata, 0)[0]
    vtable = message - struct.unpack_from("<i", metadata, message)[0]
    header = message + struct.unpack_from("<H", metadata, vtable + 8)[0]
    schema = header + struct.unpack_from("<I", metadata, header)[0]
    vtable = schema - struct.unpack_from("<i", metadata, schema)[0]
    one = next(at for at in range(schema + 4, len(metadata), 2) if bytes(metadata[at : at + 2]) == b"\1\0")
    struct.pack_into("<H", metadata, vtable + 4, one - schema)  # the field endianness lies where a 1 stands
    return bytes(body)


def test_arrow_that_is_refused() -> None:
    good = arrow(columns(ROWS))
    flat = pa.array(ROWS.reshape(-1))
    cases: list[tuple[bytes, int, str]] = [
        (b"", 400, "does not begin with a schema"),
        (good[:-20], 400, "not a whole Arrow stream"),
        (good[: len(good) // 2], 400, "not a whole Arrow stream"),
        (good[good.index(b"\xff\xff\xff\xff", 8) :], 400, "does not begin with a schema"),
        (good + b"\0" * 9, 400, "9 bytes follow its end"),
        (b"x" * 100, 400, "not a whole Arrow stream"),
        (arrow(columns(ROWS)[:0]), 422, "no rows"),
        (arrow(columns(ROWS).select([0, 1])), 422, "must hold logits of 3 columns; got logits of 2 columns"),
        (
            arrow(pa.table({"a": [1], "b": [2.0], "c": [3.0]})),
            422,
            "column 'a' holds int64, and logits are",
        ),
        (arrow(pa.table({"a": ["x"], "b": [2.0], "c": [3.0]})), 422, "column 'a' holds string"),
        (arrow(pa.table({"a": [None], "b": [2.0], "c": [3.0]})), 422, "column 'a' holds null"),
        (arrow(pa.table({"a": [1.0, None], "b": [2.0, 1.0], "c": [3.0, 1.0]})), 422, "row 1 holds NaN in column 0"),
        (arrow(pa.table({"a": [1.0], "b": [2.0], "c": [np.nan]})), 422, "row 0 holds NaN in column 2"),
        (
            arrow(pa.table({"logits": [[1.0, 2.0, 3.0], [1.0, 2.0]]})),
            422,
            "logits row 1 has 2 numbers; all rows must have 3",
        ),
        (arrow(pa.table({"logits": [[1.0, 2.0, 3.0], None]})), 422, "row 1 holds NaN in column 0"),
        (arrow(pa.table({"logits": [[1.0, 2.0, None]]})), 422, "row 0 holds NaN in column 2"),
        (arrow(pa.table({"logits": [["a", "b", "c"]]})), 422, "lists of string"),
        (
            arrow(pa.table({"other": [[1.0, 2.0, 3.0]]})),
            422,
            "at least two columns of logits; got 0",
        ),
        (arrow(pa.table({"logits": pa.FixedSizeListArray.from_arrays(flat, 9)})), 422, "got logits of 9 columns"),
        (arrow(pa.table({"logits": pa.array([[[1.0]]])})), 422, "lists of list"),
        (arrow(columns(ROWS), compression="zstd"), 415, "compressed"),
        (arrow(columns(ROWS), compression="lz4"), 415, "compressed"),
        (
            arrow(pa.table({"a": pa.array([1.0]).dictionary_encode(), "b": [2.0], "c": [3.0]})),
            422,
            "column 'a' holds dictionary",
        ),
        (big_endian(), 415, "big-endian"),
        (good[: good.rindex(b"\xff\xff\xff\xff")] + good, 400, "only record batches may follow"),
        (good[:8], 400, "only read 0"),
        (good.replace(b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"), 400, "not a whole Arrow stream"),
        (arrow(pa.table({"logits": pa.array([{"x": 1.0}])})), 422, "at least two columns of logits; got 1"),
        (arrow(pa.table({"logits": [1.0]})), 422, "at least two columns of logits; got 1"),
        (arrow(pa.table({f"c{index}": [1.0] for index in range(5000)})), 413, "metadata of an Arrow message"),
        (arrow(pa.table({f"c{index}": [1.0] for index in range(50)})), 422, "got logits of 50 columns"),
    ]
    for body, status, match in cases:
        refused(status, match, rows_of, body, ARROW_STREAM)
    refused(
        413, "1024 record batches", rows_of, arrow(columns(np.ones((1025, 3))), chunk=1), ARROW_STREAM, max_rows=9999
    )
    file = arrow(columns(ROWS), file=True)
    refused(400, "begins and ends with ARROW1", rows_of, file[:-1], ARROW_FILE)
    refused(400, "begins and ends with ARROW1", rows_of, good, ARROW_FILE)


def test_a_bomb_of_zeros_is_not_inflated() -> None:
    zeros = columns(np.zeros((300_000, 3)))
    body = arrow(zeros, compression="zstd")
    assert len(body) < 20_000
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert peak_of(lambda: rows_of(body, ARROW_STREAM, max_rows=1 << 40)) < 100_000
        assert pool.max_memory() < 100_000
        assert len(pa.ipc.open_stream(body).read_all()) == 300_000  # which pyarrow does inflate
        assert pool.max_memory() > 7_000_000
    finally:
        pa.set_memory_pool(usual)


def test_without_pyarrow_arrow_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    body = arrow(columns(ROWS))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'normscale\[arrow\]', or send JSON"):
        rows_of(body, ARROW_STREAM)


def test_an_arrow_stream_may_end_without_saying_so() -> None:
    body = arrow(columns(ROWS))
    assert body.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    assert (rows_of(body[:-8], ARROW_STREAM) == ROWS).all()


def numbers_at(body: bytes, *values: int) -> int:
    """Where 64-bit numbers stand one after the other."""
    return body.index(struct.pack(f"<{len(values)}q", *values))


def test_arrow_lengths_that_are_not_true() -> None:
    """Three rows of three columns: nodes (3, 0) three times, buffers of 24 bytes at 0, 64 and 128, or packed."""
    good = arrow(columns(ROWS))
    nodes = numbers_at(good, 3, 0, 3, 0, 3, 0)
    length = good.index(struct.pack("<q", 3), good.index(b"\xff\xff\xff\xff", 8))
    buffers = numbers_at(good, 0, 0, 0, 24)
    for place, value, match in [
        (nodes, 4, "did not match record batch length"),
        (nodes + 16, 2, "did not match record batch length"),
        (nodes + 16, -1, "not a whole Arrow stream"),
        (length, 2, "did not match record batch length"),
        (length, -1, "not a whole Arrow stream"),
        (nodes + 8, -1, "too small"),
        (nodes + 8, 1, "too small"),
        (nodes + 40, 3, "too small"),
        (buffers + 16, -8, "not a whole Arrow stream"),
        (buffers + 16, 1 << 40, "not a whole Arrow stream"),
        (buffers + 16, 1 << 62, "not a whole Arrow stream"),
        (buffers + 16, 4, "not a whole Arrow stream"),
        (buffers + 24, -1, "not a whole Arrow stream"),
        (buffers + 24, 23, "not a whole Arrow stream"),
        (buffers + 24, 1 << 62, "not a whole Arrow stream"),
    ]:
        body = bytearray(good)
        struct.pack_into("<q", body, place, value)
        refused(400, match, rows_of, body, ARROW_STREAM)
    for count in (2, 4, 1 << 31):
        body = bytearray(good)
        struct.pack_into("<I", body, nodes - 4, count)  # how many nodes there are
        refused(400, "not a whole Arrow stream", rows_of, body, ARROW_STREAM)
    lists = arrow(pa.table({"logits": ROWS.tolist()}))
    offsets = lists.index(struct.pack("<4i", 0, 3, 6, 9))
    child = numbers_at(lists, 3, 0, 9, 0)
    for place, values, status, match in [
        (offsets, (0, 3, 6, 8), 422, "logits row 2 has 2 numbers; all rows must have 3"),
        (offsets, (0, 6, 3, 9), 400, "non-monotonic offset"),
        (offsets, (0, 4, 6, 9), 422, "logits row 0 has 4 numbers; all rows must have 3"),
        (offsets, (3, 6, 9, 12), 400, "not a whole Arrow stream"),
        (offsets, (-3, 0, 3, 6), 400, "not a whole Arrow stream"),
        (child + 16, (8, 0), 400, "not a whole Arrow stream"),
        (child, (4, 0), 400, "not a whole Arrow stream"),
        (child + 16, (12, 0), 400, "too small"),  # more numbers than its buffer holds
    ]:
        body = bytearray(lists)
        struct.pack_into(f"<{len(values)}i", body, place, *values)
        refused(status, match, rows_of, body, ARROW_STREAM)


def test_a_schema_that_says_it_has_many_columns() -> None:
    good = arrow(columns(ROWS))
    message = struct.unpack_from("<I", good, 8)[0]
    place = good.index(struct.pack("<I", 3), 8 + message)  # the number of columns
    body = bytearray(good)
    struct.pack_into("<I", body, place, 1 << 31)
    refused(400, "Invalid flatbuffers message", rows_of, body, ARROW_STREAM)


def test_versions_of_arrow() -> None:
    older = arrow(columns(ROWS), metadata_version=pa.ipc.MetadataVersion.V4)
    assert (rows_of(older, ARROW_STREAM) == ROWS).all()
    body = bytearray(arrow(columns(ROWS)))
    metadata = memoryview(body)[8:]
    message = struct.unpack_from("<I", metadata, 0)[0]
    vtable = message - struct.unpack_from("<i", metadata, message)[0]
    version = message + struct.unpack_from("<H", metadata, vtable + 4)[0]
    assert struct.unpack_from("<h", metadata, version)[0] == 4
    for other in (0, 2, 5, -1):
        struct.pack_into("<h", metadata, version, other)
        refused(400, "(?i)metadata ?version", rows_of, body, ARROW_STREAM)


def test_arrow_batches_of_another_schema() -> None:
    def parts(rows: np.ndarray[Any, np.dtype[Any]]) -> tuple[bytes, bytes]:
        body = arrow(columns(rows))
        middle = body.index(b"\xff\xff\xff\xff", 8)
        return body[:middle], body[middle:]

    schema = parts(ROWS)[0]
    assert (rows_of(schema + parts(ROWS + 1)[1], ARROW_STREAM) == ROWS + 1).all()
    for other in (np.ones((3, 2)), np.ones((3, 4))):
        refused(400, "not a whole Arrow stream", rows_of, schema + parts(other)[1], ARROW_STREAM)
    lists, fixed = pa.array(ROWS.tolist()), pa.FixedSizeListArray.from_arrays(pa.array(ROWS.reshape(-1)), 3)
    bodies = [arrow(pa.table({"logits": column})) for column in (lists, fixed)]  # as many columns, other buffers
    for body, other_body in (bodies, bodies[::-1]):
        mixed = body[: body.index(b"\xff\xff\xff\xff", 8)] + other_body[other_body.index(b"\xff\xff\xff\xff", 8) :]
        refused(400, "not a whole Arrow stream", rows_of, mixed, ARROW_STREAM)


def test_arrow_lists_that_do_not_begin_at_the_first_number() -> None:
    """Other writers cut a column without moving its offsets."""
    body = bytearray(arrow(pa.table({"logits": [*ROWS.tolist(), *ROWS.tolist()]}).slice(0, 6)))
    place = body.index(struct.pack("<7i", 0, 3, 6, 9, 12, 15, 18))
    struct.pack_into("<4i", body, place, 9, 12, 15, 18)
    length = body.index(struct.pack("<q", 6), body.index(b"\xff\xff\xff\xff", 8))
    for at in (length, numbers_at(bytes(body), 6, 0, 18, 0)):  # of the batch, and of its column
        struct.pack_into("<q", body, at, 3)
    assert (rows_of(body, ARROW_STREAM) == ROWS).all()


# ---------------------------------------------------------------- content types, inputs


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "", ";", "json", "text/x+json", "multipart/form-data"],
)
def test_other_content_types_are_refused(content_type: str) -> None:
    refused(415, "is not known; send application/json", rows_of, b'{"logits":[1,2,3]}', content_type)


def test_octet_stream_must_begin_like_an_npy() -> None:
    refused(415, "application/octet-stream is not known", rows_of, b'{"logits":[1,2,3]}', "application/octet-stream")
    refused(415, "x{50}", rows_of, b"", "x" * 10_000)


def inputs_of(body: bytes, content_type: str | None = JSON, **options: Any) -> Any:
    chosen = {"shape": (None, 2, 2), "dtype": np.float32, "max_elements": 100, **options}
    return read_inputs(body, content_type, **chosen)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8, np.int64])
def test_inputs(dtype: Any) -> None:
    array = np.arange(12).reshape(3, 2, 2).astype(dtype)
    for sent, expected in ((array, array), (array[1], array[1:2])):
        body = json.dumps({"inputs": sent.tolist() if dtype in (np.uint8, np.int64) else sent.astype(float).tolist()})
        spaced = body.replace("[", " [ ").encode()
        for given_, kind in ((body.encode(), JSON), (spaced, None), (npy(sent), NPY), (npy(sent.astype("u1")), NPY)):
            inputs = inputs_of(given_, kind, dtype=dtype)
            assert inputs.dtype == dtype
            assert inputs.flags.c_contiguous
            assert inputs.shape == expected.shape
            assert (inputs == expected).all()


def test_inputs_of_one_axis() -> None:
    assert inputs_of(b'{"inputs":[1,2]}', shape=(None,)).tolist() == [1.0, 2.0]
    assert inputs_of(b'{"inputs":[[1],[2]]}', shape=(None, None)).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("body", "kind", "options", "status", "match"),
    [
        (b'{"inputs":[[[1,2],[3]]]}', JSON, {}, 422, "unequal length"),
        (b'{"inputs":[[[1,2],[3,4],[5,6]]]}', JSON, {}, 422, r"shape \(n, 2, 2\); got \(1, 3, 2\)"),
        (b'{"inputs":[[[[1,2],[3,4]]]]}', JSON, {}, 422, "got `array`"),
        (b'{"inputs":[1,2]}', JSON, {}, 422, "got `int`"),
        (b'{"inputs":[]}', JSON, {}, 422, "shape"),
        (b'{"inputs":[]}', JSON, {"shape": (None,)}, 422, "no inputs"),
        (b'{"logits":[[[1,2],[3,4]]]}', JSON, {}, 422, "unknown field `logits`"),
        (b'{"inputs":[[[1,2],[3,1e39]]]}', JSON, {}, 422, r"hold infinity at \(0, 1, 1\)"),
        (b'{"inputs":[[[1,2],[3,4]]]}', JSON, {"max_elements": 3}, 413, "more than 3 numbers"),
        (b'{"inputs":[[[1,2],[3,256]]]}', JSON, {"dtype": np.uint8}, 422, "outside uint8"),
        (b'{"inputs":[[[1,2],[3,1.5]]]}', JSON, {"dtype": np.uint8}, 422, "Expected `int`, got `float`"),
        (b'{"inputs":' + b"[" * 100_000, JSON, {}, 422, "got `array`"),
        (npy(np.zeros((1, 2, 3))), NPY, {}, 422, r"shape \(n, 2, 2\); got \(1, 2, 3\)"),
        (npy(np.zeros((0, 2, 2))), NPY, {}, 422, "no inputs"),
        (npy(np.full((1, 2, 2), 1e39)), NPY, {}, 422, "hold infinity"),
        (npy(np.full((1, 2, 2), np.nan)), NPY, {}, 422, "hold NaN"),
        (npy(np.full((1, 2, 2), 300)), NPY, {"dtype": np.uint8}, 422, "does not hold every number"),
        (npy(np.full((1, 2, 2), -1)), NPY, {"dtype": np.uint64}, 422, "does not hold every number"),
        (npy(np.full((1, 2, 2), 0.5)), NPY, {"dtype": np.uint8}, 422, "takes uint8; got float64"),
        (
            npy_with("{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 2, 2)}"),
            NPY,
            {},
            413,
            "at most 100",
        ),
        (b"", ARROW_STREAM, {}, 415, "got an Arrow stream"),
    ],
)
def test_inputs_that_are_refused(body: bytes, kind: str, options: dict[str, Any], status: int, match: str) -> None:
    refused(status, match, inputs_of, body, kind, **options)


def test_a_model_that_does_not_take_numbers() -> None:
    with pytest.raises(InvalidInput, match="floats or integers; got <U5"):
        inputs_of(b"", dtype="<U5")


# ---------------------------------------------------------------- anything at all

SEEDS = [
    (JSON, json.dumps({"logits": ROWS.tolist()}).encode()),
    (JSON, b'{"logits": [1.5, -2e3, 4]}'),
    (NPY, npy(ROWS)),
    (NPY, npy(np.asfortranarray(ROWS[2:].astype(">f4")), (2, 0))),
    (ARROW_STREAM, arrow(columns(ROWS), chunk=2)),
    (ARROW_STREAM, arrow(pa.table({"logits": pa.FixedSizeListArray.from_arrays(pa.array(ROWS.reshape(-1)), 3)}))),
    (ARROW_STREAM, arrow(pa.table({"logits": ROWS.tolist()}), compression="lz4")),
    (ARROW_FILE, arrow(columns(ROWS), file=True)),
]
EDITS = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.sampled_from("sicd"), st.binary(min_size=1, max_size=8)), max_size=6
)


def mutated(body: bytes, edits: list[tuple[int, str, bytes]]) -> bytes:
    data = bytearray(body)
    for place, action, piece in edits:
        at = place % (len(data) + 1)
        if action == "s":
            data[at : at + len(piece)] = piece
        elif action == "i":
            data[at:at] = piece
        elif action == "c":
            del data[at:]
        else:
            del data[at : at + len(piece)]
    return bytes(data)


def outcome(read: Callable[[], Any]) -> Any:
    """What was read, or the refusal; any other error goes on."""
    try:
        return read()
    except BadRequest as error:
        return error


def check_refusal(error: BadRequest) -> None:
    assert error.status in (400, 413, 415, 422)
    assert str(error).isascii()
    assert len(str(error)) < 400


def survives(body: bytes, content_type: str) -> None:
    result = outcome(lambda: rows_of(body, content_type))
    if isinstance(result, BadRequest):
        check_refusal(result)
    else:
        check_good(result)


@given(st.sampled_from(SEEDS), EDITS)
def test_damaged_bodies_are_refused_or_read(seed: tuple[str, bytes], edits: list[tuple[int, str, bytes]]) -> None:
    content_type, body = seed
    survives(mutated(body, edits), content_type)


@given(st.sampled_from([JSON, NPY, ARROW_STREAM, ARROW_FILE]), st.binary(max_size=300))
def test_random_bytes_are_refused(content_type: str, body: bytes) -> None:
    survives(body, content_type)
    survives(b"\x93NUMPY\x01\x00" + body, NPY)
    survives(b"\xff\xff\xff\xff" + body, ARROW_STREAM)


@given(st.sampled_from(SEEDS[:4]), EDITS)
def test_damaged_inputs_are_refused_or_read(seed: tuple[str, bytes], edits: list[tuple[int, str, bytes]]) -> None:
    content_type, body = seed
    body = mutated(body.replace(b"logits", b"inputs"), edits)
    result = outcome(lambda: read_inputs(body, content_type, shape=(None, 3), dtype=np.float32, max_elements=50))
    if isinstance(result, BadRequest):
        check_refusal(result)
    else:
        assert result.dtype == np.float32
        assert np.isfinite(result).all()


def test_the_fuzzer_finds_nothing_in_a_few_thousand() -> None:
    """It also reads what is accepted a second time, with json, numpy and pyarrow."""
    tool = Path(__file__).parents[3] / "tools" / "fuzz_parsers.py"
    result = subprocess.run([sys.executable, tool, "3000", "--seed", "7"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3000 inputs" in result.stdout
    for outcome in ("400", "413", "415", "422", "read"):
        assert f" {outcome} " in result.stdout
