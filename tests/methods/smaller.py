"""The network without some hidden units, cut by hand: what methods on neurons are compared with."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

Index = tuple[Tensor, ...]


def places(model: nn.Sequential, kept: Mapping[int, Tensor]) -> dict[str, Index]:
    """Return the place of each tensor of the smaller network in the larger one; `kept` are the units by layer."""
    found: dict[str, Index] = {}
    inside = torch.empty(0)
    for i, layer in enumerate(model):
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            rows = torch.arange(layer.weight.shape[0])[kept.get(i, slice(None))]
            columns = torch.arange(layer.weight.shape[1])
            if inside.numel():
                each = len(columns) // len(inside)
                columns = columns[inside.repeat_interleave(each)]
            found[f"{i}.weight"] = (rows[:, None], columns[None, :])
            found[f"{i}.bias"] = (rows,)
            inside = kept.get(i, torch.ones(len(rows), dtype=torch.bool))
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
            names = ("weight", "bias", "running_mean", "running_var")
            found |= {f"{i}.{name}": (torch.nonzero(inside)[:, 0],) for name in names}
    return {name: index for name, index in found.items() if name in model.state_dict()}


def smaller(model: nn.Sequential, kept: Mapping[int, Tensor]) -> nn.Sequential:
    """A network of its own that has only the kept units."""
    small = copy.deepcopy(model)
    for name, index in places(model, kept).items():
        layer, leaf = small[int(name.split(".")[0])], name.split(".")[1]
        values = model.state_dict()[name][index].clone()
        if leaf in layer._parameters:
            setattr(layer, leaf, nn.Parameter(values))
        else:
            layer.register_buffer(leaf, values)
    return small


def mlp(act: type[nn.Module] = nn.Sigmoid) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), act(), nn.Linear(8, 7), nn.BatchNorm1d(7), act(), nn.Linear(7, 3))


def cnn() -> nn.Sequential:
    """Convolutions, BatchNorm with and without scale, and a flattened image."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Sigmoid(), nn.Conv2d(6, 5, 3),
        nn.BatchNorm2d(5, affine=False), nn.Sigmoid(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 3),
    )  # fmt: skip


def ready(model: nn.Sequential, seed: int = 0) -> nn.Sequential:
    """The same numbers each time, in double precision, and none of them 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.6 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
        for b in model.buffers():
            if b.is_floating_point():
                b.copy_(0.5 + torch.rand(b.shape, generator=generator, dtype=torch.float64))
    return model


def batch(t: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + t)
    x = torch.randn(9, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (9,), generator=generator)
