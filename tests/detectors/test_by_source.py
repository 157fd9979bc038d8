"""A stream for every source: the same as each source alone, in memory and from disk, saved and resumed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normscale as ns
from normscale.detectors.by_source import SourceStates
from normscale.state import same_records
from running_norm import RunningNorm, Shifted

SAMPLE = ns.load_sample()
FITTED = {
    "norm_scaling": ns.NormScaling().fit(SAMPLE.train),
    "stream_aware": ns.make_detector("stream_aware+energy").fit(SAMPLE.train),
    "step": ns.make_detector("react+stream_aware+energy").fit(SAMPLE.train),
    "foreign": RunningNorm().fit(SAMPLE.train),
    "foreign subclass": Shifted().fit(SAMPLE.train),
}
ROWS = ns.ModelOutputs.concatenate([SAMPLE.test[:150], SAMPLE.ood["unseen_digits"][:50]])


def alone(detector: Any, rows: ns.ModelOutputs, ids: Any) -> Any:
    """Every source streamed by a copy of its own."""
    wanted = np.empty(len(rows))
    for one in np.unique(ids):
        mine = np.flatnonzero(ids == one)
        wanted[mine] = copy.copy(detector).reset().stream(rows[mine])
    return wanted


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(FITTED)),
    n_sources=st.integers(1, 30),
    seed=st.integers(0, 1000),
    cut=st.integers(0, 200),
    in_memory=st.sampled_from([1, 3, 100]),
)
def test_it_is_the_stream_of_each_source_alone(name: str, n_sources: int, seed: int, cut: int, in_memory: int) -> None:
    detector, rng = FITTED[name], np.random.default_rng(seed)
    ids = rng.integers(0, n_sources, len(ROWS))
    states = SourceStates(detector, in_memory)
    found = [states.stream(ROWS[part], ids[part]) for part in (slice(0, cut), slice(cut, None)) if len(ids[part])]
    np.testing.assert_allclose(np.concatenate(found), alone(detector, ROWS, ids), rtol=1e-12, atol=1e-12)
    assert sorted(states) == sorted(map(str, np.unique(ids)))


@pytest.mark.parametrize("name", sorted(FITTED))
def test_one_row_at_a_time_saved_and_resumed(tmp_path: Path, name: str) -> None:
    ids = [f"camera {number % 7}" for number in range(len(ROWS))]
    wanted = alone(FITTED[name], ROWS, np.array(ids))
    detector = copy.copy(FITTED[name])
    first = [float(detector.stream(ROWS[row : row + 1], by=ids[row : row + 1])[0]) for row in range(60)]
    np.testing.assert_allclose(first, wanted[:60], rtol=1e-12, atol=1e-12)
    twins: list[Any] = [copy.copy(detector)]
    if not name.startswith("foreign"):
        detector.save(tmp_path / "a.safetensors")
        twins += [ns.load_detector(tmp_path / "a.safetensors"), copy.deepcopy(detector)]
    for twin in twins:
        np.testing.assert_allclose(twin.stream(ROWS[60:], by=ids[60:]), wanted[60:], rtol=1e-12, atol=1e-12)
    assert len(detector._sources or ()) == 7
    assert detector.reset()._sources is None


def test_a_bad_row_changes_no_state() -> None:
    detector = FITTED["norm_scaling"]
    states = SourceStates(detector)
    states.stream(ROWS[:20], [1, 2] * 10)
    before = {name: copy.deepcopy(state) for name, state in states.items()}
    logits = ROWS.logits[:10].copy()
    logits[7, 3] = np.nan
    with pytest.raises(ns.InvalidInput, match=r"logits row 7 holds NaN in column 3"):
        states.stream(logits, [1, 2] * 5)
    assert all(same_records(states[name], before[name]) for name in before)
    scores = states.stream(logits, [1, 2] * 5, on_invalid="skip")
    assert np.flatnonzero(np.isnan(scores)).tolist() == [7]


@pytest.mark.parametrize("in_memory", [2, 100])
def test_a_row_that_is_too_large_changes_no_state(in_memory: int) -> None:
    detector = copy.copy(FITTED["norm_scaling"])
    detector._marks_far_rows = False
    states, ids = SourceStates(detector, in_memory), np.arange(20) % 5
    states.stream(ROWS[:20], ids)
    before = {name: copy.deepcopy(state) for name, state in states.items()}
    logits = ROWS.logits[:20].astype(np.float64)
    logits[19, 3] = 1e200
    with pytest.raises(ns.InvalidInput, match="logits"):
        states.stream(logits, ids)
    assert all(same_records(states[name], before[name]) for name in before)


@pytest.mark.parametrize("name", sorted(FITTED))
def test_a_table_that_becomes_a_file_has_the_same_states(name: str) -> None:
    detector = FITTED[name]
    states, kept = SourceStates(detector, 40), SourceStates(detector)
    for ids in (np.arange(40), np.r_[2:40, 77], np.arange(120) % 60):
        found, wanted = (one.stream(ROWS[: len(ids)], ids) for one in (states, kept))
        np.testing.assert_array_equal(found, wanted)
    assert list(states) == list(kept)


def test_a_state_can_be_taken_out_and_put_back() -> None:
    detector = FITTED["stream_aware"]
    states, other = SourceStates(detector, 2), SourceStates(detector, 1)
    states.stream(ROWS[:90], np.arange(90) % 3)
    for name in states:
        other[name] = states[name]
    assert list(other) == ["0", "1", "2"]
    assert all(same_records(states[name], other[name]) for name in states)
    kept = states["1"]
    del states["1"]
    assert "1" not in states
    assert len(states) == 2
    states["1"] = kept
    np.testing.assert_array_equal(states.stream(ROWS[:9], [1] * 9), other.stream(ROWS[:9], ["1"] * 9))
    with pytest.raises(ns.InvalidInput, match=r"state\.totals must have the shape \(9,\)"):
        states["1"] = kept._replace(totals=np.zeros(3))


@pytest.mark.parametrize(
    "by",
    [
        np.array([7, -3, 7], np.int8),
        np.array([7, 2**63 + 5, 7], np.uint64),
        np.array(["b", "a", "b"]),
        ["7", 3, 7],
        [True, False, True],
    ],
)
def test_names_of_sources(by: Any) -> None:
    states = SourceStates(FITTED["norm_scaling"])
    states.stream(ROWS[:3], by)
    assert list(states) == sorted({str(one) for one in np.asarray(by, object).tolist()})


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        ([1, 2], "the source of each of the 3 rows"),
        ([0.5, 1.0, 2.0], "texts or whole numbers"),
        (["a", None, "b"], "no source for row 1"),
    ],
)
def test_wrong_sources_are_refused(by: Any, sentence: str) -> None:
    with pytest.raises(ns.InvalidInput, match=sentence):
        copy.copy(FITTED["norm_scaling"]).stream(ROWS[:3], by=by)
