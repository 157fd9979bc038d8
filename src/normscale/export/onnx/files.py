"""Model files: read without the weights that lie beside them, written whole or not at all."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING

from normscale._atomic import atomic_path
from normscale.errors import FileFormatError, InvalidInput, needs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto


def require(*packages: str) -> None:
    """Raise unless each optional package can be imported."""
    for package in packages:
        with needs(f"ONNX models with a detector need {package}", "onnx"):
            import_module(package)


def read_model(path: str | os.PathLike[str]) -> ModelProto:
    """The model in a file; weights in files of their own (any model over 2 GB has them) stay there."""
    import onnx

    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileFormatError(f"no model file at {name!r}.")
    try:
        model = onnx.load(name, load_external_data=False)
    except Exception as error:  # protobuf's DecodeError, which has a home of its own in every version
        raise FileFormatError(f"{name!r} is not a readable ONNX model ({error}).") from error
    if not model.graph.node:
        raise FileFormatError(f"{name!r} is not an ONNX model: it holds no nodes.")
    return model


def with_outputs(path: str | os.PathLike[str], model: ModelProto, names: Iterable[str]) -> str | bytes:
    """What a session opens to get some tensors: the file, or its model with those among the outputs that are not yet.

    Weights in files of their own are put into the model, which protobuf limits to 2 GB.
    """
    import onnx

    there = {info.name for info in model.graph.output}
    missing = [name for name in dict.fromkeys(names) if name not in there]
    if not missing:
        return os.fspath(path)
    copy = type(model)()
    copy.CopyFrom(model)
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in missing)
    if _weight_files(model):
        onnx.load_external_data_for_model(copy, os.path.dirname(os.path.realpath(path)))
    return bytes(copy.SerializeToString())


@contextmanager
def written(model: ModelProto, source: str, output: str) -> Iterator[str]:
    """Write the model to a temporary file beside ``output``; it moves there when the body has found no fault in it.

    Files with weights are used where they are if ``output`` goes to the same folder, and copied beside it otherwise.
    """
    made: list[str] = []
    try:
        with atomic_path(output) as temporary:
            made += _bring_weights(model, os.path.dirname(os.path.realpath(source)), os.path.dirname(temporary))
            with open(temporary, "wb") as file:
                file.write(model.SerializeToString())
            yield temporary
    except BaseException:
        for path in made:
            with suppress(FileNotFoundError):
                os.unlink(path)
        raise


def check(path: str) -> None:
    """Raise unless onnx finds a model file valid, shapes and types included."""
    import onnx

    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise FileFormatError(
            f"onnx.checker refuses the model with its detector ({error}). Does it accept the model without it?"
        ) from error


def _weight_files(model: ModelProto) -> list[str]:
    """Names of the files with weights that a model refers to, relative to its folder."""
    names = {
        entry.value for tensor in _tensors(model.graph) for entry in tensor.external_data if entry.key == "location"
    }
    return sorted(names)


def _bring_weights(model: ModelProto, source: str, target: str) -> list[str]:
    """Copy files with weights to another folder; the paths of those that were not there before."""
    made = []
    for name in _weight_files(model) if os.path.realpath(source) != os.path.realpath(target) else ():
        there, here = os.path.join(source, name), os.path.join(target, name)
        if os.path.isabs(name) or ".." in name.replace("\\", "/").split("/"):
            raise InvalidInput(
                f"the model keeps weights in {name!r}, outside its own folder. Write the new model to the folder "
                f"of the model, where that path holds."
            )
        if os.path.exists(here):
            if not filecmp.cmp(there, here, shallow=False):
                raise InvalidInput(f"{here!r} exists and holds other weights than the model's. Choose another folder.")
            continue
        os.makedirs(os.path.dirname(here), exist_ok=True)
        with atomic_path(here) as temporary:
            shutil.copyfile(there, temporary)
        made.append(here)
    return made


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph and of the graphs inside its nodes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)
