"""A model that becomes one of its own narrow networks: which tensors hidden units lie in, and the sizes of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from partialsgd.distributed.unit_shards import Axis, SplitTensor
from partialsgd.methods._shared.neurons import Units
from partialsgd.nested.nested import Nested
from partialsgd.parameters import Parameters


def require_plain(model: nn.Module, parameters: Parameters) -> None:
    if isinstance(parameters.model, Nested):
        raise TypeError("independent_subnets makes narrow networks of a plain model; pass the model before nest")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise TypeError(f"pass the model itself, not {type(model).__name__}: workers do not share their gradients")
    for name, parameter in parameters.items():
        if isinstance(parameter, DTensor):
            raise TypeError(f"the parameter {name!r} is sharded; independent_subnets needs plain tensors")


def layouts_of(parameters: Parameters, model: nn.Module, hidden: Sequence[Units]) -> dict[str, SplitTensor]:
    """The tensors that hidden units lie in, by name."""
    axes: dict[str, list[Axis]] = {}
    shapes: dict[str, torch.Size] = {}
    for number, units in enumerate(hidden):
        for place in units.places:
            axes.setdefault(place.parameter, []).append(Axis(place.dimension, number, place.times))
            shapes[place.parameter] = parameters[place.parameter].shape
        for name, buffer in statistics_of(model):
            if name.rpartition(".")[0] in units.norms:
                axes.setdefault(name, []).append(Axis(0, number, 1))
                shapes[name] = buffer.shape
    return {name: SplitTensor(shapes[name], tuple(found)) for name, found in axes.items()}


def statistics_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The running statistics of norms, by name."""
    for path, module in model.named_modules():
        for leaf in ("running_mean", "running_var"):
            buffer = getattr(module, leaf, None)
            if isinstance(buffer, Tensor):
                yield f"{path}.{leaf}" if path else leaf, buffer


def replace_values(tensors: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Give tensors other values, of another shape; optimizers and modules keep the objects that they know."""
    for tensor, values in tensors:
        tensor.data = values.data


def set_sizes(model: nn.Module, hidden: Sequence[Units]) -> None:
    """Make the sizes that layers remember those of their parameters."""
    names = {place.parameter.rpartition(".")[0] for units in hidden for place in units.places}
    names |= {norm for units in hidden for norm in units.norms}
    layer: Any
    for layer in map(model.get_submodule, names):
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = layer.weight.shape
        elif isinstance(layer, nn.Conv2d):
            layer.out_channels, layer.in_channels = layer.weight.shape[:2]
        elif hasattr(layer, "num_features"):
            tensors = (layer.weight, getattr(layer, "running_mean", None))
            layer.num_features = next((len(t) for t in tensors if t is not None), layer.num_features)
        else:  # Hugging Face's Conv1D
            layer.nx, layer.nf = layer.get_parameter("weight").shape
