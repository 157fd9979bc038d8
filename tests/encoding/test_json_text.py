"""One spelling of infinity, read back as it was, and JSON to every strict parser."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscale.encoding.json_text import number_for_json, read_json, write_json

WORDS = ["Infinity", "-Infinity", "NaN"]
leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([*WORDS, *("\\" + word for word in WORDS), *("\\\\" + word for word in WORDS), "\\", "inf"]),
)
document = st.recursive(
    leaf, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4))
)


def refuse(word: str) -> Any:
    raise AssertionError(f"{word} is not JSON")


@given(document)
def test_what_is_written_is_strict_and_comes_back(value: Any) -> None:
    text = write_json(value)
    json.loads(text, parse_constant=refuse)
    text.encode("ascii")
    # NaN differs from itself, so its text is compared
    assert repr(read_json(text)) == repr(value)
    assert "\n" not in text
    assert repr(read_json(write_json(value, indent=1))) == repr(value)


class Colour(StrEnum):
    RED = "red"


class Pair(NamedTuple):
    a: float
    b: Any


def test_everything_that_comes_up_in_results_can_be_written() -> None:
    value = {"n": np.int64(3), "x": np.float32(0.5), "y": np.float64(-np.inf), "ok": np.bool_(True), 7: Colour.RED}
    assert read_json(write_json({**value, "pair": Pair(math.inf, (1, 2))})) == {
        "n": 3, "x": 0.5, "y": -math.inf, "ok": True, "7": "red", "pair": [math.inf, [1, 2]],
    }  # fmt: skip


def test_the_words_are_those_of_the_api() -> None:
    assert [number_for_json(x) for x in (math.inf, -math.inf, math.nan)] == WORDS
    assert [float(word) for word in WORDS[:2]] == [math.inf, -math.inf]


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "", "{", "[" * 100_000, b"\xff", "[1,]"])
def test_what_is_not_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        read_json(text)
