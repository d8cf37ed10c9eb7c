"""The images recipe as a task for the loop: data, network, loss and scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes.images import cifar, export, scores
from partialsgd.lab.recipes.images.batches import ImageBatch, ImageBatches, Standardise
from partialsgd.lab.recipes.images.data import Data, Part, read_digits
from partialsgd.lab.recipes.images.flops import ImageFlops, passes_per_step
from partialsgd.lab.recipes.images.resnet import resnet
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.training import data_hash, rates
from partialsgd.lab.training.nesting import MakeSpec, nest_model
from partialsgd.lab.training.task import Batches, ExportDetails, Numbers, Split, Task
from partialsgd.lab.training.timing import latency
from partialsgd.method import Method
from partialsgd.nested import Nested

_BLOCKS = {"tiny": (2, 2), "resnet18": (2, 2, 2, 2)}


@final
class ImageTask:
    """A residual network that learns to classify images at every level."""

    unit: str = "images"
    score: str = "accuracy"
    signature: str | None = None
    formats: Sequence[str] = ("safetensors", "onnx")

    def __init__(self, settings: Images, data: Data, network: Nested) -> None:
        self.settings, self.data, self.network = settings, data, network
        self.optimizers: Sequence[Optimizer] = [
            torch.optim.SGD(network.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
        ]
        self.standardise = Standardise(data.train.images)
        options: dict[str, Any] = {"seed": settings.seed, "crop": settings.crop, "flip": settings.flip}
        self.batches: Batches = ImageBatches(data.train, self.standardise, size=settings.batch, **options)
        self._flops = ImageFlops(network, data.train.images.shape[1:])

    def notes(self) -> list[str]:
        sizes = (len(part) for part in (self.data.train, self.data.valid, self.data.test))
        return ["{:,} training, {:,} validation and {:,} test images".format(*sizes)]

    def data_hash(self) -> str:
        parts = (self.data.train, self.data.valid, self.data.test)
        return data_hash.hash_tensors(*(tensor for part in parts for tensor in (part.images, part.labels)))

    def learning_rate(self, t: int, total: int) -> float:
        return rates.cosine(total, self.settings.warm_up)(t)

    def loss(self, model: nn.Module, batch: ImageBatch, g: GradientPass) -> Tensor:
        """Cross-entropy with the labels, or with a teacher's outputs."""
        images, labels = batch
        g.outputs = outputs = model(images)
        if (teacher := g.teacher) is None:
            return F.cross_entropy(outputs.float(), labels, reduction="sum")
        return ps.soft_cross_entropy(outputs.float(), teacher.float()) * len(labels)

    def quick_eval(self, level: str) -> Numbers:
        return scores.loss_and_accuracy(self._outputs(level, "valid"), self.data.valid.labels)

    def selection_score(self, evaluations: Mapping[str, Numbers]) -> float:
        """The mean accuracy of the levels."""
        return sum(numbers["accuracy"] for numbers in evaluations.values()) / len(evaluations)

    def scores(self, level: str, split: Split) -> Numbers:
        """Loss, accuracy, and the accuracy of each class."""
        outputs, labels = self._outputs(level, split), self._part(split).labels
        by_class = scores.accuracy_by_class(outputs, labels, self.data.names)
        return {**scores.loss_and_accuracy(outputs, labels), **by_class}

    def extras(self, method: Method) -> dict[str, Any]:
        """Disagreements of each smaller level with the full network, and the FLOPs of an epoch in both conventions."""
        *smaller, full = self.network.levels
        test, names = self.data.test, self.data.names
        outputs = {level: self._outputs(level, "test") for level in self.network.levels}
        disagreements: dict[str, Any] = {
            f"{level} and full on the test images": scores.disagreement(
                level, outputs[level], outputs[full], test.labels, names
            )
            for level in smaller
        }
        sizes = [self.batches.units(0, index) for index in range(len(self.batches))]
        passes = passes_per_step(method, self.network, self.settings.seed)
        return {**disagreements, "training FLOPs": self._flops.epoch(passes, sizes)}

    def flops(self, level: str, batch: ImageBatch) -> int:
        return self._flops.training(level, len(batch[1]))

    def example(self) -> Tensor:
        return self.standardise(self.data.train.images[:2])

    def latency(self, extracted: nn.Module) -> float:
        device = next(extracted.parameters()).device
        return latency(extracted, self.example()[:1].to(device))

    def sidecar_files(self) -> dict[str, str]:
        """inputs.json: how pixels become inputs, and the names of the classes."""
        mean, factor = self.standardise.mean.flatten(), self.standardise.factor.flatten()
        inputs = {"mean": mean.tolist(), "deviation": (1 / factor).tolist(), "classes": list(self.data.names)}
        return {"inputs.json": json.dumps(inputs, indent=2, ensure_ascii=False) + "\n"}

    def export_details(self, level: str, format: str) -> ExportDetails:
        with self.network.at(level):
            model: Any = self.network.model
            blocks = tuple(len(stage) for stage in model.stages)
        is_full = level == self.network.levels[-1]
        shape = tuple(self.example().shape[1:])
        return export.details(self.settings, format, blocks, shape, len(self.data.names), is_full=is_full)

    def _part(self, split: Split) -> Part:
        return self.data.valid if split == "valid" else self.data.test

    def _outputs(self, level: str, split: Split) -> Tensor:
        return scores.outputs(self.network, level, self._part(split).images, self.standardise)


def build(settings: Images) -> Task:
    """Read the data and make the network, with fresh weights."""
    data = _data(settings)
    torch.manual_seed(settings.seed)
    blocks = _BLOCKS[settings.network]
    has_norm = settings.norms != "none"
    model = resnet(blocks, settings.width, len(data.names), data.train.images.shape[1], norm=has_norm)
    specs: dict[str, MakeSpec] = {
        "width": ps.Width,
        "low-rank": lambda ratios: ps.LowRank(ratios, init=settings.init),
        "depth": lambda ratios: ps.Depth([f"stages.{stage}" for stage in range(len(blocks))], keep=ratios),
    }
    norms: Any = settings.norms if has_norm else "separate"  # without BatchNorm it has no effect
    example = data.train.images[:2].float() / 255
    network = nest_model(model, settings, specs, seed=settings.seed, norms=norms, example=example)
    return ImageTask(settings, data, network)


def _data(settings: Images) -> Data:
    options = (settings.valid_share, settings.seed, settings.limit)
    if settings.data is not None:
        return cifar.read(settings.data, *options)
    if settings.preset != "digits":
        raise ValueError(
            f"the preset {settings.preset!r} is for CIFAR-10; give --data, the folder with its binary version, or use "
            "--preset digits, which needs no files"
        )
    return read_digits(*options)
