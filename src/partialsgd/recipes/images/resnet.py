"""The residual network for 32×32 images (He et al. 2016), in the four-stage form used on CIFAR."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast, final

from torch import Tensor, nn
from torch.nn.functional import relu


@final
class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is the identity where the shape stays the same."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


@final
class ResNet(nn.Module):
    """A stem that keeps the resolution, stages that halve it and double the width, the mean, a linear layer."""

    def __init__(self, blocks: Sequence[int], width: int, classes: int, channels: int) -> None:
        super().__init__()
        widths = [width, *(width * 2**stage for stage in range(len(blocks)))]
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            *(_stage(depth, before, after) for depth, (before, after) in zip(blocks, pairwise(widths), strict=True))
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stages(relu(self.bn1(self.conv1(images))))
        return cast(Tensor, self.fc(self.pool(features).flatten(1)))


def _stage(depth: int, before: int, after: int) -> nn.Sequential:
    first = BasicBlock(before, after, stride=1 if before == after else 2)
    return nn.Sequential(first, *(BasicBlock(after, after, stride=1) for _ in range(depth - 1)))


def resnet(blocks: Sequence[int] = (2, 2, 2, 2), width: int = 64, classes: int = 10, channels: int = 3) -> ResNet:
    """The network with `blocks` residual blocks in each stage, the first of which is `width` channels wide."""
    if not blocks or min(blocks) < 1:
        raise ValueError(f"blocks must be at least 1 in each stage, got {tuple(blocks)}; leave the stage out")
    return ResNet(blocks, width, classes, channels)


def resnet18(classes: int = 10, width: int = 64) -> ResNet:
    """ResNet-18; width=32 is the half-width network."""
    return resnet((2, 2, 2, 2), width, classes)
