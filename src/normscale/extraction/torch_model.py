"""One pass of a network over some images: logits, features, further layers and labels, for every detector at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscale import _validate
from normscale.errors import InvalidInput
from normscale.extraction.batch_reader import BatchReader, ImageData, announced
from normscale.extraction.evaluation import device_and_dtype, evaluating, moved, to_network, unwrapped
from normscale.extraction.layers import LayerReader, Layers
from normscale.outputs import LOGITS, ModelOutputs


def extract(
    model: nn.Module,
    data: ImageData,
    *,
    layers: Layers = None,
    features: bool = True,
    feature_layer: str | None = None,
    ood: bool = False,
    batch_size: int = 512,
    device: str | torch.device | None = None,
    mixed_precision: bool | None = None,
    progress: bool = True,
) -> ModelOutputs:
    """Run a network over some images and keep what detectors read.

    The network is run in evaluation mode without gradients, and left as it was: modes, device and hooks are put back,
    on an error too.

    Parameters
    ----------
    model : torch.nn.Module
        Any classifier that maps images to logits (n, C).
    data : tensor, array, (images, labels), Dataset, DataLoader, or iterable of batches
        Images normalised as in training, shape (n, channels, height, width), or whatever else the model takes. The
        items of a data set are (image, label) or an image; batches are (images, labels) or images.
    layers : None, "all", or names of modules
        Further layers to keep, each as an array of its module's name with dots as underscores (``"stage1.0"`` is
        ``stage1_0``); maps are averaged over space. ``"all"`` is the stem and every stage of the networks in
        :mod:`normscale.bench.train`, or what else a model calls its ``stage_names``.
    features : bool
        False leaves the penultimate layer out.
    feature_layer : str, optional
        Name of the module whose output are the features (``"avgpool"``). By default the input of the linear layer that
        the logits come from, which is found by a look at two images.
    ood : bool
        The images are out-of-distribution, so their labels number other classes than the model's: all become -1,
        "not known". Otherwise a label that is no class of the model is an error.
    batch_size : int
        Images per pass; where the data comes in batches, theirs counts.
    device : str or torch.device, optional
        Where to run; by default where the model is. The model goes back afterwards.
    mixed_precision : bool, optional
        Autocast; by default on a GPU only. Outputs are float32 in any case.
    progress : bool
        Show a bar on a terminal when it takes longer than two seconds.

    Returns
    -------
    ModelOutputs
        ``logits`` (n, C), ``features`` (n, d) and the layers, float32; ``labels`` (n,), int64, where the data has
        labels; ``head``, weight and bias of the linear layer that makes the logits of the features. It is None where
        the logits come from something else, or ``feature_layer`` is not what goes into that layer.

    Raises
    ------
    InvalidInput
        When the model gives no logits (n, C), a number is NaN or infinite (the row is named), no feature layer is
        found, or labels do not fit.

    Examples
    --------
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    >>> extract(network, torch.zeros(10, 3, 16, 16), layers=["0"])
    ModelOutputs(n=10, logits=5, features=8, layer_0=8, head)
    """
    parts = list(
        extract_batches(
            model,
            data,
            layers=layers,
            features=features,
            feature_layer=feature_layer,
            ood=ood,
            batch_size=batch_size,
            device=device,
            mixed_precision=mixed_precision,
            progress=progress,
        )
    )
    if not parts:
        raise InvalidInput("data holds no images; at least one is needed.")
    return ModelOutputs.concatenate(parts)


def extract_batches(
    model: nn.Module,
    data: ImageData,
    *,
    layers: Layers = None,
    features: bool = True,
    feature_layer: str | None = None,
    ood: bool = False,
    batch_size: int = 512,
    device: str | torch.device | None = None,
    mixed_precision: bool | None = None,
    progress: bool = True,
) -> Iterator[ModelOutputs]:
    """What :func:`extract` gives, batch by batch, for data whose outputs do not fit into memory.

    The network is in evaluation mode until the last batch has been given, or the iterator is closed.
    """
    network = unwrapped(model)
    source = BatchReader(data, batch_size)
    reader = LayerReader(network, layers, features=features, feature_layer=feature_layer)
    row = 0
    has_labels: bool | None = None
    with moved(network, device), evaluating(network):
        where, dtype = device_and_dtype(network)
        mixed = where.type == "cuda" if mixed_precision is None else mixed_precision
        for images, labels in announced(source.batches(), "extracting", total=source.n_rows, show=progress):
            with torch.inference_mode(), torch.autocast(where.type) if mixed else nullcontext():
                found = reader.read(to_network(images, where, dtype))
            arrays = {name: finite_rows(tensor, name, row) for name, tensor in found.items()}
            known = _labels(labels, arrays[LOGITS].shape[1], row, ood)
            part = ModelOutputs(labels=known, head=reader.head, **arrays)
            if len(part) != len(images):
                raise InvalidInput(f"the model returned {len(part)} rows for {len(images)} images.")
            if has_labels not in (None, labels is not None):
                raise InvalidInput(f"some batches have labels and others, such as that of row {row}, differ.")
            has_labels = labels is not None
            yield part
            row += len(part)


def finite_rows(tensor: Tensor, name: str, first_row: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor as float32 rows; an error that names the row where one is not finite."""
    array = tensor.float().cpu().numpy()
    if not np.isfinite(array).all():
        raise _validate.invalid_row_error(array, name, first_row=first_row)
    return array


def _labels(labels: Tensor | None, n_classes: int, first_row: int, ood: bool) -> np.ndarray[Any, Any] | None:
    """Labels the model knows; -1 for those of other classes."""
    if labels is None:
        return None
    if ood:
        return np.full(len(labels), -1, dtype=np.int64)
    array = labels.cpu().numpy()
    wrong = np.flatnonzero((array < -1) | (array >= n_classes))
    if wrong.size:
        raise InvalidInput(
            f"the label of row {first_row + wrong[0]} is {array[wrong[0]]}; the model's classes are 0 to "
            f"{n_classes - 1}. If these are out-of-distribution images with labels of their own, pass ood=True."
        )
    return array
