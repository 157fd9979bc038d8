"""The optional packages ``onnx`` and ``onnxruntime``: imported when needed, and a sentence when they are missing."""

from __future__ import annotations

from importlib import import_module

from normscale.errors import MissingExtra


def require(*packages: str) -> None:
    """Raise unless each package can be imported; what follows may then simply ``import`` them.

    Inside this room ``import onnx`` is the package of that name, not the room: imports are absolute.
    """
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            raise MissingExtra(
                f"ONNX models with a detector need {package} ({error}). Run: pip install 'normscale[onnx]'"
            ) from error
