"""Input perturbation: a small step of the input along a gradient, then the logits or the features there.

Detectors read them as the arrays ``perturbed_logits`` and ``perturbed_features``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from normscale import _validate
from normscale.errors import InvalidInput
from normscale.extraction.batch_reader import BatchReader, InputData, announced
from normscale.extraction.evaluation import device_and_dtype, evaluating, logits_of, to_network, unwrapped
from normscale.extraction.input_gradient import input_gradient, log_odds, step
from normscale.extraction.layers import LayerReader
from normscale.extraction.torch_model import as_finite_array
from normscale.outputs import FEATURES, PERTURBED_FEATURES, PERTURBED_LOGITS

EPSILON = 0.0014
"""The step of the paper's CIFAR-10 networks, in units of pixels from 0 to 1."""

CANDIDATES = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
"""No step at all, and the steps that Hsu et al. (2020) try."""


class EpsilonChoice(NamedTuple):
    """The step chosen, and the mean score each candidate got."""

    epsilon: float
    candidates: tuple[float, ...]
    mean_scores: tuple[float, ...]


def perturbed_logits(
    model: nn.Module,
    data: InputData,
    *,
    epsilon: float = EPSILON,
    temperature: float = 1000.0,
    std: Sequence[float] | Tensor | None = None,
    batch_size: int = 128,
    progress: bool = True,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logits of perturbed images: the array ``perturbed_logits`` of :class:`normscale.ModelOutputs`.

    Each image x, normalised by the data set's mean and standard deviation, goes a step to where the network is surer:

        x' = x - epsilon / std * sign(-grad_x log S(x)),   S(x) = max_j softmax(f(x) / T)_j

    Parameters
    ----------
    model : torch.nn.Module
        Maps images to logits (n, C); left as it was, gradients of its parameters included.
    data : tensor, array, Dataset, DataLoader, or iterable of batches
        As in :func:`normscale.extraction.extract`.
    epsilon : float
        The step in units of pixels from 0 to 1; :func:`choose_epsilon` finds one on in-distribution images.
    temperature : float
        T.
    std : sequence of n_channels numbers, optional
        The standard deviation the images were divided by: the authors' code divides the step by it, so that every
        channel's pixels move alike. By default 1, a step in normalised space.
    batch_size : int
        Images at a time; a gradient keeps all their activations in memory.
    progress : bool

    Returns
    -------
    array of shape (n, C), float32

    References
    ----------
    Liang, Li & Srikant, "Enhancing the Reliability of Out-of-distribution Image Detection in Neural Networks", 2018.

    Examples
    --------
    >>> import normscale as ns
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    >>> logits = perturbed_logits(model, torch.randn(5, 3, 2, 2), epsilon=0.002, std=(0.25, 0.25, 0.25))
    >>> ns.ODIN(temperature=1000.0).score(ns.ModelOutputs(perturbed_logits=logits)).shape
    (5,)
    """
    network = unwrapped(model)
    temperature = _validate.positive(temperature, "temperature")
    epsilon = not_negative(epsilon, "epsilon")

    def logits(inputs: Tensor) -> Tensor:
        if epsilon > 0.0:
            inputs = step(inputs, softmax_gradient(network, inputs, temperature), epsilon, std)
        with torch.inference_mode():
            return logits_of(network(inputs))

    return _of_batches(network, BatchReader(data, batch_size), logits, PERTURBED_LOGITS, progress)


def perturbed_features(
    model: nn.Module,
    data: InputData,
    *,
    share: float = 0.05,
    size: float = 0.5,
    feature_layer: str | None = None,
    batch_size: int = 128,
    progress: bool = True,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Features of perturbed images: the array ``perturbed_features`` of :class:`normscale.ModelOutputs`.

    The pixels that matter least to the predicted logit z_c, the ``share`` of them with the smallest gradient, move up
    its gradient: x' = x + size * sign(grad_x z_c(x)) there, and x' = x elsewhere.

    Parameters
    ----------
    model, data, batch_size, progress
        As in :func:`perturbed_logits`.
    share : float in (0, 1]
        Of the numbers of an image, rounded down; one at least.
    size : float
        The step in normalised space. Both defaults are the authors'.
    feature_layer : str, optional
        As in :func:`normscale.extraction.extract`.

    Returns
    -------
    array of shape (n, d), float32

    References
    ----------
    Regmi, "AdaSCALE: Adaptive Scaling for OOD Detection", 2025.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4))
    >>> perturbed_features(model, torch.randn(5, 3, 2, 2)).shape
    (5, 6)
    """
    network = unwrapped(model)
    share, size = _validate.fraction(share, "share", allow_one=True), not_negative(size, "size")
    reader = LayerReader(network, None, feature_layer=feature_layer)

    def features(inputs: Tensor) -> Tensor:
        gradient = input_gradient(network, inputs, lambda images: logits_of(network(images)).amax(dim=1).sum())
        flat = gradient.flatten(1)
        least = flat.abs().topk(max(1, int(share * flat.shape[1])), dim=1, largest=False).indices
        moves = torch.zeros_like(flat).scatter(1, least, 1.0).reshape(gradient.shape) * gradient.sign()
        with torch.inference_mode():
            return reader.read(inputs + size * moves)[FEATURES]

    return _of_batches(network, BatchReader(data, batch_size), features, PERTURBED_FEATURES, progress)


def _of_batches(
    network: nn.Module, source: BatchReader, read: Callable[[Tensor], Tensor], name: str, progress: bool
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What is read of every batch, as one array of finite rows."""
    parts: list[np.ndarray[Any, np.dtype[np.float32]]] = []
    row = 0
    with evaluating(network):
        where, dtype = device_and_dtype(network)
        for images, _ in announced(source.batches(), "perturbing", total=source.n_rows, show=progress):
            parts.append(as_finite_array(read(to_network(images, where, dtype)), name, row))
            row += len(parts[-1])
    if not parts:
        raise InvalidInput("data holds no images; at least one is needed.")
    return np.concatenate(parts)


def choose_epsilon(
    model: nn.Module,
    data: InputData,
    candidates: Sequence[float] = CANDIDATES,
    *,
    temperature: float = 1000.0,
    std: Sequence[float] | Tensor | None = None,
    batch_size: int = 128,
    progress: bool = True,
) -> EpsilonChoice:
    """Choose the step on held-out in-distribution images alone: the one up to which their mean score grows.

        sum_x S(x'_epsilon),   S(x) = max_j softmax(f(x) / T)_j

    Hsu et al. take the largest sum of all. Far beyond the first step that lowers it, the gradient says nothing any
    more, and the network may be sure of what it sees for another reason: a step of 0.08, which had the largest sum by
    that, turned ODIN upside down on a TinyImageNet network. Costs a gradient, and one forward pass per candidate. Of
    equals the smallest step wins.

    Parameters
    ----------
    model, temperature, std, batch_size, progress
        As in :func:`perturbed_logits`.
    data : tensor, array, Dataset, DataLoader, or iterable of batches
        In-distribution images the network was not trained on.
    candidates : sequence of float

    References
    ----------
    Hsu, Shen, Jin & Kira, "Generalized ODIN: Detecting Out-of-distribution Image without Learning from
    Out-of-distribution Data", 2020.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    >>> choose_epsilon(model, torch.randn(20, 3, 2, 2), candidates=(0.0, 0.01, 0.02)).epsilon
    0.02
    """
    network = unwrapped(model)
    temperature = _validate.positive(temperature, "temperature")
    steps = sorted({not_negative(value, "candidates") for value in candidates})
    if not steps:
        raise InvalidInput("candidates is empty; give at least one step.")
    source = BatchReader(data, batch_size)
    totals = [0.0] * len(steps)
    n = 0
    with evaluating(network):
        where, dtype = device_and_dtype(network)
        for images, _ in announced(source.batches(), "choosing epsilon", total=source.n_rows, show=progress):
            inputs = to_network(images, where, dtype)
            gradient = softmax_gradient(network, inputs, temperature)
            with torch.inference_mode():
                for i, epsilon in enumerate(steps):
                    logits = logits_of(network(step(inputs, gradient, epsilon, std))).cpu().to(torch.float64)
                    totals[i] += float((logits / temperature).softmax(dim=1).amax(dim=1).sum())
            n += len(images)
    if n == 0:
        raise InvalidInput("data holds no images; at least one is needed.")
    if not all(map(math.isfinite, totals)):
        raise InvalidInput("the model gave NaN or infinite logits; extract(model, data) names the row.")
    best = next((i for i, (here, further) in enumerate(pairwise(totals)) if further <= here), len(steps) - 1)
    return EpsilonChoice(steps[best], tuple(steps), tuple(total / n for total in totals))


def softmax_gradient(model: nn.Module, images: Tensor, temperature: float) -> Tensor:
    """A gradient of the sign of grad_x log max_j softmax(f(x) / T)_j, for each image; same shape as ``images``.

    With r the log-odds of the prediction being wrong, log S = -log(1 + exp(r)), so that -grad r has the sign of
    grad log S; but it does not vanish where the network is so sure that S rounds to 1.
    """

    def score(inputs: Tensor) -> Tensor:
        logits = logits_of(model(inputs))
        # times T: keeps the gradient away from underflow in half precision
        return -temperature * log_odds(logits / temperature, logits.detach().argmax(dim=1)).sum()

    return input_gradient(model, images, score)


def not_negative(value: float, name: str) -> float:
    """A finite number that is at least 0."""
    number = _validate.real(value, name)
    if not 0.0 <= number < math.inf:
        raise InvalidInput(f"{name} must be finite and at least 0; got {value!r}.")
    return number
