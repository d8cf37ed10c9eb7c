"""CIFAR-10 at a quarter of its pixels, and a narrow ResNet without normalisation: the paper's Figures 2 and 3."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from partialsgd.lab.recipes.images.resnet import resnet
from studies.convergence.tasks import Examples, Problem, Task
from studies.methods.tasks import cifar10

BLOCKS, WIDTH = (1, 1, 1), 16


@lru_cache(maxsize=1)
def small_images(folder: Path) -> Examples:
    """CIFAR-10 with each square of four pixels averaged."""
    data = cifar10(folder)
    x, test_x = (F.avg_pool2d(part.x, 2) for part in (data.train, data.test))
    return Examples(x, data.train.y, test_x, data.test.y, classes=10)


def residual(data: Examples, seed: int, rate: float) -> Problem:
    """A ResNet without normalisation."""
    torch.manual_seed(seed)
    model = resnet(BLOCKS, WIDTH, data.classes, norm=False)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4)
    return Problem(model, optimizer, lambda x, y: F.cross_entropy(model(x), y), partial(_accuracy, model))


@torch.no_grad()
def _accuracy(model: nn.Module, data: Examples) -> dict[str, float]:
    parts = zip(data.test_x.split(500), data.test_y.split(500), strict=True)
    return {"accuracy": sum(int((model(x).argmax(1) == y).sum()) for x, y in parts) / len(data.test_y)}


IMAGES = Task(
    "images",
    f"CIFAR-10 (8,000 images to learn from, at 16 × 16), ResNet of {len(BLOCKS)} blocks, first width {WIDTH}, no "
    "normalisation, SGD with momentum 0.9 and weight decay 5e-4",
    "cifar-10-batches-bin",
    small_images,
    residual,
    steps=1200,
    batch=64,
    rate=0.02,
    warm_up=0,
    every=20,
    large=512,
    groups={},
    seeds=range(5),
)
