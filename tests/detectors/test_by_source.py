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
from normscale.detectors.by_source import SourceStates, stream_by_source
from normscale.state import same_records
from running_norm import RunningNorm

SAMPLE = ns.load_sample()
FITTED = {
    "norm_scaling": ns.NormScaling().fit(SAMPLE.train),
    "stream_aware": ns.make_detector("stream_aware+energy").fit(SAMPLE.train),
    "foreign": RunningNorm().fit(SAMPLE.train),
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
    found = [
        stream_by_source(detector, states, ROWS[part], ids[part])
        for part in (slice(0, cut), slice(cut, None))
        if len(ids[part])
    ]
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
    if name != "foreign":
        detector.save(tmp_path / "a.safetensors")
        twins += [ns.load_detector(tmp_path / "a.safetensors"), copy.deepcopy(detector)]
    for twin in twins:
        np.testing.assert_allclose(twin.stream(ROWS[60:], by=ids[60:]), wanted[60:], rtol=1e-12, atol=1e-12)
    assert len(detector.sources_ or ()) == 7
    assert detector.reset().sources_ is None


def test_a_bad_row_changes_no_state() -> None:
    detector = FITTED["norm_scaling"]
    states: dict[str, Any] = {}
    stream_by_source(detector, states, ROWS[:20], [1, 2] * 10)
    before = {name: copy.deepcopy(state) for name, state in states.items()}
    logits = ROWS.logits[:10].copy()
    logits[7, 3] = np.nan
    with pytest.raises(ns.InvalidInput, match=r"logits row 7 holds NaN in column 3"):
        stream_by_source(detector, states, logits, [1, 2] * 5)
    assert all(same_records(states[name], before[name]) for name in before)
    scores = stream_by_source(detector, states, logits, [1, 2] * 5, on_invalid="skip")
    assert np.flatnonzero(np.isnan(scores)).tolist() == [7]


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
