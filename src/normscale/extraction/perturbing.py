"""Inputs moved along a gradient, and what a network says of them: ODIN's and AdaSCALE's perturbations, and attacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscale import _validate
from normscale._validate import FloatArray
from normscale.errors import InvalidInput
from normscale.extraction.batch_reader import InputData, numbered, read_batches
from normscale.extraction.layers import Layers, logits_of
from normscale.extraction.torch_model import TorchNetwork, to_network
from normscale.outputs import ATTACKED, LOGITS, PERTURBED, PERTURBED_FEATURES, PERTURBED_LOGITS, ModelOutputs
from normscale.scores import confidence, msp_score

EPSILON = 0.0014
"""The step of the paper's CIFAR-10 networks, in units of pixels from 0 to 1."""

CANDIDATES = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
"""No step at all, and the steps that Hsu et al. (2020) try."""

Std = Sequence[float] | Tensor | None


def perturbed_logits(
    model: nn.Module,
    data: InputData,
    *,
    epsilon: float = EPSILON,
    temperature: float = 1000.0,
    std: Std = None,
    batch_size: int = 128,
    progress: bool = True,
) -> NDArray[np.float32]:
    """Logits (n, C) of perturbed images: the array ``perturbed_logits`` of :class:`normscale.ModelOutputs`.

    Each image x, normalised by the data set's mean and standard deviation, goes a step to where the network is surer:

        x' = x - epsilon / std * sign(-grad_x log S(x)),   S(x) = max_j softmax(f(x) / T)_j

    ``epsilon`` is in units of pixels from 0 to 1; :func:`choose_epsilon` finds one on in-distribution images. ``std``
    is the standard deviation of each channel that the images were divided by, so that all channels move alike. By
    default it is 1, a step in normalised space. The model is left as it was, gradients included. A gradient keeps all
    activations of a batch in memory.

    Liang, Li & Srikant, "Enhancing the Reliability of Out-of-distribution Image Detection in Neural Networks", 2018.

    Examples
    --------
    >>> import normscale as ns
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    >>> logits = perturbed_logits(model, torch.randn(5, 3, 2, 2), epsilon=0.002, std=(0.25, 0.25, 0.25))
    >>> ns.ODIN(temperature=1000.0).score(ns.ModelOutputs(perturbed_logits=logits)).shape
    (5,)
    """
    network = TorchNetwork(model, features=False)
    temperature = _validate.positive(temperature, "temperature")
    epsilon = _not_negative(epsilon, "epsilon")

    def logits(inputs: Tensor, labels: Any, row: int) -> NDArray[np.float32]:
        if epsilon > 0.0:
            inputs = moved(inputs, softmax_gradient(network.model, inputs, temperature), epsilon, std)
        return network.read(inputs, row, PERTURBED)[PERTURBED_LOGITS]

    return np.concatenate(_of_batches(network, data, batch_size, "perturbing", progress, logits))


def perturbed_features(
    model: nn.Module,
    data: InputData,
    *,
    share: float = 0.05,
    size: float = 0.5,
    feature_layer: str | None = None,
    batch_size: int = 128,
    progress: bool = True,
) -> NDArray[np.float32]:
    """Features (n, d) of perturbed images: the array ``perturbed_features`` of :class:`normscale.ModelOutputs`.

    The pixels that matter least to the predicted logit z_c, the ``share`` of them with the smallest gradient, move up
    its gradient: x' = x + size * sign(grad_x z_c(x)) there, and x' = x elsewhere. ``size`` is in normalised space; it
    and ``share`` are the authors'. Other parameters are those of :func:`perturbed_logits`.

    Regmi, "AdaSCALE: Adaptive Scaling for OOD Detection", 2025.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4))
    >>> perturbed_features(model, torch.randn(5, 3, 2, 2)).shape
    (5, 6)
    """
    network = TorchNetwork(model, feature_layer=feature_layer)
    share, size = _validate.fraction(share, "share", allow_one=True), _not_negative(size, "size")

    def features(inputs: Tensor, labels: Any, row: int) -> NDArray[np.float32]:
        gradient = input_gradient(network.model, inputs, lambda logits: logits.amax(dim=1))
        flat = gradient.flatten(1)
        least = flat.abs().topk(max(1, int(share * flat.shape[1])), dim=1, largest=False).indices
        chosen = torch.zeros_like(flat).scatter(1, least, 1.0).reshape(gradient.shape)
        return network.read(moved(inputs, gradient * chosen, size, None), row, PERTURBED)[PERTURBED_FEATURES]

    return np.concatenate(_of_batches(network, data, batch_size, "perturbing", progress, features))


def attacked_layers(
    model: nn.Module,
    data: InputData,
    *,
    layers: Layers = None,
    epsilon: float = 0.05,
    std: Std = None,
    feature_layer: str | None = None,
    batch_size: int = 128,
    progress: bool = True,
) -> ModelOutputs:
    """Attack images by the fast gradient sign method and read the network's layers there.

    Each image x moves to where its label, or the predicted class where there is no label, becomes less likely:
    x' = x + epsilon / std * sign(grad_x loss). Only in-distribution images are used, so that a detector may learn from
    them. ``layers`` and ``feature_layer`` are those of :func:`normscale.extraction.extract`, other parameters those of
    :func:`perturbed_logits`.

    Returns ``attacked_features`` and one ``attacked_<layer>`` for each of the layers, float32.

    Goodfellow, Shlens & Szegedy, "Explaining and Harnessing Adversarial Examples", 2015.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4))
    >>> attacked_layers(model, torch.randn(5, 3, 2, 2), layers=["1"])
    ModelOutputs(n=5, attacked_features=6, attacked_layer_1=6)
    """
    network = TorchNetwork(model, layers=layers, feature_layer=feature_layer)
    size = _validate.positive(epsilon, "epsilon")

    def read(inputs: Tensor, labels: Any, row: int) -> ModelOutputs:
        def loss(logits: Tensor) -> Tensor:  # its gradient has the sign of cross-entropy's, and does not saturate
            target = logits.detach().argmax(dim=1)
            if labels is not None:
                _validate.as_labels(labels, "labels", length=len(logits), n_classes=logits.shape[1])
                known = torch.as_tensor(labels, device=target.device)
                target = torch.where(known >= 0, known, target)
            return _log_odds(logits, target)

        attacked = moved(inputs, input_gradient(network.model, inputs, loss), size, std)
        arrays = network.read(attacked, row, ATTACKED)
        return ModelOutputs(**{name: array for name, array in arrays.items() if name != ATTACKED + LOGITS})

    return ModelOutputs.concatenate(_of_batches(network, data, batch_size, "attacking", progress, read))


def choose_epsilon(
    model: nn.Module,
    data: InputData,
    candidates: Sequence[float] = CANDIDATES,
    *,
    temperature: float = 1000.0,
    std: Std = None,
    batch_size: int = 128,
    progress: bool = True,
) -> float:
    """Choose ODIN's step on held-out in-distribution images alone: the one up to which their mean score grows.

        sum_x S(x'_epsilon),   S(x) = max_j softmax(f(x) / T)_j

    Hsu et al. take the largest sum of all. Far beyond the first step that lowers it, the gradient says nothing any
    more: a step of 0.08, with the largest sum, turned ODIN upside down on a TinyImageNet network. Costs a gradient, and
    one forward pass per candidate. Of equals the smallest step wins.

    Hsu, Shen, Jin & Kira, "Generalized ODIN: Detecting Out-of-distribution Image without Learning from
    Out-of-distribution Data", 2020.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    >>> choose_epsilon(model, torch.randn(20, 3, 2, 2), candidates=(0.0, 0.01, 0.02))
    0.02
    """
    network = TorchNetwork(model, features=False)
    temperature = _validate.positive(temperature, "temperature")
    steps = sorted({_not_negative(value, "candidates") for value in candidates})
    if not steps:
        raise InvalidInput("candidates is empty; give at least one step.")

    def confidences(inputs: Tensor, labels: Any, row: int) -> FloatArray:
        gradient = softmax_gradient(network.model, inputs, temperature)
        tried = (network.read(moved(inputs, gradient, epsilon, std), row)[LOGITS] for epsilon in steps)
        return np.stack([confidence(msp_score(logits, temperature)) for logits in tried])

    parts = _of_batches(network, data, batch_size, "choosing epsilon", progress, confidences)
    scores = np.concatenate(parts, axis=1).mean(axis=1).tolist()
    best = next((i for i, (here, further) in enumerate(pairwise(scores)) if further <= here), len(steps) - 1)
    return steps[best]


def input_gradient(model: nn.Module, images: Tensor, objective: Callable[[Tensor], Tensor]) -> Tensor:
    """Gradient at the images of ``objective(logits)``, a number for each image; parameters keep no gradient."""
    with torch.inference_mode(False), torch.enable_grad():
        inputs = (images.clone() if images.is_inference() else images.detach()).requires_grad_(True)
        (gradient,) = torch.autograd.grad(objective(logits_of(model(inputs))).sum(), inputs, allow_unused=True)
    if gradient is None:
        raise InvalidInput("the model's output does not depend on its input by a gradient; does it detach or round?")
    return gradient.detach()


def moved(images: Tensor, gradient: Tensor, size: float, std: Std) -> Tensor:
    """Images moved by ``size`` along the sign of the gradient, in each channel divided by its ``std``."""
    scale = torch.as_tensor(1.0 if std is None else std, dtype=images.dtype, device=images.device)
    if images.ndim < 2 or scale.shape not in ((images.shape[1],), ()) or not bool((scale > 0).all()):
        raise InvalidInput(
            f"std must be {images.shape[1]} positive numbers, one for each channel; got {np.asarray(std).tolist()}."
        )
    if scale.ndim:
        scale = scale.reshape(-1, *[1] * (images.ndim - 2))
    return images + gradient.sign() * (size / scale)


def _of_batches(
    network: TorchNetwork,
    data: InputData,
    batch_size: int,
    doing: str,
    progress: bool,
    read: Callable[[Tensor, Any, int], Any],
) -> list[Any]:
    """What ``read(inputs, labels, first row)`` gives of every batch."""
    total, batches = read_batches(data, batch_size)
    with network.running():
        return [
            read(to_network(batch.inputs, network.model), batch.labels, row)
            for row, batch in numbered(batches, doing, total=total, show=progress)
        ]


def softmax_gradient(model: nn.Module, images: Tensor, temperature: float) -> Tensor:
    """A gradient with the sign of grad_x log max_j softmax(f(x) / T)_j, for each image.

    With r the log-odds of the prediction being wrong, log S = -log(1 + exp(r)), so that -grad r has the sign of
    grad log S; but it does not vanish where the network is so sure that S rounds to 1. Times T keeps it away from
    underflow in half precision.
    """
    return input_gradient(
        model, images, lambda logits: -temperature * _log_odds(logits / temperature, logits.detach().argmax(dim=1))
    )


def _log_odds(logits: Tensor, target: Tensor) -> Tensor:
    """Log-odds of each row's class being another than ``target``; (n,)."""
    index = target[:, None]
    return logits.scatter(1, index, -math.inf).logsumexp(dim=1) - logits.gather(1, index)[:, 0]


def _not_negative(value: float, name: str) -> float:
    if not 0.0 <= _validate.real(value, name) < math.inf:
        raise InvalidInput(f"{name} must be finite and at least 0; got {value!r}.")
    return float(value)
