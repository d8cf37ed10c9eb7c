"""The images recipe as a task for the loop: data, network, loss, scores and export."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes.images import resnet
from partialsgd.lab.recipes.images.data import (
    Data,
    ImageBatch,
    ImageBatches,
    Part,
    Standardise,
    read_cifar,
    read_digits,
)
from partialsgd.lab.recipes.images.flops import ImageFlops, passes_per_step
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.training.recipe_tools import (
    MakeSpec,
    cosine,
    evaluation_mode,
    hash_tensors,
    latency,
    nest_model,
    with_teacher,
)
from partialsgd.lab.training.task import Batches, ExportDetails, Numbers, Split, Task, fill_template
from partialsgd.method import Method
from partialsgd.nested import Nested
from partialsgd.nested.switch import FULL

_EVALUATION_BATCH = 256
_BUDGET_BATCH = 64
_INPUT_NOTES = """
`scores` takes pixels as they are in the data, (images, channels, height, width), and returns a number for each class.
"""
_BLOCKS = {"tiny": (2, 2), "resnet18": (2, 2, 2, 2)}


@final
class ImageTask:
    """A residual network that learns to classify images at every level."""

    unit: str = "images"
    score: str = "accuracy"
    signature: str | None = None
    formats: Sequence[str] = ("safetensors", "onnx")

    def __init__(self, settings: Images, data: Data, network: Nested) -> None:
        self.settings, self.data = settings, data
        self.use(network)
        self.standardise = Standardise(data.train.images)
        options: dict[str, Any] = {"seed": settings.seed, "crop": settings.crop, "flip": settings.flip}
        self.batches: Batches = ImageBatches(data.train, self.standardise, size=settings.batch, **options)

    def use(self, network: Nested) -> None:
        settings = self.settings
        self.network, self._flops = network, ImageFlops(network, self.data.train.images.shape[1:])
        self.optimizers: Sequence[Optimizer] = [
            torch.optim.SGD(network.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
        ]

    def notes(self) -> list[str]:
        sizes = (len(part) for part in (self.data.train, self.data.valid, self.data.test))
        return ["{:,} training, {:,} validation and {:,} test images".format(*sizes)]

    def data_hash(self) -> str:
        parts = (self.data.train, self.data.valid, self.data.test)
        return hash_tensors(*(tensor for part in parts for tensor in (part.images, part.labels)))

    def learning_rate(self, t: int, total: int) -> float:
        return cosine(t, total, self.settings.warm_up)

    def loss(self, model: nn.Module, batch: ImageBatch, g: GradientPass) -> Tensor:
        """Cross-entropy with the labels, with a teacher's outputs, or with both."""
        images, labels = batch
        g.outputs = outputs = model(images)
        loss = F.cross_entropy(outputs.float(), labels, reduction="sum")
        if (teacher := g.teacher) is None:
            return loss
        distilled = ps.soft_cross_entropy(outputs.float(), teacher.float()) * len(labels)
        return with_teacher(loss, distilled, self.settings.taught_share)

    def quick_eval(self, level: str) -> Numbers:
        return loss_and_accuracy(self._outputs(level, "valid"), self.data.valid.labels)

    def selection_score(self, evaluations: Mapping[str, Numbers]) -> float:
        """The mean accuracy of the levels."""
        return sum(numbers["accuracy"] for numbers in evaluations.values()) / len(evaluations)

    def scores(self, level: str, split: Split) -> Numbers:
        """Loss, accuracy, and the accuracy of each class."""
        outputs, labels = self._outputs(level, split), self._part(split).labels
        by_class = accuracy_by_class(outputs, labels, self.data.names)
        return {**loss_and_accuracy(outputs, labels), **by_class}

    def extras(self, method: Method) -> dict[str, Any]:
        """Disagreements of each smaller level with the full network, and the FLOPs of an epoch in both conventions."""
        *smaller, full = self.network.levels
        test, names = self.data.test, self.data.names
        outputs = {level: self._outputs(level, "test") for level in self.network.levels}
        extras: dict[str, Any] = {}
        for level in smaller:
            rows = disagreement(level, outputs[level], outputs[full], test.labels, names)
            extras[f"{level} and full on the test images"] = rows
        sizes = [self.batches.units(0, index) for index in range(len(self.batches))]
        passes = passes_per_step(method, self.network, self.settings.seed)
        return {**extras, "training FLOPs": self._flops.epoch(passes, sizes)}

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
        """The README's code makes the level from the source of the network and the number of blocks in each stage."""
        settings, is_plain = self.settings, format == "safetensors"
        data = "scikit-learn's digits" if settings.data is None else f"the images in `{Path(settings.data).name}`"
        is_original = level == self.network.levels[-1] and settings.alone in (None, FULL)
        is_low_rank = settings.nest == "low-rank" and not is_original
        templates = Path(__file__).parent / "templates"
        channels, height, width = self.example().shape[1:]
        with self.network.at(level):
            model: Any = self.network.model
            blocks = tuple(len(stage) for stage in model.stages)
        values = {"blocks": blocks, "width": settings.width, "classes": len(self.data.names), "channels": channels}
        values["shape"] = f"{channels}, {height}, {width}"
        values["norm"] = ", norm=False" if settings.norms == "none" else ""
        values["low_rank"] = (templates / "low-rank.py.txt").read_text(encoding="utf-8") if is_low_rank else ""
        return ExportDetails(
            about=f"Classifies images; trained on {data}.",
            packages="torch safetensors" if is_plain else "onnxruntime numpy",
            code=fill_template(templates / f"{format}.py.txt", **values),
            input_notes=_INPUT_NOTES,
            files={"network.py": inspect.getsource(resnet)} if is_plain else {},
        )

    def _part(self, split: Split) -> Part:
        return self.data.valid if split == "valid" else self.data.test

    def _outputs(self, level: str, split: Split) -> Tensor:
        return outputs(self.network, level, self._part(split).images, self.standardise)


def build(settings: Images) -> Task:
    """Read the data and make the network, with fresh weights."""
    if settings.data is None and settings.preset != "digits":
        raise ValueError(
            f"the preset {settings.preset!r} is for CIFAR-10; give --data, the folder with its binary version, or use "
            "--preset digits, which needs no files"
        )
    options = (settings.valid_share, settings.seed, settings.limit)
    data = read_digits(*options) if settings.data is None else read_cifar(settings.data, *options)
    torch.manual_seed(settings.seed)
    blocks = _BLOCKS[settings.network]
    has_norm = settings.norms != "none"
    model = resnet.resnet(blocks, settings.width, len(data.names), data.train.images.shape[1], norm=has_norm)
    specs: dict[str, MakeSpec] = {
        "width": ps.Width,
        "low-rank": lambda ratios: ps.LowRank(ratios, init=settings.init, full=settings.full),
        "depth": lambda ratios: ps.Depth([f"stages.{stage}" for stage in range(len(blocks))], keep=ratios),
    }
    norms: Any = settings.norms if has_norm else "separate"  # without BatchNorm it has no effect
    example = data.train.images[:2].float() / 255
    losses = budget_losses(model, data) if settings.level_budget is not None else []
    network = nest_model(model, settings, specs, seed=settings.seed, norms=norms, example=example, losses=losses)
    return ImageTask(settings, data, network)


def budget_losses(model: nn.Module, data: Data) -> list[Callable[[], Tensor]]:
    """Return functions for the loss of the model on four batches of training images."""
    standardise = Standardise(data.train.images)
    batches = [slice(i, i + _BUDGET_BATCH) for i in range(0, 4 * _BUDGET_BATCH, _BUDGET_BATCH)]
    batches = [rows for rows in batches if rows.start < len(data.train)]

    def loss(rows: slice) -> Tensor:
        return F.cross_entropy(model(standardise(data.train.images[rows])), data.train.labels[rows])

    return [partial(loss, rows) for rows in batches]


@torch.no_grad()
def outputs(network: Nested, level: str, images: Tensor, standardise: Standardise) -> Tensor:
    """The logits of a level for each image, in evaluation mode, on the CPU."""
    device = next(network.parameters()).device
    with evaluation_mode(network), network.at(level):
        batches = torch.split(images, _EVALUATION_BATCH)
        return torch.cat([network(standardise(batch).to(device)).float().cpu() for batch in batches])


def loss_and_accuracy(outputs: Tensor, labels: Tensor) -> Numbers:
    loss = F.cross_entropy(outputs.double(), labels)
    return {"loss": float(loss), "accuracy": float(_is_right(outputs, labels).double().mean())}


def accuracy_by_class(outputs: Tensor, labels: Tensor, names: tuple[str, ...]) -> Numbers:
    """The accuracy on the images of each class; a class without images is left out."""
    right = _is_right(outputs, labels).double()
    by_class = {name: right[labels == number] for number, name in enumerate(names)}
    return {f"accuracy/{name}": float(each.mean()) for name, each in by_class.items() if len(each)}


def disagreement(
    level: str, smaller: Tensor, full: Tensor, labels: Tensor, names: tuple[str, ...]
) -> list[dict[str, str | int]]:
    """The number of images that both, one or none of two networks classify correctly: in total and by class."""
    one, other = _is_right(smaller, labels), _is_right(full, labels)
    cases = {
        "both right": one & other,
        f"only {level} right": one & ~other,
        "only full right": ~one & other,
        "both wrong": ~one & ~other,
    }

    def row(name: str, among: Tensor) -> dict[str, str | int]:
        return {"class": name, **{case: int((where & among).sum()) for case, where in cases.items()}}

    by_class = (row(name, labels == number) for number, name in enumerate(names))
    return [row("all", torch.ones_like(one)), *by_class]


def _is_right(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.argmax(1) == labels
