"""The opset of a model, raised where it is too old for the nodes of a detector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normscale.errors import InvalidInput

if TYPE_CHECKING:
    from onnx import ModelProto

MINIMUM = 11
"""CumSum, and comparisons in float64, came with it; what else is added is older."""


def opset_of(model: ModelProto) -> int:
    """The version of the default domain; 0 when the model does not use it."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def raised(model: ModelProto) -> ModelProto:
    """A copy of the model, of opset 11 at least."""
    from onnx import version_converter

    copy = type(model)()
    copy.CopyFrom(model)
    version = opset_of(model)
    if version == 0:  # nothing of the default domain in it, so nothing to convert
        copy.opset_import.add(domain="", version=MINIMUM)
    elif version < MINIMUM:
        try:
            copy = version_converter.convert_version(model, MINIMUM)
        except Exception as error:  # RuntimeError and others, without a common base
            raise InvalidInput(
                f"the model has opset {version}; a detector needs {MINIMUM}, and onnx cannot raise it ({error}). "
                f"Export the model again with opset {MINIMUM} or later."
            ) from error
        del copy.metadata_props[:]  # the converter may lose them
        copy.metadata_props.extend(model.metadata_props)
    return copy
