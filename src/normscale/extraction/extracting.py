"""One pass of a classifier over some inputs: logits, features, further layers and labels, for every detector."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from normscale import _validate
from normscale.errors import InvalidInput, needs
from normscale.extraction.batch_reader import Batch, InputData, n_inputs, numbered, read_batches
from normscale.extraction.items import Items, item_batches, open_items
from normscale.extraction.models import OpenedModel, open_model, recorded
from normscale.outputs import LOGITS, ModelOutputs


def extract(
    model: Any,
    data: InputData | str | os.PathLike[str],
    *,
    layers: str | Sequence[str] | None = None,
    features: bool = True,
    feature_layer: str | None = None,
    ood: bool = False,
    batch_size: int = 128,
    device: Any = None,
    dtype: str = "float32",
    preprocess: Callable[[Any], Any] | None = None,
    weights: str | None = None,
    class_names: Sequence[str] | None = None,
    column: str | None = None,
    label: str | None = None,
    workers: int = 4,
    on_invalid: str = "raise",
    progress: bool = True,
    say: Callable[[str], object] | None = None,
) -> ModelOutputs:
    """Run a classifier over some inputs and keep what detectors read.

    A torch network is run in evaluation mode without gradients. Its modes, device and hooks are put back afterwards, on
    an error too.

    Parameters
    ----------
    model : torch.nn.Module, scikit-learn classifier, or str
        Gives logits (n, C), or an object with ``.logits``. A text names one: see :func:`open_model`.
    data : tensor, array, (inputs, labels), Dataset, DataLoader, iterable of batches, or path
        Inputs prepared as in training. Batches are (inputs, labels), inputs, or dictionaries of what the model's
        forward takes. A path is a folder of pictures, FOLDER@LIST.txt (a list of its pictures and class numbers), a
        .parquet file with a column of pictures or texts, pixels in an .npz file, or a .txt file of texts.
    layers : None, "all", or names of modules
        Further layers to keep; ``"stage1.0"`` becomes the array ``stage1_0``. Maps are averaged over space, and tokens
        over the sequence. ``"all"`` is what the model calls its ``stage_names``. For an ONNX file, names of tensors.
    features : bool
        False leaves the penultimate layer out.
    feature_layer : str, optional
        The module whose output are the features (``"avgpool"``). By default they are the input of the linear layer that
        the logits come from, which is found by a look at two inputs.
    ood : bool
        The inputs are out-of-distribution: labels become -1, "not known". Otherwise a label that is no class of the
        model is an error.
    batch_size : int
        Inputs per pass; where the data comes in batches, theirs counts.
    device : str or torch.device, optional
        Where to run; by default where the model is.
    dtype : {"float32", "bfloat16", "float16"}
        A lower one means autocast; the first batch is compared with float32. Outputs are float32 in any case.
    preprocess : callable, optional
        Makes an input of a picture (PIL), such as :class:`Preprocessing`, or arrays of a list of texts. By default what
        the model records: preprocessor_config.json, timm's pretrained_cfg.
    weights : path, optional
        A state dictionary for a model by name.
    class_names : sequence of str, optional
        The model's classes in their order, to match folders of pictures with.
    column, label : str, optional
        The columns of a .parquet file.
    workers : int
        Threads that read pictures. The rows are the same for any number.
    on_invalid : {"raise", "skip"}
        What to do with a picture that cannot be read.
    progress : bool
        Show a bar on a terminal when it takes longer than two seconds.
    say : callable, optional
        Takes sentences: the preprocessing, a lower precision's error, pictures left out. By default standard error.

    Returns
    -------
    ModelOutputs
        ``logits`` (n, C), ``features`` (n, d) and the layers, float32; ``labels`` (n,), int64, where the data has
        labels; ``head``, the linear layer that makes the logits of the features, or None where none does.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    >>> extract(network, torch.zeros(10, 3, 16, 16), layers=["0"])
    ModelOutputs(n=10, logits=5, features=8, layer_0=8, head)
    """
    parts = list(extract_batches(**dict(locals())))
    if not parts:
        raise InvalidInput("data holds no images; at least one is needed.")
    return ModelOutputs.concatenate(parts)


def extract_batches(
    model: Any,
    data: InputData | str | os.PathLike[str] | Items,
    *,
    rows: tuple[int, int] | None = None,
    paths: list[str] | None = None,
    **given: Any,
) -> Iterator[ModelOutputs]:
    """What :func:`extract` gives, batch by batch, for data whose outputs do not fit into memory.

    The network is in evaluation mode until the last batch has been given, or the iterator is closed. ``rows`` are the
    first and the end of those to read, where the data is a path or :class:`Items`. ``paths`` is a list that grows by
    where each row came from, where that is known. ``given`` are options of :func:`extract`.
    """
    options = extract_options(given)
    options.say = options.say or (lambda text: print(f"normscale: {text}", file=sys.stderr))
    if isinstance(model, (str, os.PathLike)):
        model = open_model(os.fspath(model), weights=options.weights)
    opened = model if isinstance(model, OpenedModel) else recorded(model)
    if isinstance(data, (str, os.PathLike)):
        data = open_items(os.fspath(data), column=options.column, label=options.label, on_invalid=options.on_invalid)
    first, end = rows or (0, data.n if isinstance(data, Items) else 0)
    if hasattr(opened.model, "classes_"):
        yield _from_scikit(opened.model, data, first, end, options)
        return
    network = _network(opened.model, options)
    total, batches = (
        (end - first, _batches_of_items(opened, data, (first, end), options))
        if isinstance(data, Items)
        else read_batches(data, options.batch_size)
    )
    numbers = has_labels = None
    with network.running():
        for row, batch in numbered(batches, "extracting", total=total, first=first, show=options.progress):
            arrays = network.read(batch.inputs, row)
            if has_labels not in (None, batch.labels is not None):
                raise InvalidInput(f"some batches have labels and others, such as that of row {row}, differ.")
            has_labels = batch.labels is not None
            n_classes = arrays[LOGITS].shape[1]
            numbers = numbers or _numbering(data, options, network.class_names, n_classes)
            labels = numbers(batch.labels) if has_labels else None
            if labels is not None and (wrong := (labels < -1) | (labels >= n_classes)).any():
                place = int(wrong.argmax())
                raise InvalidInput(
                    f"the label of row {row + place} is {labels[place]}; the model's classes are 0 to {n_classes - 1}. "
                    "If these are out-of-distribution images with labels of their own, pass ood=True."
                )
            part = ModelOutputs(labels=labels, head=network.head, **arrays)
            if len(part) != n_inputs(batch.inputs):
                raise InvalidInput(f"the model returned {len(part)} rows for {n_inputs(batch.inputs)} inputs.")
            if paths is not None:
                paths += batch.paths
            yield part


def extract_options(given: dict[str, Any]) -> Any:
    """The options of :func:`extract` as attributes; those that are not given have their defaults."""
    defaults = dict(extract.__kwdefaults__ or {})
    if unknown := given.keys() - defaults.keys():
        raise TypeError(f"extract has no option {sorted(unknown)[0]!r}")
    return SimpleNamespace(**{**defaults, **given})


def _network(model: Any, options: Any) -> Any:
    """The network, ready to be run: a TorchNetwork or an OnnxNetwork."""
    if isinstance(model, str):
        from normscale.extraction.onnx_model import OnnxNetwork

        if options.dtype != "float32":
            raise InvalidInput(f"an ONNX file is run as it is; leave dtype={options.dtype!r} out.")
        return OnnxNetwork(model, options)
    with needs("reading a network's outputs needs torch", "torch"):
        from normscale.extraction.torch_model import TorchNetwork
    own = ("layers", "features", "feature_layer", "device", "dtype", "say")
    return TorchNetwork(model, **{name: getattr(options, name) for name in own})


def _batches_of_items(opened: OpenedModel, items: Items, rows: tuple[int, int], options: Any) -> Iterator[Batch]:
    """Batches of inputs made of pictures or texts; how is said, and never guessed."""
    prepare: Callable[[Any], Any] | None = options.preprocess or opened.prepare(items.texts)
    if prepare is None and items.texts:
        raise InvalidInput("the model has no tokenizer beside it, so texts cannot become its inputs. Pass batches.")
    if prepare is None:
        raise InvalidInput(
            "the model does not record how pictures become its inputs, and that is not guessed. Pass "
            "preprocess=Preprocessing(size=224, resize=256, mean=..., std=...), as it was trained with (on the "
            "command line --size, --resize, --mean, --std)."
        )
    if not options.preprocess:
        options.say(f"preprocessing: {prepare}")
    skip = _validate.one_of(options.on_invalid, "on_invalid", _validate.ON_INVALID) == "skip"
    skipped = (lambda text: options.say(f"left out: {text}")) if skip else None
    workers = _validate.at_least(options.workers, "workers", 1)
    return item_batches(items, prepare, rows, options.batch_size, workers, skipped)


def _numbering(data: Any, options: Any, recorded_names: dict[str, int] | None, n_classes: int) -> Callable[[Any], Any]:
    """How labels become class numbers: of folders by the model's names, or by their order where they are as many.

    What is returned gives None for labels that mean nothing to the model.
    """
    folders = data.class_names if isinstance(data, Items) else None
    if options.ood:
        return lambda labels: np.full(len(labels), -1, dtype=np.int64)
    if folders is None:
        return lambda labels: labels
    names = {name: number for number, name in enumerate(options.class_names or ())} or recorded_names or {}
    table = np.array([names.get(name, -1) for name in folders])
    strange = [name for name in folders if name not in names]
    if 0 < len(strange) < len(folders):
        options.say(
            f"{len(strange)} folders, such as {strange[0]!r}, are no classes of the model: their labels are -1."
        )
    if len(strange) < len(folders):
        return lambda labels: table[labels]
    if len(folders) == n_classes:
        options.say(f"labels: the {n_classes} folders are the model's classes in the order of their names.")
        return lambda labels: labels
    options.say(
        f"labels are left out: there are {len(folders)} folders and {n_classes} classes, and which is which is not "
        "known. Pass class_names, the model's classes in their order."
    )
    return lambda labels: None


def _from_scikit(classifier: Any, data: Any, first: int, end: int, options: Any) -> ModelOutputs:
    """Outputs of a fitted classifier of scikit-learn."""
    from normscale.sklearn import classifier_outputs

    inputs, labels = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if isinstance(data, Items):
        inputs, labels = zip(*((item.content, item.label) for item in data.between(first, end)), strict=True)
        inputs, labels = inputs if data.texts else np.stack(inputs), None if None in labels else labels
    outputs = classifier_outputs(classifier, inputs, labels)
    if options.ood and labels is not None:
        outputs = outputs.replace(labels=np.full(len(outputs), -1))
    return outputs if options.features else ModelOutputs(outputs.logits, labels=outputs.labels)
