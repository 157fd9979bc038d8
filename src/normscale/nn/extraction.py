"""One pass of a network over some images: logits, penultimate features and labels, for every detector at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscale import _validate
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
from normscale.nn._batches import ImageSource, Source, announced, bytes_of
from normscale.nn._parts import PartStore
from normscale.outputs import ModelOutputs


def extract(
    model: nn.Module,
    data: ImageSource,
    *,
    layer: str | None = None,
    features: bool = True,
    ood: bool = False,
    batch_size: int = 512,
    device: str | torch.device | None = None,
    mixed_precision: bool | None = None,
    path: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> ModelOutputs:
    """Run a network over some images and keep what detectors read.

    The network is run in evaluation mode without gradients, and left as it was: modes, device and hooks are put back,
    on an error too.

    Parameters
    ----------
    model : torch.nn.Module
        Any classifier that maps images to logits (n, C).
    data : tensor, array, (images, labels), normscale.data.Batches, Dataset, DataLoader, or iterable of batches
        Images normalised as in training, shape (n, channels, height, width), or whatever else the model takes. The
        items of a data set are (image, label) or an image; batches are (images, labels) or images.
    layer : str, optional
        Name of the module whose output are the features (``"avgpool"``); maps are averaged over space. By default the
        input of the classifier, the linear layer that the logits come from.
    features : bool
        False keeps logits and labels only.
    ood : bool
        The images are out-of-distribution, so their labels number other classes than the model's: all become -1,
        "not known". Otherwise a label that is no class of the model is an error.
    batch_size : int
        Images per pass; where the data comes in batches, theirs counts.
    device : str or torch.device, optional
        Where to run; by default where the model is. The model goes back afterwards.
    mixed_precision : bool, optional
        Autocast; by default on a GPU only. Outputs are float32 in any case.
    path : str or path, optional
        A ``.safetensors`` table to be written, as :func:`normscale.read_table` reads it. Finished parts are kept in the
        folder ``<path>.parts``, so that a killed extraction, called again, goes on where it stopped and, with the same
        batch size, ends with the same bits; once finished, the table is read and nothing is run. Memory stays
        bounded: the arrays returned are mapped from the file. A table begun with another model, other data or another
        layer is refused. Of data without random access the rows already done are read again, but not run.
    progress : bool
        Show a bar on a terminal when it takes longer than two seconds.

    Returns
    -------
    ModelOutputs
        ``logits`` (n, C) and ``features`` (n, d), float32; ``labels`` (n,), int64, where the data has labels.

    Raises
    ------
    InvalidInput
        When the model gives no logits (n, C), a logit or feature is NaN or infinite (the row is named), no feature
        layer is found, or labels do not fit.

    Examples
    --------
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    >>> extract(network, torch.zeros(10, 3, 16, 16))
    ModelOutputs(n=10, logits=5, features=8)
    """
    network = unwrapped(model)
    source = Source(data, batch_size)
    store: PartStore | None = None
    if path is not None:
        if source.is_shuffled:
            raise InvalidInput("a shuffled DataLoader gives another order each time; with path= pass shuffle=False.")
        about = {
            "model": model_fingerprint(network),
            "data set": source.fingerprint(),
            "layer": [features, layer],
            "value of ood": ood,
        }
        store = PartStore(path, about)
        if store.finished:
            return store.finish()
    parts: list[ModelOutputs] = []
    row = store.n_rows if store else 0
    with moved(network, device), evaluating(network), ExitStack() as stack:
        where, dtype = device_and_dtype(network)
        mixed = where.type == "cuda" if mixed_precision is None else mixed_precision
        if store:
            stack.callback(store.flush)  # on an error too: what is done need not be done again
        name = ""
        found: dict[str, Tensor] = {}
        has_labels: bool | None = None
        batches = announced(source.batches(row), "extracting", total=source.n_rows, done=row, show=progress)
        for images, labels in batches:
            inputs = to_network(images, where, dtype)
            with torch.inference_mode(), torch.autocast(where.type) if mixed else nullcontext():
                if features and not name:
                    name = layer if layer is not None else classifier_input(network, inputs[:2])
                    found = stack.enter_context(reading(network, [name]))
                logits = _rows(logits_of(network(inputs)), "logits", row)
                hidden = _rows(by_name(found, name), "features", row) if features else None
            part = ModelOutputs(logits, hidden, _labels(labels, logits.shape[1], row, ood))
            if len(part) != len(images):
                raise InvalidInput(f"the model returned {len(part)} rows for {len(images)} images.")
            if has_labels not in (None, labels is not None):
                raise InvalidInput(f"some batches have labels and others, such as that of row {row}, differ.")
            has_labels = labels is not None
            if store:
                store.add(part)
            else:
                parts.append(part)
            row += len(part)
    if store:
        return store.finish()
    if not parts:
        raise InvalidInput("data holds no images; at least one is needed.")
    return ModelOutputs.concatenate(parts)


@contextmanager
def moved(model: nn.Module, device: str | torch.device | None) -> Iterator[None]:
    """Have the model on a device for a while."""
    home, _ = device_and_dtype(model)
    target = home if device is None else torch.device(device)
    if target == home:
        yield
        return
    model.to(target)
    try:
        yield
    finally:
        model.to(home)


def model_fingerprint(model: nn.Module) -> str:
    """A hash of the network's class, parameters and buffers."""
    digest = hashlib.sha256(type(model).__qualname__.encode())
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(bytes_of(value))
    return digest.hexdigest()


def _rows(tensor: Tensor, name: str, first_row: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor as float32 rows, all finite."""
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
