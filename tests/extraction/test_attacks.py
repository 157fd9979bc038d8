"""Layers of a network, clean and attacked, and Mahalanobis distances there: against independent references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

import normscale as ns
from normscale import InvalidInput
from normscale.bench.train import resnet20
from normscale.detectors.mahalanobis import logistic_weights
from normscale.extraction import extract
from normscale.extraction.perturbing import attacked_layers
from oracles import mahalanobis

torch.set_num_threads(1)

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.arange(300) % 3
IMAGES = torch.randn(300, 3, 8, 8, generator=GENERATOR) + 0.5 * LABELS[:, None, None, None]
QUERIES = 2.0 * torch.randn(11, 3, 8, 8, generator=GENERATOR)
STAGES = ("stem", "stage1", "stage2", "stage3")


@pytest.fixture(scope="module")
def network() -> Any:
    torch.manual_seed(0)
    model = resnet20(3, width=4)
    for _ in range(5):
        model(IMAGES)  # so that normalisation fits
    return model


def activations(model: Any, images: Tensor) -> dict[str, Any]:
    model.eval()
    with torch.no_grad():
        found, maps = {}, images
        for name in model.stage_names:
            maps = getattr(model, name)(maps)
            found[name] = maps.mean(dim=(2, 3)).double().numpy()
        found["features"] = model.features(images).double().numpy()
    model.train()
    return found


def together(clean: ns.ModelOutputs, attacked: ns.ModelOutputs) -> ns.ModelOutputs:
    return clean.replace(**{name: attacked.array(name) for name in attacked.names})


# -- distances in several layers -----------------------------------------------------------------------------


def test_all_layers_agree_with_the_oracle_on_the_same_activations(network: Any) -> None:
    train, test = (extract(network, data, layers="all", batch_size=64) for data in ((IMAGES, LABELS), QUERIES))
    ours = {"train": activations(network, IMAGES), "test": activations(network, QUERIES)}
    distances = []
    for name in (*STAGES, "features"):
        np.testing.assert_allclose(train.array(name), ours["train"][name], rtol=1e-3, atol=1e-5)
        detector = ns.Mahalanobis(layers=[name], shrinkage=0.0).fit(train)
        distances.append(detector.score(test))
        exact = mahalanobis(train.array(name).astype(float), LABELS.numpy(), test.array(name).astype(float))
        np.testing.assert_allclose(distances[-1], exact, rtol=1e-7)
        expected = mahalanobis(ours["train"][name], LABELS.numpy(), ours["test"][name])
        np.testing.assert_allclose(distances[-1], expected, rtol=2e-3)  # float32 activations, other batches
    weighted = ns.Mahalanobis(layers=STAGES, shrinkage=0.0, weights=[1.0, 0.0, -2.0, 0.0]).fit(train)
    np.testing.assert_allclose(weighted.score(test), distances[0] - 2.0 * distances[2], rtol=1e-9)
    every = ns.MahalanobisLayers(shrinkage=0.0).fit(train)
    assert every.layers == (*STAGES, "features")
    deviations = [ns.Mahalanobis(layers=[name], shrinkage=0.0).fit(train).score(train).std() for name in every.layers]
    expected = np.mean([one / deviation for one, deviation in zip(distances, deviations, strict=True)], axis=0)
    np.testing.assert_allclose(every.score(test), expected, rtol=1e-9)


def test_a_network_in_double_precision(network: Any) -> None:
    model = resnet20(3, width=4).double()
    model.load_state_dict(network.state_dict())
    layers = ["stage1", "classifier"]
    train, test = (extract(model, data, layers=layers, batch_size=70) for data in ((IMAGES, LABELS), QUERIES))
    ours = {"train": activations(model, IMAGES.double()), "test": activations(model, QUERIES.double())}
    expected = mahalanobis(ours["train"]["stage1"], LABELS.numpy(), ours["test"]["stage1"])
    np.testing.assert_allclose(ns.Mahalanobis(["stage1"], shrinkage=0.0).fit(train).score(test), expected, rtol=1e-5)
    with torch.no_grad():
        logits, queries = (model.classifier(torch.from_numpy(ours[part]["features"])).numpy() for part in ours)
    expected = mahalanobis(logits, LABELS.numpy(), queries)
    detector = ns.Mahalanobis(["classifier"], shrinkage=0.0).fit(train)
    np.testing.assert_allclose(detector.score(test), expected, rtol=1e-5)


# -- attacks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", (True, False))
def test_the_attack_is_the_fast_gradient_sign_method(network: Any, known: bool) -> None:
    """x + epsilon / std * sign of the gradient of the cross-entropy, by autograd alone and in double precision."""
    model = resnet20(3, width=4).double()
    model.load_state_dict(network.state_dict())
    model.eval()
    std = (0.5, 1.0, 2.0)
    inputs = IMAGES[:40].double().requires_grad_(True)
    logits = model(inputs)
    target = LABELS[:40] if known else logits.argmax(dim=1)
    assert not torch.equal(LABELS[:40], logits.argmax(dim=1)), "or both cases are the same"
    (gradient,) = torch.autograd.grad(functional.cross_entropy(logits, target, reduction="sum"), inputs)
    attack = inputs.detach() + 0.01 * gradient.sign() / torch.tensor(std, dtype=torch.float64)[:, None, None]
    expected = activations(model, attack)
    data = (IMAGES[:40], LABELS[:40]) if known else IMAGES[:40]
    attacked = attacked_layers(model, data, layers="all", epsilon=0.01, std=std, batch_size=16)
    assert set(attacked.names) == {f"attacked_{name}" for name in (*STAGES, "features")}
    for name, values in expected.items():
        np.testing.assert_allclose(attacked.array(f"attacked_{name}"), values, rtol=1e-5, atol=1e-6)
    unknown = attacked_layers(model, (IMAGES[:40], torch.full((40,), -1)), layers="all", epsilon=0.01, std=std)
    if not known:  # a label of -1 is none
        for name in attacked.names:
            np.testing.assert_allclose(unknown.array(name), attacked.array(name), rtol=1e-5, atol=1e-6)


class TwoLayers(nn.Module):
    """One layer reads what an attack changes, the other what it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Linear(6, 3, bias=False)
        self.idle = nn.Linear(6, 3, bias=False)
        self.classifier = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x.detach().round(decimals=0) if x.requires_grad else x.round(decimals=0))
        logits: Tensor = self.classifier(self.seen(x))
        return logits


def test_weights_find_the_layer_that_sees_the_attack() -> None:
    torch.manual_seed(0)
    model = TwoLayers()
    labels = torch.arange(400) % 3
    images = 0.2 * torch.randn(400, 6) + torch.eye(3).repeat(1, 2)[labels].round() * 4.0
    layers = ["seen", "idle"]
    clean = extract(model, (images, labels), layers=layers)
    for data in ((images, labels), images):  # by labels, and by predicted classes
        attacked = attacked_layers(model, data, layers=layers, epsilon=0.3)
        fitted = ns.Mahalanobis(layers, shrinkage=0.1, weights="attacks").fit(together(clean, attacked))
        distances = [
            [ns.Mahalanobis([name], shrinkage=0.1).fit(clean).score(rows) for name in layers]
            for rows in (clean, ns.ModelOutputs(**{name: attacked.array(f"attacked_{name}") for name in layers}))
        ]
        both = np.concatenate([np.stack(columns, axis=1) for columns in distances])
        std = both.std(axis=0)
        theirs = LogisticRegression(C=1.0, tol=1e-12, max_iter=10_000).fit(
            (both - both.mean(axis=0)) / std, np.arange(800) >= 400
        )
        np.testing.assert_allclose(fitted.fitted_.layer_weights, theirs.coef_[0] / std, rtol=1e-4)
        seen, idle = fitted.fitted_.layer_weights * np.stack(distances[0], axis=1).std(axis=0)
        assert seen > 5.0 * abs(idle)
        assert seen > 0.0


@pytest.mark.parametrize("ridge", (1.0, 1e-3))
def test_logistic_weights_agree_with_scikit_learn(ridge: float) -> None:
    rng = np.random.default_rng(0)
    rows = rng.gamma(2.0, size=(300, 4)) * [1.0, 50.0, 1e-3, 1.0]
    target = rng.random(300) < 1.0 / (1.0 + np.exp(3.0 - rows[:, 0] - 0.02 * rows[:, 1]))
    std = rows.std(axis=0)
    theirs = LogisticRegression(C=1.0 / ridge, tol=1e-12, max_iter=10_000).fit((rows - rows.mean(axis=0)) / std, target)
    np.testing.assert_allclose(logistic_weights(rows, target, ridge=ridge), theirs.coef_[0] / std, rtol=1e-4)


def test_logistic_weights_stay_finite_when_nothing_is_left_to_learn() -> None:
    apart = np.r_[np.zeros((50, 2)), np.full((50, 2), 1e6)]
    weights = logistic_weights(apart, np.arange(100) >= 50)
    assert np.isfinite(weights).all()
    assert (weights > 0).all()
    assert np.isfinite(logistic_weights(apart, np.zeros(100))).all()
    assert logistic_weights(np.ones((10, 2)), np.arange(10) % 2).tolist() == [0.0, 0.0]
    with pytest.raises(InvalidInput, match="features row 3 holds NaN"):
        logistic_weights(np.where(np.arange(10)[:, None] == 3, np.nan, 1.0), np.arange(10) % 2)


def test_the_model_is_left_as_it_was(network: Any) -> None:
    state = {name: value.clone() for name, value in network.state_dict().items()}
    attacked_layers(network, (IMAGES[:30], LABELS[:30]), layers="all")
    bad = QUERIES.clone()
    bad[7, 0, 0, 0] = torch.nan
    with pytest.raises(InvalidInput, match=r"attacked_[a-z0-9]+ row 7 holds NaN"):
        attacked_layers(network, bad, layers="all", batch_size=4)
    assert all(module.training for module in network.modules())
    assert not any(module._forward_hooks or "forward" in module.__dict__ for module in network.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


def test_arguments_are_explained(network: Any) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(InvalidInput, match=r"such as \['0', '1'\]"):
        attacked_layers(own, (IMAGES, LABELS), layers="all")
    with pytest.raises(InvalidInput, match="no layer 'stage9'"):
        attacked_layers(network, (IMAGES, LABELS), layers=["stage9"])
    with pytest.raises(InvalidInput, match="data holds no images"):
        attacked_layers(network, (IMAGES[:0], LABELS[:0]))
    with pytest.raises(InvalidInput, match="epsilon must be finite and greater than 0"):
        attacked_layers(network, (IMAGES, LABELS), epsilon=0.0)
    with pytest.raises(InvalidInput, match=r"labels\[2\] is 3; class numbers must be from 0 to 2"):
        attacked_layers(network, (IMAGES, torch.where(torch.arange(300) == 102, 3, LABELS)), batch_size=100)
    clean = extract(network, (IMAGES, LABELS), layers="all")
    with pytest.raises(InvalidInput, match="needs labels to fit"):
        ns.Mahalanobis(STAGES).fit(clean.replace(labels=None))
    with pytest.raises(InvalidInput, match="is -1"):
        ns.Mahalanobis(STAGES).fit(clean.replace(labels=LABELS - 1))
    with pytest.raises(InvalidInput, match="attacked_stem"):
        ns.Mahalanobis(STAGES, weights="attacks").fit(clean)
    with pytest.raises(InvalidInput, match="weights must be 4 numbers, one a layer; got 2"):
        ns.Mahalanobis(STAGES, weights=[1.0, 2.0])
    assert ns.Mahalanobis(["features"]).fit(clean).score(extract(network, QUERIES)[:0]).shape == (0,)
