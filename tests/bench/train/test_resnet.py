"""The networks: parameter counts as published, shapes, named activations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import normscale as ns
from normscale.bench.train.resnet import ResidualNetwork, resnet18, resnet20


@pytest.mark.parametrize(
    ("make", "count"),
    ((resnet18, 11_173_962), (resnet20, 272_474)),
)
def test_parameter_counts(make: Callable[..., ResidualNetwork], count: int) -> None:
    assert sum(p.numel() for p in make(10).parameters()) == count


@pytest.mark.parametrize("make", (resnet18, resnet20))
@pytest.mark.parametrize(("size", "channels"), ((32, 3), (64, 3), (8, 1)))
def test_shapes(make: Callable[..., ResidualNetwork], size: int, channels: int) -> None:
    torch.manual_seed(0)
    model = make(7, width=4, in_channels=channels).eval()
    x = torch.randn(2, channels, size, size)
    with torch.inference_mode():
        features, logits = model.features(x), model(x)
        stages, activation = {}, x
        for name in model.stage_names:
            stages[name] = activation = getattr(model, name)(activation)
        from_features = model.classifier(features)
        from_last_stage = stages[model.stage_names[-1]].mean(dim=(2, 3))
    assert features.shape == (2, model.n_features)
    assert logits.shape == (2, 7)
    assert torch.equal(logits, from_features)
    assert torch.equal(from_last_stage, features)
    sizes = [activation.shape[-1] for activation in stages.values()]
    assert sizes[:2] == [size, size], "no pooling and no stride before the second stage"
    assert sizes[2:] == [size // 2 ** (i + 1) for i in range(len(sizes) - 2)]


def test_arguments_are_checked() -> None:
    with pytest.raises(ns.InvalidInput, match="num_classes must be a whole number >= 2; got 1"):
        resnet18(1)
    with pytest.raises(ns.InvalidInput, match="width must be"):
        resnet18(10, width=0)
