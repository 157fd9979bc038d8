"""Models by name: of transformers, timm and torchvision, ONNX files, and what a Python file makes."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from runpy import run_path
from typing import Any, NamedTuple

from normscale.detectors.registry import read_spelling
from normscale.errors import InvalidInput, MissingExtra, first_line
from normscale.extraction.preprocessing import of_timm, of_transform, of_transformers


class OpenedModel(NamedTuple):
    """A model, and where what it was trained with is recorded."""

    model: Any
    prepare: Callable[[bool], Any] = lambda texts: None
    """Whether the inputs are texts -> what makes inputs of them; None where nothing is recorded."""


def open_model(name: str, *, weights: str | None = None) -> OpenedModel:
    """Make a model by name.

    Parameters
    ----------
    name : str
        ``hf:ORG/NAME``, a folder that ``save_pretrained`` wrote, ``timm:NAME``, ``torchvision:NAME`` (these two also
        with options, ``timm:resnet18:num_classes=10``), an ``.onnx`` file, or ``FILE.py:FUNCTION``, a function without
        arguments that gives a model, or a model and what makes inputs of its pictures.
    weights : path, optional
        A state dictionary (.safetensors, or torch's format) for a model of timm, torchvision or a Python file, instead
        of the weights that would be fetched.
    """
    library, _, rest = name.partition(":")
    file, function = name.rsplit(":", 1) if ".py:" in name else (name, None)
    if library == "hf" or os.path.isdir(name):
        if weights is not None:
            raise InvalidInput("a model of transformers has its weights with it; leave weights out.")
        return _from_transformers(rest if library == "hf" else name)
    if library in ("timm", "torchvision"):
        opened = _from_library(library, rest, weights is None)
    elif function is None and not name.lower().endswith(".onnx"):
        raise InvalidInput(
            f"unknown model {name!r}: expected hf:ORG/NAME, a folder of save_pretrained, timm:NAME, torchvision:NAME, "
            "FILE.onnx or FILE.py:FUNCTION."
        )
    elif not os.path.isfile(file):
        raise InvalidInput(f"there is no file {file}.")
    else:
        opened = OpenedModel(name) if function is None else _from_python(file, function)
    if weights is not None:
        _load_weights(opened.model, weights)
    return opened


def recorded(model: Any) -> OpenedModel:
    """A model that is there already, with what it records itself."""
    if isinstance(getattr(model, "pretrained_cfg", None), dict):
        return OpenedModel(model, lambda texts: None if texts else of_timm(model))
    folder = getattr(model, "name_or_path", "")
    if folder and hasattr(model, "config"):
        return OpenedModel(model, lambda texts: of_transformers(folder, texts=texts))
    return OpenedModel(model)


def _from_transformers(folder: str) -> OpenedModel:
    transformers = _imported("transformers")
    try:
        classes = ", ".join(transformers.AutoConfig.from_pretrained(folder).architectures or ())
        if classes and "Classification" not in classes and "Teacher" not in classes:
            raise ValueError(f"it is a {classes}, which is no classifier of pictures or texts.")
        inputs = "Sequence" if "SequenceClassification" in classes else "Image"
        model = getattr(transformers, f"AutoModelFor{inputs}Classification").from_pretrained(folder)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InvalidInput(f"transformers cannot load {folder}: {first_line(error)}") from error
    return recorded(model)


def _from_library(library: str, name: str, fetch: bool) -> OpenedModel:
    """A model of timm or torchvision."""
    package = _imported("timm" if library == "timm" else "torchvision.models")
    ((plain, options),) = read_spelling(name)
    try:
        if library == "timm":
            return recorded(package.create_model(plain, pretrained=fetch, **options))
        published = package.get_model_weights(plain).DEFAULT
        model = package.get_model(plain, weights=published if fetch else None, **options)
    except Exception as error:  # of the network, of the Hub, of the library
        raise InvalidInput(
            f"{library} cannot make {plain!r}: {first_line(error)} Without a connection, pass a file of weights: "
            "weights='FILE'."
        ) from error
    return OpenedModel(model, lambda texts: None if texts else of_transform(published.transforms(), published))


def _from_python(path: str, function: str) -> OpenedModel:
    """What a function of a Python file makes: a model, or a model and its preprocessing."""
    made = run_path(path).get(function)
    if made is None:
        raise InvalidInput(f"{path} has no {function!r}; give FILE.py:FUNCTION.")
    if callable(made) and not hasattr(made, "parameters") and not hasattr(made, "predict"):
        made = made()
    if isinstance(made, tuple) and len(made) == 2:
        return OpenedModel(made[0], lambda texts: made[1])
    return recorded(made)


def _load_weights(model: Any, path: str) -> None:
    """Put a state dictionary into a model; never by a pickle."""
    if isinstance(model, str):
        raise InvalidInput("an ONNX file has its weights with it; leave weights out.")
    import torch
    from safetensors.torch import load_file

    try:
        state: Any = load_file(path) if path.endswith(".safetensors") else torch.load(path, "cpu", weights_only=True)
        for key in ("state_dict", "model"):
            state = state[key] if isinstance(state.get(key), dict) else state
        for wrapper in ("module.", "_orig_mod."):  # of DistributedDataParallel and torch.compile
            state = {name.removeprefix(wrapper): value for name, value in state.items()}
        model.load_state_dict(state)
    except Exception as error:
        raise InvalidInput(f"the weights in {path} do not fit the model: {first_line(error)}") from error


def _imported(package: str) -> Any:
    try:
        return import_module(package)
    except (ImportError, RuntimeError) as error:  # the latter of torchvision beside a torch that it was not built for
        raise MissingExtra(
            f"this model needs {package.partition('.')[0]} ({first_line(error)}). Run: pip install "
            "'normscale[networks]'; torch and torchvision must be of the same build (CPU or CUDA)."
        ) from error
