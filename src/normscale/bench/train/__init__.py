"""Networks and their training; needs torch (``pip install 'normscale[torch]'``)."""

from normscale.bench.train.network_file import NetworkInfo, load_network, save_network
from normscale.bench.train.resnet import ResidualNetwork, resnet18, resnet20
from normscale.bench.train.run import train_network
from normscale.bench.train.training import RECIPES, EpochLog, Recipe, accuracy, train

__all__ = [
    "RECIPES",
    "EpochLog",
    "NetworkInfo",
    "Recipe",
    "ResidualNetwork",
    "accuracy",
    "load_network",
    "resnet18",
    "resnet20",
    "save_network",
    "train",
    "train_network",
]
