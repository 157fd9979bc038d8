"""What the measured half of the audit works on: one network's outputs, and the paper's way of streaming them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from normscale import _validate
from normscale._validate import FloatArray, Rows
from normscale.bench.experiments.scored_pair import require_one_network, score_shuffled
from normscale.bench.paper.published import IN_SETS
from normscale.errors import InvalidInput
from normscale.metrics.ranking import RankingResult, evaluate
from normscale.outputs import ModelOutputs


class Given(NamedTuple):
    """Outputs of one network, checked, and which of the paper's sets it was trained on, if any."""

    train: ModelOutputs
    test: ModelOutputs
    ood: dict[str, ModelOutputs]
    in_set: str | None = None
    seed: int = 0


def checked(
    train: ModelOutputs,
    test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    in_set: str | None = None,
    seed: int = 0,
) -> Given:
    """Make sure that all outputs come from one network, have rows, and hold only finite numbers."""
    if not ood_sets:
        raise InvalidInput("ood_sets is empty; at least one OoD set is needed to audit outputs.")
    if in_set is not None:
        _validate.one_of(in_set, "in_set", IN_SETS)
    require_one_network({"train": train, "test": test, **ood_sets})
    return Given(train, test, dict(ood_sets), in_set, _validate.at_least(seed, "seed", 0))


def shuffled(given: Given, ood_set: str, score: Callable[[Rows], FloatArray]) -> RankingResult:
    """Score the test set and an OoD set in one shuffled stream, as the paper does, and compare the two."""
    pair = score_shuffled(given.test.logits, given.ood[ood_set].logits, score, given.seed)
    return evaluate(pair.id_scores, pair.ood_scores)
