"""Hidden units, and the coordinates that must go with a unit for the rest to be a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

import torch
from torch import Tensor, nn

from partialsgd import masks
from partialsgd._util.bitwise_select import rows_of
from partialsgd._util.snapshots import RandomState
from partialsgd.masks import Mask
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.nested import Nested
from partialsgd.nested.planning.build import find_hidden_groups
from partialsgd.nested.planning.groups import UnitGroup, require_disjoint
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import Hidden, chains_of
from partialsgd.nested.switch import FULL, Switch
from partialsgd.parameters import Parameters, matches, unwrap


class Place(NamedTuple):
    """The units in one parameter: along a dimension, each `times` in a row (the places of a flattened image)."""

    parameter: str
    dimension: int
    times: int = 1


@final
@dataclass(frozen=True)
class Units:
    """The units of one hidden layer, or of layers whose outputs are added, and where in x they lie."""

    count: int
    layers: tuple[str, ...]
    """The layers that make them."""
    places: tuple[Place, ...]
    norms: tuple[str, ...]
    """The BatchNorms over them."""

    @property
    def name(self) -> str:
        """The first parameter that they lie in."""
        return self.places[0].parameter

    def is_covered(self, pattern: str) -> bool:
        return any(matches(f"{name}.weight", pattern) for name in self.layers)


Chosen: TypeAlias = Sequence[tuple[Units, Tensor]]
"""Some hidden layers, with True for each unit that is in."""


def hidden_units(
    model: nn.Module, hidden: Hidden | None = None, *, where: Sequence[str] | None = None, caller: str
) -> tuple[Units, ...]:
    """Find the hidden units as `Width` does, in the layers that `where` covers; tied parameters are left out."""
    model, prefix = unwrap(model), ""
    if isinstance(model, Nested):  # its own forward cannot be traced
        model, prefix = model.model, "model."
    plan = NestPlan(model, Switch((FULL,)), caller=caller)
    random_state = RandomState(plan.model)
    groups = find_hidden_groups(plan, chains_of(hidden))
    random_state.restore()  # a trace runs what is random in the network
    require_disjoint(groups)
    every = [_units(plan, group, prefix) for group in groups]
    names = {name for name in plan.parameters if len(plan.parameters.aliases(name)) > 1}
    free = [
        units for units in every if not any(place.parameter.removeprefix(prefix) in names for place in units.places)
    ]
    layers = ", ".join(repr(name) for units in free or every for name in units.layers)
    if not free:
        raise ValueError(f"{caller} finds no hidden units of their own: those of {layers} lie in tied parameters")
    for pattern in where or ():
        if not any(units.is_covered(pattern) for units in free):
            raise ValueError(f"where names {pattern!r}, which makes no hidden units; the layers that do are {layers}")
    return tuple(units for units in free if where is None or any(map(units.is_covered, where)))


def mask_of(parameters: Parameters, chosen: Chosen, *, rest: bool) -> Mask:
    """Return the mask of the chosen units, of which each layer has one at least; `rest` for what belongs to none."""
    return masks.from_tensors(parameters, attached(parameters, chosen), rest=rest).assume_mixed()


def attached(parameters: Parameters, chosen: Chosen) -> dict[str, Tensor]:
    """Return True at the coordinates of the chosen units; between two hidden layers both ends must be chosen."""
    entries: dict[str, Tensor] = {}
    for units, is_in in chosen:
        for place in units.places:
            x = parameters[place.parameter]
            shape = [-1 if dimension == place.dimension else 1 for dimension in range(x.ndim)]
            entry = is_in.to(x.device).repeat_interleave(place.times).view(shape).expand(x.shape)
            entries[place.parameter] = entries[place.parameter] & entry if place.parameter in entries else entry
    return {name: entry if rows_of(entry) is not None else entry.contiguous() for name, entry in entries.items()}


def statistics_kept(model: nn.Module, chosen: Chosen) -> AbstractContextManager[None]:
    """Keep BatchNorm's running statistics of the units that are out: the pass did not see them."""
    buffers = [
        (buffer, ~is_in)
        for units, is_in in chosen
        for norm in map(model.get_submodule, units.norms)
        for buffer in (norm.running_mean, norm.running_var)
        if isinstance(buffer, Tensor)
    ]
    return _restored(buffers) if buffers else nullcontext()


@contextmanager
def _restored(buffers: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    saved = [buffer.clone() for buffer, _ in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for (buffer, outside), old in zip(buffers, saved, strict=True):
                buffer.copy_(torch.where(outside.to(buffer.device), old, buffer))


def _units(plan: NestPlan, group: UnitGroup, prefix: str) -> Units:
    places: list[Place] = []
    for name in group.producer_names:
        places += _places(plan, name, {"weight": 1 if _linear_map(plan, name).kind == "conv1d_hf" else 0, "bias": 0})
    for name in group.norms:
        places += _places(plan, name, {"weight": 0, "bias": 0})
    for name in group.consumers:
        linear_map = _linear_map(plan, name)
        dimension, times = 0 if linear_map.kind == "conv1d_hf" else 1, linear_map.inputs // group.units
        places += _places(plan, name, {"weight": dimension}, times)
    layers, norms = (tuple(prefix + name for name in names) for names in (group.producer_names, group.norms))
    return Units(group.units, layers, tuple(p._replace(parameter=prefix + p.parameter) for p in places), norms)


def _places(plan: NestPlan, layer: str, dimensions: dict[str, int], times: int = 1) -> Iterator[Place]:
    names = {p: name for name, p in plan.parameters.items()}
    for leaf, dimension in dimensions.items():
        parameter = getattr(plan.modules[layer], leaf)
        if parameter is not None and parameter not in names:
            raise ValueError(f"{layer!r} computes its {leaf} from other parameters; {plan.caller} needs it as one")
        if parameter is not None:
            yield Place(names[parameter], dimension, times)


def _linear_map(plan: NestPlan, name: str) -> LinearMap:
    linear_map = linear_map_of(plan.modules[name])
    assert isinstance(linear_map, LinearMap)  # checked when the group was found
    return linear_map
