"""Networks, training, extraction, models that carry a detector; needs torch (``pip install 'normscale[torch]'``)."""

from normscale.nn.attacks import attacked_layers
from normscale.nn.extraction import extract
from normscale.nn.model_with_detector import ModelWithDetector, ScoredOutput, attach_detector
from normscale.nn.network_file import NetworkInfo, load_network, save_network
from normscale.nn.norm_scaling_head import NormScalingHead
from normscale.nn.perturbation import EpsilonChoice, choose_epsilon, perturbed_logits
from normscale.nn.recipes import RECIPES, Recipe
from normscale.nn.resnet import ResidualNetwork, resnet18, resnet20, wide_resnet40_2
from normscale.nn.run import train_network
from normscale.nn.training import EpochLog, accuracy, train

__all__ = [
    "RECIPES",
    "EpochLog",
    "EpsilonChoice",
    "ModelWithDetector",
    "NetworkInfo",
    "NormScalingHead",
    "Recipe",
    "ResidualNetwork",
    "ScoredOutput",
    "accuracy",
    "attach_detector",
    "attacked_layers",
    "choose_epsilon",
    "extract",
    "load_network",
    "perturbed_logits",
    "resnet18",
    "resnet20",
    "save_network",
    "train",
    "train_network",
    "wide_resnet40_2",
]
