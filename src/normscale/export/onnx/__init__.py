"""ONNX classifiers that carry their detector; needs onnx and onnxruntime (``pip install 'normscale[onnx]'``)."""

from normscale.export.onnx.attaching import GraphWithDetector, attach_detector
from normscale.export.onnx.exporting import Agreement, Exported, export_with_detector
from normscale.export.onnx.running import DetectorSession, classifier_output, initial_state

__all__ = [
    "Agreement",
    "DetectorSession",
    "Exported",
    "GraphWithDetector",
    "attach_detector",
    "classifier_output",
    "export_with_detector",
    "initial_state",
]
