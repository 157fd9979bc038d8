"""Distances in several layers: against the numpy oracle on the same activations, and weights that make sense."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import normscale as ns
from normscale import InvalidInput
from normscale.nn import resnet20
from normscale.nn._logistic import logistic_weights
from normscale.nn.mahalanobis import MahalanobisLayers
from oracles import mahalanobis

torch.set_num_threads(1)

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.arange(300) % 3
IMAGES = torch.randn(300, 3, 8, 8, generator=GENERATOR) + 0.5 * LABELS[:, None, None, None]
QUERIES = 2.0 * torch.randn(11, 3, 8, 8, generator=GENERATOR)


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
        found = {name: maps.mean(dim=(2, 3)).double().numpy() for name, maps in model.stages(images).items()}
        found["input of classifier"] = model.features(images).double().numpy()
    model.train()
    return found


def test_all_layers_agree_with_the_oracle_on_the_same_activations(network: Any) -> None:
    layers = MahalanobisLayers.fit(network, (IMAGES, LABELS), layers="all", batch_size=64)
    assert layers.names == ("stem", "stage1", "stage2", "stage3")
    distances = layers.distances(network, QUERIES, batch_size=4)
    train, test = activations(network, IMAGES), activations(network, QUERIES)
    for i, name in enumerate(layers.names):
        expected = mahalanobis(train[name], LABELS.numpy(), test[name])
        np.testing.assert_allclose(distances[:, i], expected, rtol=2e-3)  # float32 activations, other batches
        same = layers.detectors[i].score({"logits": np.zeros((11, 2)), "features": test[name]})
        np.testing.assert_allclose(distances[:, i], same, rtol=2e-3)
    assert layers.weights.tolist() == [0.25] * 4
    np.testing.assert_allclose(layers.score(network, QUERIES), distances.mean(axis=1), rtol=1e-6)
    weighted = layers.with_weights([1.0, 0.0, -2.0, 0.0])
    np.testing.assert_allclose(weighted.score(network, QUERIES), distances @ [1.0, 0.0, -2.0, 0.0], rtol=1e-5)


def test_in_double_precision_the_agreement_is_exact(network: Any) -> None:
    model = resnet20(3, width=4).double()
    model.load_state_dict(network.state_dict())
    layers = MahalanobisLayers.fit(model, (IMAGES, LABELS), layers=["stage1", "classifier"], batch_size=70)
    distances = layers.distances(model, QUERIES)
    train, test = activations(model, IMAGES.double()), activations(model, QUERIES.double())
    expected = mahalanobis(train["stage1"], LABELS.numpy(), test["stage1"])
    np.testing.assert_allclose(distances[:, 0], expected, rtol=1e-8)
    with torch.no_grad():
        logits, queries = (model.classifier(torch.from_numpy(a["input of classifier"])).numpy() for a in (train, test))
    np.testing.assert_allclose(distances[:, 1], mahalanobis(logits, LABELS.numpy(), queries), rtol=1e-7)


def test_the_penultimate_layer_is_the_detector_on_extracted_features(network: Any) -> None:
    from normscale.nn.extraction import extract

    layers = MahalanobisLayers.fit(network, (IMAGES, LABELS))
    assert layers.names == ("input of classifier",)
    detector = ns.Mahalanobis().fit(extract(network, (IMAGES, LABELS)))
    expected = detector.score(extract(network, QUERIES))
    np.testing.assert_allclose(layers.score(network, QUERIES), expected, rtol=1e-6)


def test_the_perturbation_follows_each_layers_own_gradient(network: Any) -> None:
    model = resnet20(3, width=4).double()
    model.load_state_dict(network.state_dict())
    std = (0.5, 1.0, 2.0)
    plain = MahalanobisLayers.fit(model, (IMAGES, LABELS), layers="all")
    perturbed = MahalanobisLayers.fit(model, (IMAGES, LABELS), layers="all", epsilon=1e-4, std=std)
    before, after = plain.distances(model, QUERIES), perturbed.distances(model, QUERIES)
    assert (after < before).all()  # a step towards the nearest class
    model.eval()
    for i, name in enumerate(plain.names):
        inputs = QUERIES.double().requires_grad_(True)
        detector = plain.detectors[i]
        hidden = model.stages(inputs)[name].mean(dim=(2, 3))
        inverse = torch.from_numpy(np.linalg.inv(detector.covariance_))
        offsets = hidden[:, None] - torch.from_numpy(detector.means_)
        distance = torch.einsum("ncd,de,nce->nc", offsets, inverse, offsets).amin(dim=1)
        (gradient,) = torch.autograd.grad(distance.sum(), inputs)
        step = 1e-4 * gradient.sign() / torch.tensor(std, dtype=torch.float64)[:, None, None]
        expected = plain.distances(model, (inputs - step).detach())[:, i]
        np.testing.assert_allclose(after[:, i], expected, rtol=1e-6)


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


def test_fgsm_weights_find_the_layer_that_sees_the_attack() -> None:
    torch.manual_seed(0)
    model = TwoLayers()
    labels = torch.arange(400) % 3
    images = 0.2 * torch.randn(400, 6) + torch.eye(3).repeat(1, 2)[labels].round() * 4.0
    layers = MahalanobisLayers.fit(model, (images, labels), layers=["seen", "idle"], shrinkage=0.1)
    fitted = layers.with_fgsm_weights(model, (images[:200], labels[:200]), fgsm_epsilon=0.3)
    spread = layers.distances(model, images).std(axis=0)
    seen, idle = fitted.weights * spread
    assert seen > 5.0 * abs(idle)
    assert seen > 0.0
    attacked = fitted.with_fgsm_weights(model, images[:200], fgsm_epsilon=0.3)  # by predicted classes
    assert attacked.weights[0] > 0.0
    assert layers.weights.tolist() == [0.5, 0.5]  # a new record, not a changed one


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
    layers = MahalanobisLayers.fit(network, (IMAGES, LABELS), layers="all", epsilon=0.01)
    layers = layers.with_fgsm_weights(network, (IMAGES[:30], LABELS[:30]))
    bad = QUERIES.clone()
    bad[7, 0, 0, 0] = torch.nan
    with pytest.raises(InvalidInput, match="distances row 7 holds NaN"):
        layers.score(network, bad, batch_size=4)
    assert all(module.training for module in network.modules())
    assert not any(module._forward_hooks or "forward" in module.__dict__ for module in network.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    with pytest.raises(FrozenInstanceError):
        layers.epsilon = 0.5  # type: ignore[misc]


def test_arguments_are_explained(network: Any) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(InvalidInput, match=r"this model names none.*layers=\['0', '1'\]"):
        MahalanobisLayers.fit(own, (IMAGES, LABELS), layers="all")
    with pytest.raises(InvalidInput, match='layers must be "penultimate", "all", or a sequence'):
        MahalanobisLayers.fit(own, (IMAGES, LABELS), layers="stage1")
    with pytest.raises(InvalidInput, match="no layer 'stage9'"):
        MahalanobisLayers.fit(network, (IMAGES, LABELS), layers=["stage9"])
    with pytest.raises(InvalidInput, match="needs the class of every training image"):
        MahalanobisLayers.fit(network, IMAGES)
    with pytest.raises(InvalidInput, match=r"labels from row 100 on\[2\] is 3; class numbers must be from 0 to 2"):
        MahalanobisLayers.fit(network, (IMAGES, torch.where(torch.arange(300) == 102, 3, LABELS)), batch_size=100)
    with pytest.raises(InvalidInput, match="is -1"):
        MahalanobisLayers.fit(network, (IMAGES, LABELS - 1))
    with pytest.raises(InvalidInput, match="data holds no images"):
        MahalanobisLayers.fit(network, (IMAGES[:0], LABELS[:0]))
    layers = MahalanobisLayers.fit(network, (IMAGES, LABELS))
    with pytest.raises(InvalidInput, match="weights must be 1 numbers, one for each layer; got 2"):
        layers.with_weights([1.0, 2.0])
    with pytest.raises(InvalidInput, match="epsilon must be finite and at least 0"):
        MahalanobisLayers.fit(network, (IMAGES, LABELS), epsilon=-1.0)
    assert layers.score(network, QUERIES[:0]).shape == (0,)
