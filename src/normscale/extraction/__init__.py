"""A classifier's named outputs: torch, transformers, timm, torchvision, ONNX and scikit-learn.

What moves inputs along a gradient is in :mod:`normscale.extraction.perturbing`, which needs torch.
"""

from normscale.extraction.extracting import extract, extract_batches
from normscale.extraction.models import open_model
from normscale.extraction.preprocessing import Preprocessing

__all__ = ["Preprocessing", "extract", "extract_batches", "open_model"]
