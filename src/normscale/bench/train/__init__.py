"""Networks and their training; needs torch (``pip install 'normscale[torch]'``)."""

from normscale.bench.train.network_file import load_network, save_network
from normscale.bench.train.resnet import resnet18, resnet20
from normscale.bench.train.training import RECIPES

__all__ = ["RECIPES", "load_network", "resnet18", "resnet20", "save_network"]
