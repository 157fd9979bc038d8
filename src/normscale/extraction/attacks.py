"""Attacks on images, and what a network's layers say of them: in-distribution stand-ins for what is strange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscale import _validate
from normscale.errors import InvalidInput
from normscale.extraction.batch_reader import BatchReader, InputData, announced
from normscale.extraction.evaluation import device_and_dtype, evaluating, logits_of, to_network, unwrapped
from normscale.extraction.input_gradient import input_gradient, log_odds, step
from normscale.extraction.layers import LayerReader, Layers
from normscale.extraction.torch_model import as_finite_array
from normscale.outputs import ATTACKED, LOGITS, ModelOutputs


def attacked_layers(
    model: nn.Module,
    data: InputData,
    *,
    layers: Layers = None,
    epsilon: float = 0.05,
    std: Sequence[float] | Tensor | None = None,
    features: bool = True,
    feature_layer: str | None = None,
    batch_size: int = 128,
    progress: bool = True,
) -> ModelOutputs:
    """Attack images by the fast gradient sign method and read the network's layers there.

    Each image x moves to where its label, or the predicted class where there is no label, becomes less likely:

        x' = x + epsilon / std * sign(grad_x loss)

    Only in-distribution images are used, so that a detector may learn from them.

    Parameters
    ----------
    model : torch.nn.Module
        Maps images to logits (n, C); left as it was, gradients of its parameters included.
    data : tensor, array, Dataset, DataLoader, or iterable of batches
        In-distribution images, as in :func:`normscale.extraction.extract`.
    layers, features, feature_layer :
        Which layers to read, as in :func:`normscale.extraction.extract`.
    epsilon : float
        Step of the attack, in units of pixels from 0 to 1 when ``std`` is given.
    std : sequence of n_channels numbers, optional
        The standard deviation the images were divided by. By default 1, a step in normalised space.
    batch_size : int
        Images at a time; a gradient keeps all their activations in memory.
    progress : bool

    Returns
    -------
    ModelOutputs
        ``attacked_features`` and one ``attacked_<layer>`` for each of the layers, float32.

    References
    ----------
    Goodfellow, Shlens & Szegedy, "Explaining and Harnessing Adversarial Examples", 2015.

    Examples
    --------
    >>> import normscale as ns
    >>> from normscale.bench.train import resnet20
    >>> from normscale.extraction import extract
    >>> _ = torch.manual_seed(0)
    >>> model, images = resnet20(3, width=4), (torch.randn(120, 3, 8, 8), torch.arange(120) % 3)
    >>> train = extract(model, images, layers=["stage1"])
    >>> attacked = attacked_layers(model, images, layers=["stage1"])
    >>> attacked
    ModelOutputs(n=120, attacked_features=16, attacked_stage1=4)
    >>> both = train.replace(**{name: attacked.array(name) for name in attacked.names})
    >>> detector = ns.Mahalanobis(layers=("stage1", "features"), shrinkage="oas", weights="attacks").fit(both)
    >>> detector.score(train).shape
    (120,)
    """
    network = unwrapped(model)
    size = _validate.positive(epsilon, "epsilon")
    reader = LayerReader(network, layers, features=features, feature_layer=feature_layer)
    if not features and not reader.modules:
        raise InvalidInput("there is nothing to read; pass layers=..., or leave features=False out.")
    source = BatchReader(data, batch_size)
    parts: list[ModelOutputs] = []
    row = 0
    with evaluating(network):
        where, dtype = device_and_dtype(network)
        for images, labels in announced(source.batches(), "attacking", total=source.n_rows, show=progress):
            inputs = to_network(images, where, dtype)
            attack = step(inputs, _loss_gradient(network, inputs, labels), size, std)
            with torch.inference_mode():
                found = reader.read(attack)
            del found[LOGITS]
            parts.append(
                ModelOutputs(
                    **{ATTACKED + name: as_finite_array(value, ATTACKED + name, row) for name, value in found.items()}
                )
            )
            row += len(images)
    if not parts:
        raise InvalidInput("data holds no images; at least one is needed.")
    return ModelOutputs.concatenate(parts)


def _loss_gradient(model: nn.Module, inputs: Tensor, labels: NDArray[Any] | None) -> Tensor:
    """Where the label, or the predicted class where there is none, becomes less likely."""

    def loss(images: Tensor) -> Tensor:
        logits = logits_of(model(images))
        target = logits.detach().argmax(dim=1)
        if labels is not None:
            known = torch.as_tensor(labels, device=target.device)
            _validate.as_labels(labels, "labels", length=len(logits), n_classes=logits.shape[1])
            target = torch.where(known >= 0, known, target)
        return log_odds(logits, target).sum()  # its gradient has the sign of cross-entropy's, and does not saturate

    return input_gradient(model, inputs, loss)
