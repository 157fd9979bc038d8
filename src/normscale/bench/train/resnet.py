"""Residual networks in their form for small images: ResNet-18 and ResNet-20.

Every network has ``features(x)`` (the penultimate layer, (n, d)) and ``forward(x)`` (logits, (n, C)); ``stage_names``
are its layers for detectors that read several. Images of any size work, since the last pooling is global.

He et al., "Deep Residual Learning for Image Recognition", 2016.
"""

from __future__ import annotations

from torch import Tensor, nn

from normscale import _validate


def _convolution(n_in: int, n_out: int, stride: int = 1, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, size, stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two convolutions and a way around them; normalisation after each convolution."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(n_in, n_out, stride)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = _convolution(n_out, n_out)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and n_in == n_out
            else nn.Sequential(_convolution(n_in, n_out, stride, size=1), nn.BatchNorm2d(n_out))
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        activated: Tensor = self.relu(out)
        return activated


class ResidualNetwork(nn.Module):
    """A stem, some stages of residual blocks, global average pooling, and a linear classifier.

    Use :func:`resnet18` or :func:`resnet20`.
    """

    def __init__(self, widths: tuple[int, ...], blocks_per_stage: int, num_classes: int, in_channels: int) -> None:
        super().__init__()
        _validate.at_least(widths[0], "width", 1)
        _validate.at_least(num_classes, "num_classes", 2)
        _validate.at_least(in_channels, "in_channels", 1)
        width = widths[0]
        self.stem = nn.Sequential(_convolution(in_channels, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.n_stages = len(widths)
        for i, out_width in enumerate(widths):
            blocks = []
            for j in range(blocks_per_stage):
                blocks.append(BasicBlock(width, out_width, stride=2 if i > 0 and j == 0 else 1))
                width = out_width
            setattr(self, f"stage{i + 1}", nn.Sequential(*blocks))
        self.classifier = nn.Linear(width, num_classes)
        self.n_features = width
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stem and of every stage."""
        return ("stem", *(f"stage{i + 1}" for i in range(self.n_stages)))

    def features(self, x: Tensor) -> Tensor:
        """The penultimate layer; (n, n_features)."""
        for name in self.stage_names:
            x = getattr(self, name)(x)
        pooled: Tensor = x.mean(dim=(2, 3))
        return pooled

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


def resnet18(num_classes: int, width: int = 64, in_channels: int = 3) -> ResidualNetwork:
    """ResNet-18 for 32 x 32 images: a 3 x 3 stem and no max-pooling."""
    return ResidualNetwork((width, 2 * width, 4 * width, 8 * width), 2, num_classes, in_channels)


def resnet20(num_classes: int, width: int = 16, in_channels: int = 3) -> ResidualNetwork:
    """ResNet-20 of the CIFAR experiments: three stages of three blocks, projections where the shape changes."""
    return ResidualNetwork((width, 2 * width, 4 * width), 3, num_classes, in_channels)


NETWORKS = {"resnet18": resnet18, "resnet20": resnet20}
