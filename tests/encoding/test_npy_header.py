"""Headers of .npy: as numpy writes them, and refused when they are not."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy_format

from normscale.encoding.npy_header import LONGEST_HEADER, MAGIC, take_npy_header

DTYPES = ["<f2", ">f4", "<f8", "|i1", "<u8", ">i2", "|b1", "<U5", "<U1234", "<c16", "|O"]


def header_bytes(descr: str, shape: tuple[int, ...]) -> bytes:
    """A header with any text for the dtype, which numpy would not write."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text


@given(hnp.array_shapes(min_dims=0, max_dims=5, min_side=0), st.sampled_from(DTYPES), st.booleans())
def test_a_header_says_what_numpy_wrote(shape: tuple[int, ...], descr: str, fortran: bool) -> None:
    file = io.BytesIO()
    document = {"shape": shape, "fortran_order": fortran, "descr": descr}
    npy_format.write_array_header_2_0(file, document)
    data = file.getvalue()
    stream = io.BytesIO(data + b"numbers")
    header = take_npy_header(stream)
    assert stream.read() == b"numbers"
    assert header == (np.dtype(descr), fortran, shape, len(data))
    assert header.n_bytes == np.prod(shape, dtype=object) * np.dtype(descr).itemsize


@pytest.mark.parametrize("kind", [[("a", "<f8")], "M8[s]", "m8[D]"])
def test_records_and_dates_are_told_apart(kind: object) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros(3, kind))  # type: ignore[call-overload]
    file.seek(0)
    assert take_npy_header(file).dtype.kind == "V"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        MAGIC + b"\1\0\4",
        MAGIC + b"\1\0\x10\0{}",
        MAGIC + b"\4\0" + bytes(100),
        MAGIC + b"\2\0\xff\xff\xff\xff" + bytes(100),
        header_bytes("'<f3'", (1,)),
        header_bytes("7", (1,)).replace(b"descr", b"deskr"),
        header_bytes("'<f8'", (1,) * 33),
        header_bytes("'<f8'", (1,)).replace(b"(1,)", b"(-1)"),
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^its (version|header|shape)|^it ends within|^it does not begin"):
        take_npy_header(io.BytesIO(data))


def test_the_headers_above_are_refused_for_what_was_changed_in_them() -> None:
    assert take_npy_header(io.BytesIO(header_bytes("'<f8'", (1,)))).shape == (1,)


def test_a_stream_is_not_read_beyond_the_longest_header() -> None:
    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 <= size <= LONGEST_HEADER
            return super().read(size)

    with pytest.raises(ValueError, match=f"{LONGEST_HEADER} are allowed"):
        take_npy_header(Watched(MAGIC + b"\2\0" + (1 << 31).to_bytes(4, "little") + bytes(10_000)))
