"""Headers of .safetensors: as the library writes and reads them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from normscale.encoding.safetensors_header import DTYPES, read_safetensors_header

shapes = st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple)
kinds = st.sampled_from([dtype for name, dtype in DTYPES.items() if name != "BF16"])
tensors = st.dictionaries(st.text(min_size=1, max_size=5), st.tuples(kinds, shapes), min_size=1, max_size=4)
metadata = st.dictionaries(st.text(max_size=5), st.sampled_from(["", "NaN", "\\NaN", "Infinity", '"é']), max_size=3)


@given(tensors, metadata)
def test_what_the_library_writes_is_found(
    described: dict[str, tuple[np.dtype[Any], tuple[int, ...]]], texts: dict[str, str]
) -> None:
    described.pop("__metadata__", None)
    arrays = {name: np.ones(shape, dtype) for name, (dtype, shape) in described.items()}
    data = save(arrays, metadata=texts or None)
    found, metadata = read_safetensors_header(io.BytesIO(data))
    assert metadata == texts
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        place = found[name]
        assert (place.dtype, place.shape) == (array.dtype, array.shape)
        assert data[place.offset : place.end] == array.tobytes()


@pytest.mark.parametrize("cut", [0, 5, 8, 30, -1])
def test_cut_off(cut: int) -> None:
    data = save({"x": np.zeros((2, 3))})[:cut]
    with pytest.raises(ValueError, match="header"):
        read_safetensors_header(io.BytesIO(data))
