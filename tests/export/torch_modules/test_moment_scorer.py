"""Running moments in torch are the numpy detector's: for any split, with scarce digits, compiled, and stored."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from normscale import NormScaling
from normscale.detectors.formula import moment_formula_of
from normscale.export.torch.scorers import MomentScorer
from oracles import streamed

torch.set_num_threads(1)

SCORES = {"msp": "log_odds", "max_logit": "max", "energy": "log_sum_exp"}
PRIORS = (1e-3, 1.0, 37.5, 1e6)


def rows(seed: int, n: int, width: int, offset: float = 0.0, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(offset, scale, (n, width))


def pair(width: int = 5, **parameters: object) -> tuple[NormScaling, MomentScorer]:
    detector = NormScaling(**parameters).fit(rows(0, 40, width))  # type: ignore[arg-type]
    detector._marks_far_rows = False
    return detector, MomentScorer(moment_formula_of(detector))


def same_statistics(scorer: MomentScorer, detector: NormScaling, rtol: float = 1e-12) -> None:
    assert scorer.count.item() == pytest.approx(detector.running_.weight, rel=1e-14)
    np.testing.assert_allclose(scorer.mean.numpy(), detector.running_.mean, rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(scorer.m2.numpy(), detector.running_.m2, rtol=rtol)


@settings(max_examples=60)
@given(
    score=st.sampled_from(sorted(SCORES)),
    prior=st.sampled_from(PRIORS),
    temperature=st.sampled_from((0.3, 1.0, 4.0)),
    width=st.integers(2, 60),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    offset=st.sampled_from((0.0, -50.0, 1e4)),
    seed=st.integers(0, 1000),
)
def test_streams_as_the_detector_does_for_any_split(
    score: str, prior: float, temperature: float, width: int, sizes: list[int], offset: float, seed: int
) -> None:
    detector, scorer = pair(width, score=score, prior_weight=prior, temperature=temperature)
    stream = rows(seed, sum(sizes), width, offset)
    ours = [scorer(torch.from_numpy(part)).numpy() for part in np.split(stream, np.cumsum(sizes)[:-1])]
    np.testing.assert_allclose(np.concatenate(ours), detector.stream(stream), rtol=1e-9, atol=1e-9)
    same_statistics(scorer, detector, rtol=1e-10)


@pytest.mark.parametrize("score", SCORES)
def test_agrees_with_the_textbook_where_digits_are_scarce(score: str) -> None:
    """A stream of large, nearly equal numbers, far from a light prior."""
    detector, scorer = pair(3, score=score, prior_weight=0.01)
    stream = 1e5 + rows(3, 200, 3, scale=1e-2)
    expected, mean, m2 = streamed(stream, 0.01, detector.running_.mean, detector.running_.m2, SCORES[score])
    np.testing.assert_allclose(scorer(torch.from_numpy(stream)).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(scorer.mean.numpy(), mean, rtol=1e-14)
    np.testing.assert_allclose(scorer.m2.numpy(), m2, rtol=1e-9)


def test_long_batches_lose_no_digits() -> None:
    detector, scorer = pair(3)
    stream = rows(5, 40_000, 3)
    np.testing.assert_allclose(scorer(torch.from_numpy(stream)).numpy(), detector.stream(stream), rtol=1e-9)
    same_statistics(scorer, detector)


def test_a_class_that_never_varies_says_nothing() -> None:
    train = rows(0, 30, 3)
    train[:, 1] = 0.1
    detector = NormScaling().fit(train)
    scorer = MomentScorer(moment_formula_of(detector))
    stream = rows(1, 20, 3)
    stream[:10, 1] = 0.1
    np.testing.assert_allclose(scorer(torch.from_numpy(stream)).numpy(), detector.stream(stream), rtol=1e-9)


@pytest.mark.parametrize("bad", (math.nan, math.inf, -math.inf))
@pytest.mark.parametrize("row", (0, 1, 4))
def test_a_bad_row_scores_nan_and_is_not_taken_in(bad: float, row: int) -> None:
    detector, scorer = pair()
    block = torch.from_numpy(rows(1, 5, 5))
    block[row, 2] = bad
    scores = scorer(block).numpy()
    assert np.flatnonzero(np.isnan(scores)).tolist() == [row]
    good = [i for i in range(5) if i != row]
    np.testing.assert_allclose(scores[good], detector.stream(block[good].numpy()), rtol=1e-9)
    same_statistics(scorer, detector)


def test_numbers_too_large_to_be_squared_move_nothing() -> None:
    _, scorer = pair()
    before = copy.deepcopy(scorer.state_dict())
    assert scorer(torch.full((3, 5), 1e200, dtype=torch.float64)).isnan().all()
    assert scorer(torch.zeros(0, 5)).shape == (0,)
    assert all(torch.equal(value, before[name]) for name, value in scorer.state_dict().items())


def test_state_dict_and_changes_of_precision_keep_every_bit(tmp_path: Path) -> None:
    _, scorer = pair()
    scorer(torch.from_numpy(rows(1, 33, 5)))
    save_file(scorer.state_dict(), tmp_path / "scorer.safetensors")
    _, other = pair()
    other.load_state_dict(load_file(tmp_path / "scorer.safetensors"))
    network = torch.nn.Sequential(torch.nn.Linear(4, 5), other).half().to(torch.bfloat16).to("cpu")
    assert network[0].weight.dtype == torch.bfloat16
    for name, value in scorer.state_dict().items():
        assert other.state_dict()[name].dtype == torch.float64
        assert torch.equal(other.state_dict()[name], value)
    block = torch.from_numpy(rows(2, 8, 5)).to(torch.float16)
    assert torch.equal(other(block), scorer(block))


def test_compiles_without_a_break() -> None:
    torch.compiler.reset()
    detector, scorer = pair(4)
    stream = torch.compile(scorer, backend="aot_eager", fullgraph=True)
    for block in rows(1, 36, 4).reshape(3, 12, 4):
        np.testing.assert_allclose(stream(torch.from_numpy(block)).numpy(), detector.stream(block), rtol=1e-9)
    same_statistics(scorer, detector)
