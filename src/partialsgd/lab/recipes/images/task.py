"""A residual network of every size: data, network, loss and numbers of a training on images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes.images import cifar, digits, scores, work
from partialsgd.lab.recipes.images.batches import ImageBatch, ImageBatches, Standard
from partialsgd.lab.recipes.images.data import Data, Part
from partialsgd.lab.recipes.images.resnet import resnet
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.training import data_hash as digests
from partialsgd.lab.training import nesting, rates, timing
from partialsgd.lab.training.methods import method_of
from partialsgd.lab.training.task import Batches, Numbers, Split, Task
from partialsgd.nested import Nested

_BLOCKS = {"tiny": (2, 2), "resnet18": (2, 2, 2, 2)}


@final
class ImageTask:
    """What the loop trains."""

    unit: str = "images"
    score: str = "accuracy"

    def __init__(self, settings: Images, data: Data, network: Nested) -> None:
        self.settings, self.data, self.network = settings, data, network
        self.optimizers: Sequence[Optimizer] = [
            torch.optim.SGD(network.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
        ]
        self.standard = Standard(data.train.images)
        self.batches: Batches = ImageBatches(
            data.train, self.standard, size=settings.batch, seed=settings.seed, crop=settings.crop, flip=settings.flip
        )
        self.work = work.Work(network, data.train.images.shape[1:])

    def notes(self) -> list[str]:
        sizes = (len(part) for part in (self.data.train, self.data.valid, self.data.test))
        return ["{:,} images to train with, {:,} to validate, {:,} to test".format(*sizes)]

    def digest(self) -> str:
        parts = (self.data.train, self.data.valid, self.data.test)
        return digests.of_tensors(*(tensor for part in parts for tensor in (part.images, part.labels)))

    def rate(self, t: int, total: int) -> float:
        return rates.cosine(total, self.settings.warm_up)(t)

    def loss(self, model: nn.Module, batch: ImageBatch, g: GradientPass) -> Tensor:
        """Cross-entropy with the labels, or with what a teacher says."""
        images, labels = batch
        g.outputs = outputs = model(images)
        if (teacher := g.teacher) is None:
            return F.cross_entropy(outputs.float(), labels, reduction="sum")
        return ps.soft_cross_entropy(outputs.float(), teacher.float()) * len(labels)

    def glance(self, level: str) -> Numbers:
        return scores.total(self._outputs(level, "valid"), self.data.valid.labels)

    def merit(self, glances: Mapping[str, Numbers]) -> float:
        """The mean accuracy of the levels."""
        return sum(numbers["accuracy"] for numbers in glances.values()) / len(glances)

    def scores(self, level: str, split: Split) -> Numbers:
        """Loss, accuracy, and the accuracy of each class."""
        said, labels = self._outputs(level, split), self._part(split).labels
        return {**scores.total(said, labels), **scores.by_class(said, labels, self.data.names)}

    def extras(self) -> dict[str, Any]:
        """Where each smaller level and the whole network disagree, and the work of an epoch in both conventions."""
        *smaller, full = self.network.levels
        test, names = self.data.test, self.data.names
        said = {level: self._outputs(level, "test") for level in self.network.levels}
        found: dict[str, Any] = {
            f"{level} and full on the test images": scores.disagreement(
                level, said[level], said[full], test.labels, names
            )
            for level in smaller
        }
        return {**found, "training FLOPs": self._epoch_flops()}

    def flops(self, level: str, batch: ImageBatch) -> int:
        return self.work.training(level, len(batch[1]))

    def example(self) -> Tensor:
        return self.standard(self.data.train.images[:2])

    def seconds(self, plain: nn.Module) -> float:
        device = next(plain.parameters()).device
        return timing.latency(plain, self.example()[:1].to(device))

    def _part(self, split: Split) -> Part:
        return self.data.valid if split == "valid" else self.data.test

    def _outputs(self, level: str, split: Split) -> Tensor:
        return scores.outputs(self.network, level, self._part(split).images, self.standard)

    def _epoch_flops(self) -> list[dict[str, str | float]]:
        sizes = [self.batches.units(0, index) for index in range(len(self.batches))]
        method = method_of(self.settings.method)
        return self.work.epoch(work.passes(method, self.network, self.settings.seed), sizes)


def build(settings: Images) -> Task:
    """Data read, weights drawn."""
    data = _data(settings)
    torch.manual_seed(settings.seed)
    blocks = _BLOCKS[settings.network]
    norm = settings.norms != "none"
    model = resnet(blocks, settings.width, len(data.names), data.train.images.shape[1], norm=norm)
    makes: dict[str, nesting.Make] = {
        "width": ps.Width,
        "low-rank": lambda ratios: ps.LowRank(ratios, init=settings.init),
        "depth": lambda ratios: ps.Depth([f"stages.{stage}" for stage in range(len(blocks))], keep=ratios),
    }
    norms = settings.norms if norm else "separate"  # of nothing
    options: dict[str, Any] = {"seed": settings.seed, "norms": norms, "alone": settings.alone}
    example = data.train.images[:2].float() / 255
    network = nesting.family(model, settings.nest, settings.ratio, makes, **options, example=example)
    return ImageTask(settings, data, network)


def _data(settings: Images) -> Data:
    options = (settings.valid_share, settings.seed, settings.limit)
    if settings.data is not None:
        return cifar.read(settings.data, *options)
    if settings.preset != "digits":
        raise ValueError(
            f"the preset {settings.preset!r} is for CIFAR-10: give --data, the folder with its binary version, or "
            "--preset digits, which needs no file"
        )
    return digits.read(*options)
