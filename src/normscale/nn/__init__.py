"""Networks, training, extraction, and the detectors' network side; needs torch (``pip install 'normscale[torch]'``)."""

from normscale.nn.resnet import ResidualNetwork, resnet18, resnet20, wide_resnet40_2

__all__ = ["ResidualNetwork", "resnet18", "resnet20", "wide_resnet40_2"]
