"""The network side of the Mahalanobis detector: distances in several layers, and what joins them into one score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from normscale import _validate
from normscale._validate import FloatArray
from normscale.detectors.mahalanobis import ClassSums, Mahalanobis
from normscale.errors import InvalidInput
from normscale.nn._activations import (
    by_name,
    classifier_input,
    device_and_dtype,
    evaluating,
    logits_of,
    reading,
    to_network,
    unwrapped,
)
from normscale.nn._batches import ImageSource, Source, announced
from normscale.nn._logistic import logistic_weights
from normscale.nn.odin import input_gradient, log_odds, not_negative, step


@dataclass(frozen=True)
class MahalanobisLayers:
    """Squared Mahalanobis distances in one or several layers of a network, as one score; frozen.

    Each layer's activations, averaged over space, are compared with the class means under the common covariance of
    that layer. The score is the weighted sum of the distances to the nearest means, HIGHER = MORE OoD:

        score(x) = sum_l w_l min_c (f_l(x) - mu_lc)^T S_l^-1 (f_l(x) - mu_lc)

    Only in-distribution images are ever used: training images for means and covariances, held-out ones and attacks on
    them for the weights.

    Attributes
    ----------
    names : tuple of str
        The layers; ``"input of <name>"`` is what goes into a module.
    detectors : tuple of normscale.Mahalanobis
        One fitted detector for each layer; they can be saved, and score activations without the network.
    weights : array (n_layers,)
    epsilon : float
        Step of the input perturbation; 0 for none.
    std : tuple of float, optional
        The standard deviation of each channel, by which steps are divided.

    References
    ----------
    Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", 2018.

    Examples
    --------
    >>> from normscale.nn import resnet20
    >>> _ = torch.manual_seed(0)
    >>> model, images, labels = resnet20(3, width=4), torch.randn(120, 3, 8, 8), torch.arange(120) % 3
    >>> layers = MahalanobisLayers.fit(model, (images, labels), layers="all", shrinkage="oas")
    >>> layers.names
    ('stem', 'stage1', 'stage2', 'stage3')
    >>> layers = layers.with_fgsm_weights(model, torch.randn(50, 3, 8, 8))
    >>> layers.score(model, torch.randn(5, 3, 8, 8)).shape
    (5,)
    """

    names: tuple[str, ...]
    detectors: tuple[Mahalanobis, ...]
    weights: FloatArray
    epsilon: float = 0.0
    std: tuple[float, ...] | None = None

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        data: ImageSource,
        *,
        layers: str | Sequence[str] = "penultimate",
        shrinkage: float | str = 0.0,
        epsilon: float = 0.0,
        std: Sequence[float] | None = None,
        batch_size: int = 512,
        progress: bool = True,
    ) -> Self:
        """Class means and common covariance of each layer, in one pass over the training images.

        Parameters
        ----------
        model : torch.nn.Module
        data : (images, labels), Dataset, DataLoader, or iterable of (images, labels) batches
            As in :func:`normscale.nn.extract`; every image needs its class.
        layers : {"penultimate", "all"} or sequence of str
            The input of the classifier; the stem and every stage of the networks of :mod:`normscale.nn`; or modules
            by name, for any network.
        shrinkage : float or "oas"
            As in :class:`normscale.Mahalanobis`.
        epsilon : float
            Step of the input perturbation in scores, x' = x - epsilon / std * sign(grad_x distance), for each layer
            by its own gradient; 0 for none.
        std : sequence of n_channels numbers, optional
            The standard deviation the images were divided by.
        batch_size : int
        progress : bool

        Returns
        -------
        MahalanobisLayers with equal weights that sum to 1
        """
        network = unwrapped(model)
        template = Mahalanobis(shrinkage)
        source = Source(data, batch_size)
        names: tuple[str, ...] = ()
        sums: list[ClassSums] = []
        row = 0
        with evaluating(network):
            where, dtype = device_and_dtype(network)
            for images, labels in announced(source.batches(), "fitting", total=source.n_rows, show=progress):
                if labels is None:
                    raise InvalidInput("Mahalanobis needs the class of every training image; data gives no labels.")
                inputs = to_network(images, where, dtype)
                with torch.inference_mode():
                    if not names:
                        names = layer_names(network, layers, inputs[:2])
                        sums = [ClassSums() for _ in names]
                    logits, activations = _forward(network, inputs, names)
                classes = _validate.as_labels(
                    labels.cpu().numpy(), f"labels from row {row} on", length=len(images), n_classes=logits.shape[1]
                )
                for total, activation in zip(sums, activations, strict=True):
                    total.add(activation.cpu().numpy(), classes, logits.shape[1])
                row += len(images)
        if not sums:
            raise InvalidInput("data holds no images; at least one is needed.")
        detectors = tuple(Mahalanobis(template.shrinkage).fit_sums(total) for total in sums)
        weights = np.full(len(names), 1.0 / len(names))
        return cls(
            names, detectors, weights, not_negative(epsilon, "epsilon"), None if std is None else tuple(map(float, std))
        )

    def with_weights(self, weights: ArrayLike) -> Self:
        """The same layers with other weights."""
        vector = _validate.as_finite_vector(weights, "weights")
        if vector.shape != self.weights.shape:
            raise InvalidInput(f"weights must be {len(self.names)} numbers, one for each layer; got {vector.size}.")
        return replace(self, weights=vector)

    def with_fgsm_weights(
        self,
        model: nn.Module,
        data: ImageSource,
        *,
        fgsm_epsilon: float = 0.05,
        ridge: float = 1.0,
        batch_size: int = 128,
        progress: bool = True,
    ) -> Self:
        """Weights by logistic regression of held-out in-distribution images against attacks on them.

        The attacks are made by the fast gradient sign method, x + fgsm_epsilon / std * sign(grad_x loss), where the
        loss is that of the label, or of the predicted class where there is no label. No out-of-distribution image is
        used.

        Parameters
        ----------
        model : torch.nn.Module
        data : tensor, array, Dataset, DataLoader, or iterable of batches
            In-distribution images that :meth:`fit` has not seen.
        fgsm_epsilon : float
            Step of the attack, in units of pixels from 0 to 1 when ``std`` is known.
        ridge : float
            Penalty on the squared weights of standardised distances: attacks are often told apart without an error,
            and then only a penalty keeps the weights finite.

        References
        ----------
        Goodfellow, Shlens & Szegedy, "Explaining and Harnessing Adversarial Examples", 2015.
        """
        network = unwrapped(model)
        size = _validate.positive(fgsm_epsilon, "fgsm_epsilon")
        clean, attacked = [], []
        source = Source(data, batch_size)
        with evaluating(network):
            where, dtype = device_and_dtype(network)
            for images, labels in announced(source.batches(), "attacking", total=source.n_rows, show=progress):
                inputs = to_network(images, where, dtype)
                attack = step(inputs, _loss_gradient(network, inputs, labels), size, self.std)
                clean.append(self._distances(network, inputs))
                attacked.append(self._distances(network, attack))
        if not clean:
            raise InvalidInput("data holds no images; at least one is needed.")
        distances = np.concatenate([*clean, *attacked])
        half = len(distances) // 2
        weights = logistic_weights(distances, np.arange(len(distances)) >= half, ridge=ridge)
        return self.with_weights(weights)

    def distances(
        self, model: nn.Module, data: ImageSource, *, batch_size: int = 128, progress: bool = True
    ) -> FloatArray:
        """Squared distance to the nearest class mean in each layer; shape (n, n_layers)."""
        network = unwrapped(model)
        source = Source(data, batch_size)
        parts = []
        row = 0
        with evaluating(network):
            where, dtype = device_and_dtype(network)
            for images, _ in announced(source.batches(), "scoring", total=source.n_rows, show=progress):
                part = self._distances(network, to_network(images, where, dtype))
                if not np.isfinite(part).all():
                    raise _validate.invalid_row_error(part, "distances", first_row=row)
                parts.append(part)
                row += len(part)
        return np.concatenate(parts) if parts else np.empty((0, len(self.names)))

    def score(self, model: nn.Module, data: ImageSource, *, batch_size: int = 128, progress: bool = True) -> FloatArray:
        """The weighted sum of the distances; shape (n,), higher = more out-of-distribution."""
        scores: FloatArray = self.distances(model, data, batch_size=batch_size, progress=progress) @ self.weights
        return scores

    def _distances(self, network: nn.Module, inputs: Tensor) -> FloatArray:
        """Distances (n, n_layers) of images that are already where the network is."""
        rulers = [_Ruler(detector, inputs.device) for detector in self.detectors]
        if self.epsilon == 0.0:
            with torch.inference_mode():
                _, activations = _forward(network, inputs, self.names)
                columns = [ruler(activation) for ruler, activation in zip(rulers, activations, strict=True)]
        else:
            columns = []
            for name, ruler in zip(self.names, rulers, strict=True):

                def total(images: Tensor, name: str = name, ruler: _Ruler = ruler) -> Tensor:
                    return ruler(_forward(network, images, (name,))[1][0]).sum()

                moved = step(inputs, input_gradient(network, inputs, total), -self.epsilon, self.std)
                with torch.inference_mode():
                    columns.append(ruler(_forward(network, moved, (name,))[1][0]))
        distances: FloatArray = torch.stack(columns, dim=1).cpu().numpy()
        return distances


class _Ruler:
    """A fitted detector's distance in torch, so that it has a gradient; float64, as in numpy."""

    def __init__(self, detector: Mahalanobis, device: torch.device) -> None:
        self.centre = torch.from_numpy(detector.means_.mean(axis=0)).to(device)
        self.whitening = torch.from_numpy(detector.whitening_).to(device)
        self.means = (torch.from_numpy(detector.means_).to(device) - self.centre) @ self.whitening
        self.squares = (self.means * self.means).sum(dim=1)

    def __call__(self, activations: Tensor) -> Tensor:
        """Squared distance to the nearest mean; (n,)."""
        white = (activations.to(torch.float64) - self.centre) @ self.whitening
        nearest = torch.addmm(self.squares, white, self.means.T, alpha=-2.0).amin(dim=1)
        return ((white * white).sum(dim=1) + nearest).clamp_min(0.0)


def layer_names(model: nn.Module, layers: str | Sequence[str], images: Tensor) -> tuple[str, ...]:
    """The layers that were asked for, by the names hooks know them under."""
    if layers == "penultimate":
        return (classifier_input(model, images),)
    if layers == "all":
        names = getattr(model, "stage_names", None)
        if names is None:
            raise InvalidInput(
                'layers="all" means the stages of the networks in normscale.nn; this model names none (it has no '
                f"stage_names). Pass their names, such as layers={[name for name, _ in model.named_children()][-3:]}."
            )
        return tuple(names)
    if isinstance(layers, str) or not layers:
        raise InvalidInput(f'layers must be "penultimate", "all", or a sequence of names; got {layers!r}.')
    return tuple(layers)


def _forward(model: nn.Module, inputs: Tensor, names: Sequence[str]) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the activations (n, d) of the layers."""
    with reading(model, names) as found:
        logits = logits_of(model(inputs))
        return logits, [by_name(found, name) for name in names]


def _loss_gradient(model: nn.Module, inputs: Tensor, labels: Tensor | None) -> Tensor:
    """Where the label, or the predicted class where there is none, becomes less likely."""

    def loss(images: Tensor) -> Tensor:
        logits = logits_of(model(images))
        target = logits.detach().argmax(dim=1)
        if labels is not None:
            known = labels.to(target.device)
            _validate.as_labels(labels.cpu().numpy(), "labels", length=len(logits), n_classes=logits.shape[1])
            target = torch.where(known >= 0, known, target)
        return log_odds(logits, target).sum()  # its gradient has the sign of cross-entropy's, and does not saturate

    return input_gradient(model, inputs, loss)
