"""Both back ends against an oracle that shares nothing with them, and against each other."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import oracles
from needed_extras import compiled_kernels, need
from normscale import _kernels
from normscale._kernels import KINDS, reference

WIDTHS = (2, 3, 4, 5, 10, 17, 100)


def make_rows(n: int, width: int, seed: int = 0, dtype: Any = np.float32) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, width)) * rng.uniform(0.5, 4.0, width) + rng.normal(size=width) * 3).astype(dtype)


def start(width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(99)
    return rng.normal(size=width), rng.uniform(1.0, 9.0, width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_stream_equals_the_oracle(kernels: _kernels.Backend, width: int, kind: str) -> None:
    rows = make_rows(150, width)
    mean, m2 = start(width)
    expected, expected_mean, expected_m2 = oracles.streamed(rows, 1.0, mean, m2, kind, temperature=0.7)
    out = np.empty(len(rows))
    assert kernels.stream_scores(rows, 1.0, mean, m2, KINDS[kind], 1.0 / 0.7, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(m2, expected_m2, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_goes_to_a_new_state_or_is_refused(kernels: _kernels.Backend, kind: str) -> None:
    row, (mean, m2) = make_rows(1, 10, dtype=np.float64), start(10)
    expected = oracles.streamed(row, 1.0, mean, m2, kind, temperature=0.7)
    new_mean, new_m2, score = np.empty(10), np.empty(10), np.empty(1)
    low, high, given = float(row.min()), float(row.max()), start(10)
    for limits, taken in (((low, high), True), ((low + 1e-9, high), False), ((low, high - 1e-9), False)):
        arguments = 1.0, mean, m2, KINDS[kind], 1.0 / 0.7, *limits, new_mean, new_m2, score
        assert kernels.stream_row(row, *arguments) == taken
    for found, wanted in zip((score, new_mean, new_m2), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal((mean, m2), given)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_frozen_equals_the_oracle(kernels: _kernels.Backend, width: int, kind: str) -> None:
    rows = make_rows(131, width)
    shift, factor = start(width)
    out = np.empty(len(rows))
    assert kernels.frozen_scores(rows, shift, factor, KINDS[kind], out)
    z = (rows.astype(np.float64) - shift) * factor
    np.testing.assert_allclose(out, [oracles.row_score(row, kind) for row in z], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("width", (3, 10, 64))
@pytest.mark.parametrize("n", (0, 1, 2, 15, 16, 17, 127, 128, 129, 4001))
def test_compiled_equals_reference(width: int, n: int) -> None:
    rows = make_rows(n, width, seed=n)
    states = []
    for backend in (compiled_kernels(), reference):
        mean, m2 = start(width)
        out = np.empty(n)
        assert backend.stream_scores(rows, 1.0, mean, m2, 0, 1.0, out)
        states.append((out, mean, m2))
    for ours, theirs in zip(*states, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    assert np.array_equal(np.argsort(states[0][0]), np.argsort(states[1][0]))


@pytest.mark.parametrize("shape", ((300_000, 10), (9_000, 100), (2_500, 1000)))
def test_threads_equal_one_thread(kernels: _kernels.Backend, shape: tuple[int, int]) -> None:
    rows = make_rows(*shape)
    mean, m2 = start(shape[1])
    out = {threads: np.empty(shape[0]) for threads in (1, 2, 3)}
    states = {t: _kernels.stream_scores(rows, 1.0, mean, m2, 0, 1.0, out[t], threads=t) for t in out}
    again = np.empty(shape[0])
    _kernels.stream_scores(rows, 1.0, mean, m2, 0, 1.0, again, threads=2)
    assert np.array_equal(again, out[2]), "the same split and thread count must give the same bits"
    one = states[1]
    assert one is not None
    for threads in (2, 3):
        other = states[threads]
        assert other is not None
        assert other.weight == one.weight
        np.testing.assert_allclose(other.mean, one.mean, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(other.m2, one.m2, rtol=1e-12)
        np.testing.assert_allclose(out[threads], out[1], rtol=1e-11, atol=1e-11)
    plain = _kernels.absorb(rows, 1.0, mean, m2, threads=2)
    assert plain is not None
    np.testing.assert_allclose(plain.m2, one.m2, rtol=1e-12)


@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("position", ((0, 0), (70, 1), (149, 9)))
@pytest.mark.parametrize("width", (10, 80))
def test_a_bad_number_is_refused_and_leaves_no_trace(
    kernels: _kernels.Backend, value: float, position: tuple[int, int], width: int
) -> None:
    rows = make_rows(150, width)
    rows[position] = value
    mean, m2 = start(width)
    kept = mean.copy(), m2.copy()
    out = np.empty(150)
    for kind in KINDS.values():
        assert not kernels.stream_scores(rows, 1.0, mean, m2, kind, 1.0, out)
        assert not kernels.frozen_scores(rows, mean, m2, kind, out)
    assert not kernels.absorb(rows, 1.0, mean, m2)
    assert np.array_equal(mean, kept[0])
    assert np.array_equal(m2, kept[1])


@pytest.mark.parametrize("width", (2, 10, 60))
def test_nothing_saturates_however_confident(kernels: _kernels.Backend, width: int) -> None:
    rows = np.zeros((5, width))
    rows[:, 0] = [10.0, 40.0, 800.0, 2000.0, 1e6]
    out = np.empty(5)
    assert kernels.frozen_scores(rows, np.zeros(width), np.ones(width), KINDS["log_odds"], out)
    np.testing.assert_allclose(out, np.log(width - 1) - rows[:, 0], rtol=1e-14)
    assert (np.diff(out) < 0).all()


@pytest.mark.parametrize("width", (3, 60))
def test_ties_for_the_largest_count_as_others(kernels: _kernels.Backend, width: int) -> None:
    rows = np.full((2, width), -50.0)
    rows[0, :2] = 7.0  # two equal winners: odds of one to one, and next to nothing beside
    rows[1] = 7.0
    out = np.empty(2)
    assert kernels.frozen_scores(rows, np.zeros(width), np.ones(width), KINDS["log_odds"], out)
    np.testing.assert_allclose(out, [0.0, np.log(width - 1.0)], atol=1e-14)


@pytest.mark.parametrize("dtype", ("f4", "f8", "f2", ">f8", "i4"))
@pytest.mark.parametrize("shape", ((0, 3), (1, 2), (500, 10), (40, 300)))
def test_predicted_is_the_first_of_the_largest(shape: tuple[int, int], dtype: str) -> None:
    rows = np.random.default_rng(3).integers(-3, 4, shape).astype(dtype)  # few values: many ties
    expected = [max(range(shape[1]), key=lambda j, row=row: (row[j], -j)) for row in rows.tolist()]  # type: ignore[misc]
    assert _kernels.predicted(rows).tolist() == expected
    out = np.empty(shape[0], np.int64)
    reference.predicted(rows, out)
    assert out.tolist() == expected


@pytest.mark.parametrize("width", (4, 60))
def test_a_class_that_never_varied_scales_to_zero(kernels: _kernels.Backend, width: int) -> None:
    rows = make_rows(40, width, dtype=np.float64)
    rows[:, 1] = 0.1  # not a binary fraction: a sloppy mean would leave rounding noise as "variance"
    mean, m2 = np.zeros(width), np.ones(width)
    mean[1], m2[1] = 0.1, 0.0
    expected, *_ = oracles.streamed(rows, 1.0, mean, m2, "log_odds")
    out = np.empty(40)
    assert kernels.stream_scores(rows, 1.0, mean, m2, 0, 1.0, out)
    assert m2[1] == 0.0
    assert mean[1] == 0.1
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", (10, 64))
@pytest.mark.parametrize("kind", KINDS)
def test_a_heavy_prior_hardly_moves(kernels: _kernels.Backend, width: int, kind: str) -> None:
    rows = make_rows(100, width)
    mean, m2 = start(width)
    m2 *= 20_000.0
    expected, _, expected_m2 = oracles.streamed(rows, 20_000.0, mean, m2, kind, temperature=0.7)
    out = np.empty(len(rows))
    assert kernels.stream_scores(rows, 20_000.0, mean, m2, KINDS[kind], 1.0 / 0.7, out)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(m2, expected_m2, rtol=1e-12)


def test_a_sudden_jump_is_scaled_exactly(kernels: _kernels.Backend) -> None:
    rows = make_rows(300, 64)
    rows[150:] *= 1e4
    rows[200] = 1e-3
    mean, m2 = start(64)
    expected, *_ = oracles.streamed(rows, 1.0, mean, m2, "log_odds")
    out = np.empty(300)
    assert kernels.stream_scores(rows, 1.0, mean, m2, 0, 1.0, out)
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-11)


def test_large_offsets_keep_their_digits(kernels: _kernels.Backend) -> None:
    """The textbook formula (mean of squares less square of mean) has no correct digit here."""
    rows = 1e8 + make_rows(2000, 4, dtype=np.float64)
    mean, m2 = np.zeros(4), np.zeros(4)
    assert kernels.absorb(rows, 0.0, mean, m2)
    means, squares = oracles.exact_moments(rows)
    np.testing.assert_allclose(mean, [float(m) for m in means], rtol=1e-14)
    np.testing.assert_allclose(m2, [float(s) for s in squares], rtol=1e-8)


@given(
    st.integers(1, 40), st.integers(2, 6), st.floats(1e-2, 1e6), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e4])
)
def test_moments_equal_rational_arithmetic(
    kernels: _kernels.Backend, n: int, width: int, scale: float, seed: int, offset: float
) -> None:
    rows = np.random.default_rng(seed).normal(offset, 1.0, (n, width)) * scale
    means, squares = oracles.exact_moments(rows)
    mean, m2 = np.zeros(width), np.zeros(width)
    assert kernels.absorb(rows, 0.0, mean, m2)
    np.testing.assert_allclose(mean, [float(m) for m in means], rtol=1e-14, atol=1e-14 * scale)
    np.testing.assert_allclose(m2, [float(s) for s in squares], rtol=1e-10 * offset, atol=1e-300)


def test_exp_is_accurate_to_two_ulp() -> None:
    need("numba")
    from normscale._kernels.vector_math import exp_nonpositive

    x = np.concatenate([-np.geomspace(1e-300, 708.0, 20_000), [0.0, -0.0, -5e-324]])
    got = np.array([exp_nonpositive(v) for v in x])
    want = np.exp(x)
    assert np.max(np.abs(got - want) / np.spacing(want)) <= 2.0
    assert exp_nonpositive(0.0) == 1.0
    assert 0.0 < exp_nonpositive(-1e9) < 1e-300


def test_large_blocks_of_other_dtypes_are_converted_piece_by_piece(kernels: _kernels.Backend) -> None:
    rows = make_rows(60_000, 12, dtype=np.float16)
    mean, m2 = start(12)
    out, expected = np.empty(60_000), np.empty(60_000)
    a = _kernels.stream_scores(rows, 1.0, mean, m2, 0, 1.0, out)
    b = _kernels.stream_scores(rows.astype(np.float32), 1.0, mean, m2, 0, 1.0, expected)
    assert a is not None
    assert b is not None
    np.testing.assert_allclose(out, expected, rtol=1e-11, atol=1e-11)
    strided = np.zeros((60_000, 24), np.float32)[:, ::2]
    strided[:] = rows
    c = _kernels.stream_scores(strided, 1.0, mean, m2, 0, 1.0, out)
    assert c is not None
    np.testing.assert_allclose(out, expected, rtol=1e-11, atol=1e-11)


def test_kernels_can_be_loaded_while_the_work_goes_on() -> None:
    need("numba")
    code = """
import numpy as np
from normscale import _kernels
rows = np.random.default_rng(0).normal(size=(50, 4))
thread = _kernels.load_in_background()
first = _kernels.backend(), _kernels.absorb(rows, 0.0, np.zeros(4), np.zeros(4))
thread.join()
then = _kernels.backend(), _kernels.absorb(rows, 0.0, np.zeros(4), np.zeros(4))
assert (first[0], then[0]) == ("numpy", "numba"), (first, then)
np.testing.assert_allclose(first[1].m2, then[1].m2, rtol=1e-12)
assert _kernels.load_in_background() is None
"""
    environment = {key: value for key, value in os.environ.items() if key != "NORMSCALE_KERNELS"}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=environment, timeout=600)
