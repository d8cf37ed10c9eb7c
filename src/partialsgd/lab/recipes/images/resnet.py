"""The residual network for 32×32 images (He et al. 2016), in the four-stage form used on CIFAR."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


@final
class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is the identity if the shape does not change."""

    def __init__(self, channels: int, width: int, stride: int, *, norm: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = _norm(width, norm)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = _norm(width, norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), _norm(width, norm))

    def forward(self, x: Tensor) -> Tensor:
        inner = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(inner)) + self.shortcut(x))


@final
class ResNet(nn.Module):
    """A stem that keeps the resolution, stages that halve it and double the width, the mean, a linear layer."""

    def __init__(self, blocks: Sequence[int], width: int, classes: int, channels: int, *, norm: bool = True) -> None:
        super().__init__()
        widths = [width, *(width * 2**stage for stage in range(len(blocks)))]
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = _norm(width, norm)
        self.stages = nn.Sequential(
            *(_stage(depth, *sides, norm) for depth, sides in zip(blocks, pairwise(widths), strict=True))
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stages(relu(self.bn1(self.conv1(images))))
        return cast(Tensor, self.fc(self.pool(features).flatten(1)))


def _stage(depth: int, before: int, after: int, norm: bool) -> nn.Sequential:
    first = BasicBlock(before, after, 1 if before == after else 2, norm=norm)
    return nn.Sequential(first, *(BasicBlock(after, after, 1, norm=norm) for _ in range(depth - 1)))


def _norm(width: int, norm: bool) -> nn.Module:
    return nn.BatchNorm2d(width) if norm else nn.Identity()


def resnet(
    blocks: Sequence[int] = (2, 2, 2, 2), width: int = 64, classes: int = 10, channels: int = 3, *, norm: bool = True
) -> ResNet:
    """Make a network with `blocks` residual blocks in each stage; the first stage has `width` channels.

    With `norm=False` there is no BatchNorm, and the initial weights are scaled so that it still trains.
    """
    if not blocks or min(blocks) < 1:
        raise ValueError(f"blocks must be at least 1 in each stage, got {tuple(blocks)}; leave the stage out")
    model = ResNet(blocks, width, classes, channels, norm=norm)
    if not norm:
        _draw(model, sum(blocks))
    return model


@torch.no_grad()
def _draw(model: ResNet, blocks: int) -> None:
    """Initialise as He et al.; a block's last convolution is smaller, so that the sum over blocks does not grow."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
            if name.endswith("conv2"):
                module.weight /= math.sqrt(blocks)


def resnet18(classes: int = 10, width: int = 64) -> ResNet:
    """ResNet-18; width=32 is the half-width network."""
    return resnet((2, 2, 2, 2), width, classes)
