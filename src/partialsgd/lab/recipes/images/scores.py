"""Accuracy of a level: overall, by class, and where two levels disagree."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from partialsgd._util.snapshots import Modes
from partialsgd.lab.recipes.images.batches import Standardise
from partialsgd.lab.training.task import Numbers
from partialsgd.nested import Nested

_BATCH = 256


@torch.no_grad()
def outputs(network: Nested, level: str, images: Tensor, standardise: Standardise) -> Tensor:
    """The logits of a level for each image, in evaluation mode, on the CPU."""
    device, modes = next(network.parameters()).device, Modes(network)
    network.eval()
    try:
        with network.at(level):
            batches = torch.split(images, _BATCH)
            return torch.cat([network(standardise(batch).to(device)).float().cpu() for batch in batches])
    finally:
        modes.restore()


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
