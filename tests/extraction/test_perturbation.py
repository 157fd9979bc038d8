"""Input perturbation: against finite differences, against the paper's formula, and without a trace on the model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import normscale as ns
from normscale import InvalidInput
from normscale.bench.train import resnet20
from normscale.extraction.perturbing import (
    CANDIDATES,
    choose_epsilon,
    input_gradient,
    moved,
    perturbed_features,
    perturbed_logits,
    softmax_gradient,
)

torch.set_num_threads(1)


def smooth(seed: int = 0) -> nn.Sequential:
    """A small network whose score has a derivative everywhere, with normalisation that has seen something."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 5),
        nn.BatchNorm1d(5, affine=False),
    ).double()  # fmt: skip
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    for _ in range(3):
        model(3.0 * torch.randn(20, 2, 4, 4, dtype=torch.float64) + 1.0)
    return model


def pictures(n: int = 6, seed: int = 5) -> Tensor:
    return torch.randn(n, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def log_score(model: nn.Module, images: Tensor, temperature: float) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(images)
        return (logits / temperature).softmax(dim=1).amax(dim=1).log()


@pytest.mark.parametrize("temperature", (1.0, 1000.0))
def test_the_gradient_agrees_with_finite_differences(temperature: float) -> None:
    model, images = smooth().eval(), pictures(3)
    numeric = torch.zeros_like(images)
    h = 1e-5 if temperature == 1.0 else 1e-3
    for c, i, j in itertools.product(range(2), range(4), range(4)):
        moved = torch.zeros_like(images)
        moved[:, c, i, j] = h
        difference = log_score(model, images + moved, temperature) - log_score(model, images - moved, temperature)
        numeric[:, c, i, j] = difference / (2 * h)
    gradient = softmax_gradient(model, images, temperature)
    assert (numeric.abs().amax(dim=(1, 2, 3)) > 0).all()
    # grad log S = -(1 - S) grad r, and what is returned is -T grad r
    wrong = 1.0 - log_score(model, images, temperature).exp()
    expected = gradient * wrong[:, None, None, None] / temperature
    torch.testing.assert_close(expected, numeric, rtol=1e-5, atol=1e-7 / temperature)


def test_the_perturbed_image_is_the_papers() -> None:
    """x' = x - eps * sign(-grad log S), the step of each channel divided by its deviation."""
    model, images, std = smooth().eval(), pictures(), torch.tensor([0.5, 0.2], dtype=torch.float64)
    inputs = images.clone().requires_grad_(True)
    (inputs_score := (model(inputs) / 1000.0).log_softmax(dim=1).amax(dim=1).sum()).backward()
    assert inputs.grad is not None
    moved = images - 0.01 * torch.sign(-inputs.grad) / std[None, :, None, None]
    with torch.no_grad():
        expected = model(moved).float().numpy()
    ours = perturbed_logits(model, images, epsilon=0.01, std=std.tolist(), batch_size=4)
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    assert inputs_score < 0
    np.testing.assert_allclose(perturbed_logits(model, images, epsilon=0.0), model(images).detach().float(), rtol=1e-6)


@pytest.mark.parametrize("temperature", (1.0, 1000.0))
def test_the_step_makes_the_network_surer(temperature: float) -> None:
    model, images = smooth(), pictures(50)
    detector = ns.ODIN(temperature)
    before = detector.score(model.eval()(images).detach())
    after = detector.score(perturbed_logits(model, images, epsilon=0.01, temperature=temperature))
    assert (after < before).mean() > 0.95  # lower = less out-of-distribution


def test_a_saturated_softmax_still_has_a_direction() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    images = 100.0 * torch.randn(8, 1, 2, 2)
    assert ((model(images) * 20).softmax(dim=1).amax(dim=1) == 1.0).any()
    assert (softmax_gradient(model, images, 0.05).flatten(1).abs().amin(dim=1) > 0).all()


def test_nothing_is_left_on_the_model_or_the_images() -> None:
    model, images = smooth().train(), pictures()
    model[0].requires_grad_(False)
    marks = [torch.full_like(parameter, 7.0) for parameter in model.parameters()]
    for parameter, mark in zip(model.parameters(), marks, strict=True):
        parameter.grad = mark.clone() if parameter.requires_grad else None
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        in_inference_mode = perturbed_logits(model, images.clone())
    with torch.no_grad():
        np.testing.assert_array_equal(perturbed_logits(model, images), in_inference_mode)
    choose_epsilon(model, images)
    bad = images.clone()
    bad[4] = torch.nan
    with pytest.raises(InvalidInput, match="perturbed_logits row 4 holds NaN"):
        perturbed_logits(model, bad, batch_size=3)
    assert not images.requires_grad
    assert images.grad is None
    assert all(module.training for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    for parameter, mark in zip(model.parameters(), marks, strict=True):
        assert parameter.grad is None if not parameter.requires_grad else torch.equal(parameter.grad, mark)  # type: ignore[arg-type]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_weight_gradients_of_convolutions_are_never_computed() -> None:
    masks: list[Any] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.convolution_backward.default:
                masks.append(args[-1])
            return func(*args, **(kwargs or {}))

    model = resnet20(4, width=4).eval()
    with Watch():  # type: ignore[no-untyped-call]
        perturbed_logits(model, torch.randn(2, 3, 8, 8))
    assert len(masks) == 21
    assert all(list(mask) == [True, False, False] for mask in masks)


def test_the_gradient_is_autograds() -> None:
    model, images = smooth(), pictures()
    inputs = images.clone().requires_grad_(True)
    model.eval()(inputs).square().sum().backward()
    assert inputs.grad is not None
    ours = input_gradient(model, images, lambda logits: logits.square().sum(dim=1))
    torch.testing.assert_close(ours, inputs.grad, rtol=1e-10, atol=1e-12)


def test_epsilon_is_chosen_where_in_distribution_images_score_best() -> None:
    model, images = smooth(), pictures(40)

    def mean_score(model: nn.Module, images: Tensor, epsilon: float, std: Any) -> float:
        logits = perturbed_logits(model, images, epsilon=epsilon, std=std)
        return float(torch.from_numpy(logits).double().div(1000.0).softmax(dim=1).amax(dim=1).mean())

    candidates = (0.3, 0.0, 0.003, 3.0)
    chosen = choose_epsilon(model, images, candidates, std=(0.5, 0.2), batch_size=16)
    assert chosen == max(candidates, key=lambda epsilon: mean_score(model, images, epsilon, (0.5, 0.2))) > 0.0

    class Rebound(nn.Module):
        """Surer up to a step of 0.01, then less, and far away surer than ever."""

        def forward(self, x: Tensor) -> Tensor:
            place = x.flatten(1)[:, :1]
            near = torch.where(place <= 0.01, 1.0 + 10.0 * place, 1.12 - 2.0 * place)
            return torch.cat([torch.where(place < 0.05, near, 50.0 * place), 0.0 * place], dim=1)

    grey = torch.zeros(3, 2, 4, 4)
    assert choose_epsilon(Rebound(), grey) == 0.01
    assert max(CANDIDATES, key=lambda epsilon: mean_score(Rebound(), grey, epsilon, None)) == CANDIDATES[-1]
    flat = nn.Sequential(nn.Flatten(), nn.Linear(32, 3)).double()
    nn.init.zeros_(next(flat.parameters()))
    assert choose_epsilon(flat, images, CANDIDATES) == 0.0  # of equals the smallest step


def test_arguments_are_explained() -> None:
    model, images = smooth(), pictures()
    with pytest.raises(InvalidInput, match=r"epsilon must be finite and at least 0; got -0\.1"):
        perturbed_logits(model, images, epsilon=-0.1)
    with pytest.raises(InvalidInput, match="std must be 2 positive numbers, one for each channel"):
        perturbed_logits(model, images, std=(0.2, 0.2, 0.2))
    with pytest.raises(InvalidInput, match="std must be 2 positive numbers"):
        perturbed_logits(model, images, std=(0.2, 0.0))
    with pytest.raises(InvalidInput, match="temperature must be finite and greater than 0"):
        perturbed_logits(model, images, temperature=0.0)
    with pytest.raises(InvalidInput, match="candidates is empty"):
        choose_epsilon(model, images, ())
    with pytest.raises(InvalidInput, match="data holds no images"):
        perturbed_logits(model, images[:0])
    with pytest.raises(InvalidInput, match="data holds no images"):
        choose_epsilon(model, images[:0])
    with pytest.raises(InvalidInput, match="logits row 0 holds NaN"):
        choose_epsilon(model, images * torch.nan)

    class Detached(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :3].round().detach() + 0 * torch.ones(1, requires_grad=True)

    with pytest.raises(InvalidInput, match="does not depend on its input by a gradient"):
        perturbed_logits(Detached(), images)


def test_the_step_keeps_the_sign_of_every_pixel() -> None:
    images, gradient = torch.zeros(1, 2, 1, 2), torch.tensor([[[[3.0, -1e-9]], [[0.0, 5.0]]]])
    torch.testing.assert_close(moved(images, gradient, 0.1, (1.0, 0.5)), torch.tensor([[[[0.1, -0.1]], [[0.0, 0.2]]]]))


def test_half_precision_may_keep_its_normalisation_in_float32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)).eval()
    images = pictures().float()
    expected = perturbed_logits(model, images, epsilon=0.0, std=(1.0, 1.0))
    half = model.half()
    half[1].float()
    found = perturbed_logits(half, images, epsilon=0.0, std=(1.0, 1.0))
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert not np.array_equal(perturbed_logits(half, images, epsilon=0.1, std=(1.0, 1.0)), found)


def test_features_move_with_the_pixels_that_matter_least() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    images = pictures(5)
    expected = []
    for image in images:
        inputs = image[None].clone().requires_grad_(True)
        model(inputs)[0].max().backward()
        gradient = inputs.grad
        assert gradient is not None
        flat = gradient.flatten()
        moved = image.flatten().clone()
        for place in sorted(range(32), key=lambda i: float(flat[i].abs()))[:8]:  # a quarter of 32 numbers
            moved[place] += 0.3 * float(flat[place].sign())
        with torch.no_grad():
            expected.append(model[:3](moved.reshape(1, 2, 4, 4))[0].numpy())
    found = perturbed_features(model, images, share=0.25, size=0.3, batch_size=2)
    np.testing.assert_allclose(found, np.array(expected, dtype=np.float32), rtol=1e-5)
    assert all(parameter.grad is None or not parameter.grad.isnan().any() for parameter in model.parameters())
    still = perturbed_features(model, images, size=0.0)
    np.testing.assert_allclose(still, ns.extract(model, images).features, rtol=1e-6)
    with pytest.raises(InvalidInput, match="share must"):
        perturbed_features(model, images, share=0.0)
