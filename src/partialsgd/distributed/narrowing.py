"""A model that becomes one of its own narrow networks: which tensors hidden units lie in, and the sizes of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd.distributed.unit_shards import Axis, SplitTensor
from partialsgd.methods._shared.neurons import Place, Units
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.nested import Nested
from partialsgd.parameters import Parameters, Wrapper


def require_plain(model: nn.Module, parameters: Parameters) -> None:
    if isinstance(parameters.model, Nested):
        raise TypeError("independent_subnets makes narrow networks of a plain model; pass the model before nest")
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel, Wrapper)):
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
            _require_whole(model, place)
            axes.setdefault(place.parameter, []).append(Axis(place.dimension, number, place.times))
            shapes[place.parameter] = parameters[place.parameter].shape
        times = {place.parameter.rpartition(".")[0]: place.times for place in units.norms}
        for name, buffer in statistics_of(model):
            if (norm := name.rpartition(".")[0]) in times:
                axes.setdefault(name, []).append(Axis(0, number, times[norm]))
                shapes[name] = buffer.shape
    return {name: SplitTensor(shapes[name], tuple(found)) for name, found in axes.items()}


def _require_whole(model: nn.Module, place: Place) -> None:
    """Refuse a tensor that has entries beside the units, or the units several times, and layers of other kinds."""
    layer = model.get_submodule(name := place.parameter.rpartition(".")[0])
    is_known = isinstance(layer, _BatchNorm) or isinstance(linear_map_of(layer), LinearMap)
    if not is_known or place.repeats > 1 or place.before or place.tail:
        raise ValueError(
            f"{name!r} cannot be split over workers: its hidden units lie in it several times or beside other "
            "entries, or it is no Linear, Conv2d without groups, or BatchNorm; name other layers by hidden="
        )


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
    names |= {place.parameter.rpartition(".")[0] for units in hidden for place in units.norms}
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
