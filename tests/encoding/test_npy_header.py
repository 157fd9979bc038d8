"""Headers of .npy: as numpy reads and writes them, from bytes and from streams, and refused when they are not."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy_format

from normscale.encoding.npy_header import (
    LONGEST_HEADER,
    MAGIC,
    NpyHeaderError,
    npy_header_bytes,
    npy_header_of,
    take_npy_header,
)

DTYPES = ["<f2", ">f4", "<f8", "|i1", "<u8", ">i2", "|b1", "<U5", "<U1234", "<c16", "|O"]


@given(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0), st.sampled_from(DTYPES), st.booleans())
def test_both_ways_say_what_numpy_says(shape: tuple[int, ...], descr: str, fortran: bool) -> None:
    file = io.BytesIO()
    document = {"shape": shape, "fortran_order": fortran, "descr": descr}
    npy_format.write_array_header_2_0(file, document)
    data = file.getvalue()
    from_bytes = npy_header_of(data + b"numbers")
    stream = io.BytesIO(data + b"numbers")
    assert take_npy_header(stream) == from_bytes
    assert stream.read() == b"numbers"
    assert from_bytes == (np.dtype(descr), fortran, shape, len(data))
    assert from_bytes.n_bytes == np.prod(shape, dtype=object) * np.dtype(descr).itemsize


@given(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0), st.sampled_from(DTYPES[:7]))
def test_what_is_written_numpy_reads(shape: tuple[int, ...], descr: str) -> None:
    array = np.ones(shape, descr)
    data = npy_header_bytes(repr(descr), shape) + array.tobytes()
    assert npy_header_of(data).offset % 64 == 0
    np.testing.assert_array_equal(np.load(io.BytesIO(data)), array)


@pytest.mark.parametrize("kind", [[("a", "<f8")], "M8[s]", "m8[D]"])
def test_records_and_dates_are_told_apart(kind: object) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros(3, kind))  # type: ignore[call-overload]
    assert npy_header_of(file.getvalue()).dtype.kind == "V"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        MAGIC + b"\1\0\4",
        MAGIC + b"\1\0\x10\0{}",
        MAGIC + b"\4\0" + bytes(100),
        MAGIC + b"\2\0\xff\xff\xff\xff" + bytes(100),
        npy_header_bytes("'<f3'", (1,)),
        npy_header_bytes("7", (1,)).replace(b"descr", b"deskr"),
        npy_header_bytes("'<f8'", (1,) * 33),
        npy_header_bytes("'<f8'", (1,)).replace(b"(1,)", b"(-1)"),
    ],
)
def test_what_is_no_header_is_refused_alike(data: bytes) -> None:
    with pytest.raises(NpyHeaderError) as one:
        npy_header_of(data)
    with pytest.raises(NpyHeaderError) as other:
        take_npy_header(io.BytesIO(data))
    assert type(one.value) is type(other.value)


def test_a_stream_is_not_read_beyond_the_longest_header() -> None:
    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 <= size <= LONGEST_HEADER
            return super().read(size)

    with pytest.raises(NpyHeaderError, match=f"{LONGEST_HEADER} are allowed"):
        take_npy_header(Watched(MAGIC + b"\2\0" + (1 << 31).to_bytes(4, "little") + bytes(10_000)))
