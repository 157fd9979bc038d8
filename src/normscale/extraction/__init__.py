"""A network's named outputs; needs torch (``pip install 'normscale[torch]'``)."""

from normscale.errors import MissingExtra

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        f"reading a network's outputs needs torch ({error}). Run: pip install 'normscale[torch]'"
    ) from error

from normscale.extraction.attacks import attacked_layers
from normscale.extraction.perturbation import EpsilonChoice, choose_epsilon, perturbed_logits
from normscale.extraction.torch_model import extract, extract_batches

__all__ = ["EpsilonChoice", "attacked_layers", "choose_epsilon", "extract", "extract_batches", "perturbed_logits"]
