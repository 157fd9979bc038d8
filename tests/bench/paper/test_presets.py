"""The presets, and what the documentation says about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from normscale.bench.experiments.methods import find_method, title_of
from normscale.bench.paper.presets import PAPER_METHODS, PRESETS, find_preset
from normscale.errors import InvalidInput

PAGE = Path(__file__).parents[3] / "docs" / "bench.md"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_run_and_is_documented(name: str) -> None:
    plan = find_preset(name)
    assert plan.name == name
    assert plan.in_set not in plan.ood
    assert plan.methods[: len(PAPER_METHODS)] == PAPER_METHODS
    assert plan.subject in plan.methods
    assert [find_method(method).name for method in plan.methods] == list(plan.methods)
    assert name in PAGE.read_text()


def test_small_presets_are_what_two_cores_can_do() -> None:
    small = {name: (p.epochs, len(p.seeds)) for name, p in PRESETS.items() if name.endswith("-small")}
    assert small == {
        "cifar10-small": (18, 5),
        "cifar100-small": (18, 3),
        "svhn-small": (8, 3),
        "tinyimagenet-small": (12, 3),
    }
    assert {(PRESETS[name].width, PRESETS[name].recipe, PRESETS[name].network) for name in small} == {
        (16, "fast", "resnet18")
    }
    sizes = {name: plan.image_size for name, plan in PRESETS.items() if plan.image_size is not None}
    assert sizes == {"tinyimagenet-small": (32, 32)}
    wide = PRESETS["cifar10-wide"]
    assert (wide.width, wide.epochs, wide.seeds, wide.data) == (32, 18, (0,), "cifar10")


def test_the_documentation_names_every_method_of_the_comparison() -> None:
    text = " ".join(PAGE.read_text().split()).lower()
    for method in PRESETS["digits"].methods:
        title = title_of(method).lower()
        words = {
            "norm-scaling, frozen": "frozen norm-scaling",
            "mahalanobis, all layers": "mahalanobis over all layers",
        }
        assert words.get(title, title) in text, f"docs/bench.md does not name {title}"


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="unknown preset 'imagenet'; known: digits, cifar10-small"):
        find_preset("imagenet")
