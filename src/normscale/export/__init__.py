"""Detectors inside ONNX models and torch modules."""
