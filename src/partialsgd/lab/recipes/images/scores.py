"""What a network says of images: how often it is right, of which class, and where two networks differ."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from partialsgd._util.snapshots import Modes
from partialsgd.lab.recipes.images.batches import Standard
from partialsgd.lab.training.task import Numbers
from partialsgd.nested import Nested

_AT_ONCE = 256


@torch.no_grad()
def outputs(network: Nested, level: str, images: Tensor, standard: Standard) -> Tensor:
    """The scores of all classes for each image, in evaluation mode, on the CPU."""
    device, modes = next(network.parameters()).device, Modes(network)
    network.eval()
    try:
        with network.at(level):
            return torch.cat(
                [network(standard(part).to(device)).float().cpu() for part in torch.split(images, _AT_ONCE)]
            )
    finally:
        modes.restore()


def total(outputs: Tensor, labels: Tensor) -> Numbers:
    loss = F.cross_entropy(outputs.double(), labels)
    return {"loss": float(loss), "accuracy": float(_right(outputs, labels).double().mean())}


def by_class(outputs: Tensor, labels: Tensor, names: tuple[str, ...]) -> Numbers:
    """Of the images of each class, how many it was seen in; a class without images has no number."""
    right = _right(outputs, labels).double()
    of = {name: right[labels == number] for number, name in enumerate(names)}
    return {f"accuracy/{name}": float(each.mean()) for name, each in of.items() if len(each)}


def disagreement(
    level: str, smaller: Tensor, full: Tensor, labels: Tensor, names: tuple[str, ...]
) -> list[dict[str, str | int]]:
    """How many images each of two networks is right about: a row for all of them, and one for each class."""
    one, other = _right(smaller, labels), _right(full, labels)
    cases = {
        "both right": one & other,
        f"only {level} right": one & ~other,
        "only full right": ~one & other,
        "both wrong": ~one & ~other,
    }

    def row(name: str, among: Tensor) -> dict[str, str | int]:
        return {"class": name, **{case: int((where & among).sum()) for case, where in cases.items()}}

    each = (row(name, labels == number) for number, name in enumerate(names))
    return [row("all", torch.ones_like(one)), *each]


def _right(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.argmax(1) == labels
