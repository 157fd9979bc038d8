"""ONNX classifiers that carry their guard; needs onnx and onnxruntime (``pip install 'normscale[onnx]'``)."""

from normscale.onnx.agreement import Agreement
from normscale.onnx.exporting import Exported, export_guarded
from normscale.onnx.guarding import Guarded, add_guard
from normscale.onnx.session import GuardedSession, initial_state

__all__ = ["Agreement", "Exported", "Guarded", "GuardedSession", "add_guard", "export_guarded", "initial_state"]
