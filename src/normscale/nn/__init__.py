"""Networks, training, extraction, and the detectors' network side; needs torch (``pip install 'normscale[torch]'``)."""

from normscale.nn.extraction import extract
from normscale.nn.guard import GuardedModule, GuardedOutput, guard
from normscale.nn.head import NormScalingHead
from normscale.nn.mahalanobis import MahalanobisLayers
from normscale.nn.network_file import NetworkInfo, load_network, save_network
from normscale.nn.odin import EpsilonChoice, choose_epsilon, odin_logits
from normscale.nn.recipes import RECIPES, Recipe
from normscale.nn.resnet import ResidualNetwork, resnet18, resnet20, wide_resnet40_2
from normscale.nn.run import train_network
from normscale.nn.training import EpochLog, accuracy, train

__all__ = [
    "RECIPES",
    "EpochLog",
    "EpsilonChoice",
    "GuardedModule",
    "GuardedOutput",
    "MahalanobisLayers",
    "NetworkInfo",
    "NormScalingHead",
    "Recipe",
    "ResidualNetwork",
    "accuracy",
    "choose_epsilon",
    "extract",
    "guard",
    "load_network",
    "odin_logits",
    "resnet18",
    "resnet20",
    "save_network",
    "train",
    "train_network",
    "wide_resnet40_2",
]
