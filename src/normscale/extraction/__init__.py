"""A classifier's named outputs: torch, transformers, timm, torchvision, ONNX and scikit-learn."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from normscale.errors import MissingExtra
from normscale.extraction.extracting import extract, extract_batches
from normscale.extraction.models import open_model
from normscale.extraction.preprocessing import Preprocessing

if TYPE_CHECKING:
    from normscale.extraction.perturbing import attacked_layers, choose_epsilon, perturbed_features, perturbed_logits

__all__ = [
    "Preprocessing",
    "attacked_layers",
    "choose_epsilon",
    "extract",
    "extract_batches",
    "open_model",
    "perturbed_features",
    "perturbed_logits",
]


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.perturbing"), name)
    except ImportError as error:
        raise MissingExtra(f"{name} needs torch ({error}). Run: pip install 'normscale[torch]'") from error
