"""Detectors inside torch modules; needs torch (``pip install 'normscale[torch]'``)."""

from normscale.export.torch.model_with_detector import ModelWithDetector, ScoredOutput

__all__ = ["ModelWithDetector", "ScoredOutput"]
