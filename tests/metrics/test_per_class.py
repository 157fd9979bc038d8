from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscale.errors import InvalidInput
from normscale.metrics import METRICS, evaluate, evaluate_per_class

quick = settings(deadline=None, max_examples=60)

rows = st.lists(st.tuples(st.integers(-2, 2), st.sampled_from([0, 1, 5, 65_537])), min_size=1, max_size=30)


@quick
@given(rows, rows)
def test_is_the_plain_mean_of_evaluate_over_classes(inside: list[Any], outside: list[Any]) -> None:
    both = sorted({c for _, c in inside} & {c for _, c in outside})
    arguments = [
        [s for s, _ in inside],
        [c for _, c in inside],
        [s for s, _ in outside],
        [c for _, c in outside],
    ]
    if not both:
        with pytest.raises(InvalidInput, match="no class in common"):
            evaluate_per_class(*arguments)
        return
    result = evaluate_per_class(*arguments)
    groups = {c: evaluate([s for s, k in inside if k == c], [s for s, k in outside if k == c]) for c in both}
    assert result.per_class == groups
    for name in METRICS:
        mean = np.mean([getattr(group, name) for group in groups.values()])
        assert getattr(result, name) == pytest.approx(mean, abs=1e-14)
    assert result.n_groups == len(both)
    assert result.n_skipped == len(result.skipped)
    for label, reason in result.skipped.items():
        missing_outside = label in {c for _, c in inside}
        assert reason == ("no OoD input" if missing_outside else "no in-distribution input")
    assert (result.n_id, result.n_ood) == (len(inside), len(outside))


def test_equal_weight_however_small_the_class() -> None:
    inside, inside_class = [0.0] * 98 + [0.0, 0.0], [0] * 98 + [1, 1]
    result = evaluate_per_class(inside, inside_class, [1.0, -1.0], [0, 1])
    assert (result.auroc, result.n_groups) == (0.5, 2)


def test_one_class_is_evaluate() -> None:
    inside, outside = [0.1, 0.3, 0.4, 0.5], [0.2, 0.5, 0.7]
    result = evaluate_per_class(inside, [4] * 4, outside, [4] * 3, tpr=0.6)
    assert result.per_class[4] == evaluate(inside, outside, tpr=0.6)
    assert result.fpr95_out == result.per_class[4].fpr95_out


def test_says_what_was_skipped_and_which_class_is_positive() -> None:
    result = evaluate_per_class([0.1, 0.2], [0, 1], [0.3, 0.4], [1, 2])
    assert result.skipped == {0: "no OoD input", 2: "no in-distribution input"}
    assert result.to_dict()["per_class"][1]["auroc"] == 1.0
    assert result.to_dict()["positive"].startswith("OoD for *_out")
    assert "mean over 1 predicted classes (2 skipped)" in str(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], [1.0], [0]), "id_scores is empty"),
        (([1.0], [0], [np.nan], [0]), r"ood_scores\[0\] is NaN"),
        (([1.0], [0, 1], [1.0], [0]), "id_predicted must have one entry per row"),
        (([1.0], [0], [1.0], [-1]), r"ood_predicted\[0\] is -1"),
        (([1.0], [0.5], [1.0], [0]), "whole class numbers"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        evaluate_per_class(*arguments)
