"""The head gives the numpy detector's numbers: frozen, streamed, compiled, stored, and over two ranks."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from normscale import InvalidInput, NormScaling, NotFitted
from normscale.detectors.formula import moment_formula_of
from normscale.export.torch.moment_scorer import MomentScorer
from oracles import streamed

torch.set_num_threads(1)

SCORES = {"msp": "log_odds", "max_logit": "max", "energy": "log_sum_exp"}
PRIORS = (1e-3, 1.0, 37.5, 1e6)


def rows(seed: int, n: int, width: int, offset: float = 0.0, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(offset, scale, (n, width))


def pair(width: int = 5, **parameters: object) -> tuple[NormScaling, MomentScorer]:
    detector = NormScaling(**parameters).fit(rows(0, 40, width))  # type: ignore[arg-type]
    return detector, MomentScorer.from_formula(moment_formula_of(detector))


def same_statistics(head: MomentScorer, detector: NormScaling, rtol: float = 1e-12) -> None:
    assert head.count.item() == pytest.approx(detector.running_.weight, rel=1e-14)
    np.testing.assert_allclose(head.mean.numpy(), detector.running_.mean, rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(head.m2.numpy(), detector.running_.m2, rtol=rtol)


@pytest.mark.filterwarnings("ignore:.*far outside:normscale.NumericalWarning")
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
    detector, head = pair(width, score=score, prior_weight=prior, temperature=temperature)
    stream = rows(seed, sum(sizes), width, offset)
    ours = [head.stream(torch.from_numpy(part)).numpy() for part in np.split(stream, np.cumsum(sizes)[:-1])]
    np.testing.assert_allclose(np.concatenate(ours), detector.stream(stream), rtol=1e-9, atol=1e-9)
    same_statistics(head, detector, rtol=1e-10)
    later = rows(seed + 1, 7, width)
    np.testing.assert_allclose(head(torch.from_numpy(later)).numpy(), detector.score(later), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", SCORES)
def test_agrees_with_the_textbook_where_digits_are_scarce(score: str) -> None:
    """A stream of large, nearly equal numbers, far from where a light prior stands."""
    detector, head = pair(3, score=score, prior_weight=0.01)
    stream = 1e5 + rows(3, 200, 3, scale=1e-2)
    expected, mean, m2 = streamed(stream, 0.01, detector.running_.mean, detector.running_.m2, SCORES[score])
    np.testing.assert_allclose(head.stream(torch.from_numpy(stream)).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(head.mean.numpy(), mean, rtol=1e-14)
    np.testing.assert_allclose(head.m2.numpy(), m2, rtol=1e-9)


def test_long_blocks_are_cut_without_a_trace() -> None:
    detector, head = pair(3)
    stream = rows(5, 40_000, 3)
    np.testing.assert_allclose(head.stream(torch.from_numpy(stream)).numpy(), detector.stream(stream), rtol=1e-9)
    same_statistics(head, detector)


def test_scoring_is_pure_whatever_the_mode() -> None:
    detector, head = pair()
    queries = torch.from_numpy(rows(1, 6, 5)).float()
    before = copy.deepcopy(head.state_dict())
    for mode in (True, False):
        scores = head.train(mode)(queries)
        np.testing.assert_allclose(scores.numpy(), detector.score(queries.numpy()), rtol=1e-12)
        assert scores.dtype == torch.float64
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    queries.requires_grad_(True)
    head(queries).sum().backward()
    assert queries.grad is not None
    assert queries.grad.abs().sum() > 0


def test_a_class_that_never_varies_says_nothing() -> None:
    train = rows(0, 30, 3)
    train[:, 1] = 0.1
    detector = NormScaling().fit(train)
    head = MomentScorer.from_formula(moment_formula_of(detector))
    stream = rows(1, 20, 3)
    stream[:10, 1] = 0.1
    np.testing.assert_allclose(head(torch.from_numpy(stream)).numpy(), detector.score(stream), rtol=1e-12)
    np.testing.assert_allclose(head.stream(torch.from_numpy(stream)).numpy(), detector.stream(stream), rtol=1e-9)


def test_confident_rows_do_not_saturate() -> None:
    _, head = pair(3, temperature=1e-3)
    scores = head(torch.tensor([[3000.0, 0.0, 0.0], [6000.0, 0.0, 0.0]]))
    assert torch.isfinite(scores).all()
    assert scores[1] < scores[0] < -1e5


@pytest.mark.parametrize("bad", (math.nan, math.inf, -math.inf))
@pytest.mark.parametrize("row", (0, 1, 4))
def test_a_bad_row_is_named_and_nothing_is_taken_in(bad: float, row: int) -> None:
    detector, head = pair()
    block = torch.from_numpy(rows(1, 5, 5))
    block[row, 2] = bad
    before = copy.deepcopy(head.state_dict())
    for score in (head, head.stream):
        with pytest.raises(InvalidInput, match=f"logits row {row} holds (NaN|infinity) in column 2"):
            score(block)
    unchecked = MomentScorer.from_formula(moment_formula_of(detector), check=False)
    assert unchecked.stream(block).isnan().all()
    assert unchecked(block).isnan().tolist() == [i == row for i in range(5)]
    for one in (head, unchecked):
        assert all(torch.equal(value, before[name]) for name, value in one.state_dict().items())


def test_shapes_and_order_of_calls_are_explained() -> None:
    _, head = pair()
    with pytest.raises(InvalidInput, match=r"logits must have shape \(n, 5\); got \(5,\)"):
        head(torch.zeros(5))
    with pytest.raises(NotFitted, match="no statistics are there yet"):
        MomentScorer(5, "max")(torch.zeros(1, 5))
    with pytest.raises(NotFitted, match="no statistics are there yet"):
        _ = MomentScorer(5, "max").moments
    assert head.stream(torch.zeros(0, 5)).shape == (0,)


def test_state_dict_and_changes_of_precision_keep_every_bit(tmp_path: Path) -> None:
    _, head = pair()
    head.stream(torch.from_numpy(rows(1, 33, 5)))
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    other = MomentScorer(5, "log_odds")
    other.load_state_dict(load_file(tmp_path / "head.safetensors"))
    network = torch.nn.Sequential(torch.nn.Linear(4, 5), other).half().to(torch.bfloat16).to("cpu")
    assert network[0].weight.dtype == torch.bfloat16
    for name, value in head.state_dict().items():
        assert other.state_dict()[name].dtype == torch.float64
        assert torch.equal(other.state_dict()[name], value)
    block = torch.from_numpy(rows(2, 8, 5)).to(torch.float16)
    assert torch.equal(other.stream(block), head.stream(block))


@pytest.mark.parametrize("score", SCORES)
def test_compiles_without_a_break(score: str) -> None:
    torch.compiler.reset()
    detector, head = pair(4, score=score)
    frozen = torch.compile(head, backend="aot_eager", fullgraph=True)
    stream = torch.compile(head.stream, backend="aot_eager", fullgraph=True)
    blocks = rows(1, 36, 4).reshape(3, 12, 4)
    for block in blocks:
        np.testing.assert_allclose(frozen(torch.from_numpy(block)).numpy(), detector.score(block), rtol=1e-9)
        np.testing.assert_allclose(stream(torch.from_numpy(block)).numpy(), detector.stream(block), rtol=1e-9)
    same_statistics(head, detector)
    bad = torch.from_numpy(blocks[0].copy())
    bad[3, 1] = math.nan
    assert stream(bad).isnan().all()  # compiled code cannot raise; the block is not taken in
    same_statistics(head, detector)


RANK = """
import sys
import numpy as np, torch, torch.distributed as dist
from safetensors.torch import save_file
from normscale.detectors.formula import moment_formula_of
from normscale.export.torch.moment_scorer import MomentScorer
from normscale import InvalidInput, load_detector
torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
head = MomentScorer.from_formula(moment_formula_of(load_detector(f"{folder}/start.safetensors")))
stream = np.load(f"{folder}/stream.npy")
own = torch.from_numpy(stream[rank::2])
head.stream(own[:11])
head.synchronise()
head.synchronise()  # nothing new: nothing changes
if rank == 1:
    head.stream(own[11:])  # rank 0 has no rows this time
head.synchronise()
save_file(head.state_dict(), f"{folder}/rank{rank}.safetensors")
if rank == 1:
    head.shared_mean += 1.0
try:
    head.synchronise()
except InvalidInput as error:
    print(error)
dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_end_with_the_statistics_of_all_rows(tmp_path: Path) -> None:
    detector, head = pair(4)
    detector.stream(rows(8, 5, 4))  # a stream that was already under way
    detector.save(tmp_path / "start.safetensors")
    stream = rows(9, 60, 4)
    np.save(tmp_path / "stream.npy", stream)
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "rank.py"), str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    answers = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], answers
    seen = np.concatenate([stream[0::2][:11], stream[1::2]])
    detector.stream(seen)
    states = [load_file(tmp_path / f"rank{rank}.safetensors") for rank in range(2)]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])  # the same bits in every rank
    head.load_state_dict(states[0])
    same_statistics(head, detector)
    assert head.count.item() == 1.0 + 5 + len(seen)  # the prior once
    assert all("started from other statistics" in answer for answer, _ in answers)


def test_alone_there_is_nothing_to_synchronise() -> None:
    _, head = pair()
    before = copy.deepcopy(head.state_dict())
    assert head.synchronise() is head
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
