"""A classifier that somebody else runs: which of its tensors is wanted, and a model that gives it."""

from __future__ import annotations

import os
from typing import NamedTuple

from normscale.export.onnx.files import read_model, weight_files
from normscale.export.onnx.packages import require
from normscale.export.onnx.tensors import find


class ClassifierOutput(NamedTuple):
    """Where an array of a classifier comes from."""

    tensor: str
    """Its name in the model."""
    model: bytes | None
    """The model with that tensor among its outputs; None where it is an output already and the file will do."""
    note: str
    """What a person should know about the choice; empty if nothing."""
    is_asked_for: bool = False
    """Whether somebody named it."""


def classifier_output(
    path: str | os.PathLike[str], width: int | None, *, role: str = "logits", name: str | None = None
) -> ClassifierOutput:
    """Find the logits (or features) of an ONNX classifier, also before a softmax, without running it.

    Parameters
    ----------
    path : path of the model
    width : int, optional
        Columns of the array, as the detector was fitted on.
    role : {"logits", "features"}
    name : str, optional
        The tensor's name, also of one inside the model. Without it: the only output of that width or, if that comes
        out of a softmax, the tensor that goes into it.

    Raises
    ------
    InvalidInput
        With a sentence that names the candidates, where there are several or none.

    Notes
    -----
    Weights in files of their own are put into ``model``, which protobuf limits to 2 GB.
    """
    require("onnx")
    model = read_model(path)
    found = find(model, role, width, name)
    if found.is_output:
        return ClassifierOutput(found.name, None, found.note, found.is_asked_for)
    from onnx import ValueInfoProto

    model.graph.output.append(ValueInfoProto(name=found.name))
    folder = os.path.dirname(os.path.realpath(path))
    if weight_files(model):
        import onnx

        onnx.load_external_data_for_model(model, folder)
    return ClassifierOutput(found.name, model.SerializeToString(), found.note, found.is_asked_for)
