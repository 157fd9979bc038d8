"""Detectors inside torch modules; needs torch (``pip install 'normscale[torch]'``)."""

from normscale.export.torch.model_with_detector import ModelWithDetector, ScoredOutput, attach_detector

__all__ = ["ModelWithDetector", "ScoredOutput", "attach_detector"]
