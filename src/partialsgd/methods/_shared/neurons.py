"""A hidden unit and all that is attached to it: what must go with the unit for the rest to be a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from partialsgd._util.bitwise_select import rows_of
from partialsgd._util.snapshots import RandomState
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.nested import Nested
from partialsgd.nested.planning.build import find_hidden_groups
from partialsgd.nested.planning.groups import UnitGroup, require_disjoint
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import Hidden, chains_of
from partialsgd.nested.switch import FULL, Switch
from partialsgd.parameters import Parameters, matches, unwrap


@final
@dataclass(frozen=True)
class Place:
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

    def under(self, prefix: str) -> Units:
        """The same in a module that holds the network."""
        places = tuple(replace(place, parameter=prefix + place.parameter) for place in self.places)
        layers, norms = (tuple(prefix + name for name in names) for names in (self.layers, self.norms))
        return replace(self, layers=layers, places=places, norms=norms)


Chosen: TypeAlias = Sequence[tuple[Units, Tensor]]
"""Some hidden layers, with True for each unit that is in."""


def hidden_units(model: nn.Module, hidden: Hidden | None = None, *, caller: str) -> tuple[Units, ...]:
    """The hidden units of a network, found as `Width` finds them; those that lie in a tied parameter are left out."""
    model, prefix = _inside(unwrap(model))
    site = NestPlan(model, Switch((FULL,)), caller=caller)
    noise = RandomState(site.model)
    groups = find_hidden_groups(site, chains_of(hidden))
    noise.restore()  # a trace runs what is random in the network
    require_disjoint(groups)
    found = [_units(site, group) for group in groups]
    free = [units for units in found if not _is_tied(site.parameters, units)]
    if not free:
        layers = ", ".join(repr(name) for units in found for name in units.layers)
        raise ValueError(f"{caller} finds no hidden units of their own: those of {layers} lie in tied parameters")
    return tuple(units.under(prefix) for units in free)


def _inside(model: nn.Module) -> tuple[nn.Module, str]:
    """The network in a family, whose own forward cannot be traced, and what its names begin with there."""
    return (model.model, "model.") if isinstance(model, Nested) else (model, "")


def limited(found: Sequence[Units], where: Sequence[str]) -> tuple[Units, ...]:
    """Those whose layers a pattern covers; every pattern must cover some."""
    for pattern in where:
        if not any(_is_covered(units, pattern) for units in found):
            makers = ", ".join(repr(name) for units in found for name in units.layers)
            raise ValueError(f"where names {pattern!r}, which makes no hidden units; the layers that do are {makers}")
    return tuple(units for units in found if any(_is_covered(units, pattern) for pattern in where))


def attached(parameters: Parameters, chosen: Chosen) -> dict[str, Tensor]:
    """True at the coordinates of the chosen units; between two hidden layers both ends must be chosen."""
    inside: dict[str, Tensor] = {}
    for units, kept in chosen:
        for place in units.places:
            x = parameters[place.parameter]
            shape = [-1 if dimension == place.dimension else 1 for dimension in range(x.ndim)]
            entry = kept.to(x.device).repeat_interleave(place.times).view(shape).expand(x.shape)
            inside[place.parameter] = inside[place.parameter] & entry if place.parameter in inside else entry
    return {name: entry if rows_of(entry) is not None else entry.contiguous() for name, entry in inside.items()}


def statistics_kept(model: nn.Module, chosen: Chosen) -> AbstractContextManager[None]:
    """BatchNorm's running statistics of units that are out stay as they were: the units were not there to be seen."""
    norms = [(model.get_submodule(name), ~kept) for units, kept in chosen for name in units.norms]
    buffers = [
        (buffer, outside)
        for norm, outside in norms
        for buffer in (norm.running_mean, norm.running_var)
        if isinstance(buffer, Tensor)
    ]
    return _kept(buffers) if buffers else nullcontext()


@contextmanager
def _kept(buffers: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    saved = [buffer.clone() for buffer, _ in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for (buffer, outside), old in zip(buffers, saved, strict=True):
                buffer.copy_(torch.where(outside.to(buffer.device), old, buffer))


def _units(site: NestPlan, group: UnitGroup) -> Units:
    places: list[Place] = []
    for name in group.producer_names:
        transposed = _form(site, name).kind == "conv1d_hf"
        places += _places(site, name, {"weight": 1 if transposed else 0, "bias": 0})
    for name in group.norms:
        places += _places(site, name, {"weight": 0, "bias": 0})
    for name in group.consumers:
        form = _form(site, name)
        dimension = 0 if form.kind == "conv1d_hf" else 1
        places += _places(site, name, {"weight": dimension}, form.inputs // group.units)
    return Units(group.units, group.producer_names, tuple(places), group.norms)


def _places(site: NestPlan, layer: str, dimensions: dict[str, int], times: int = 1) -> Iterator[Place]:
    names = {p: name for name, p in site.parameters.items()}
    for leaf, dimension in dimensions.items():
        held = getattr(site.modules[layer], leaf)
        if held is not None and held not in names:
            raise ValueError(f"{layer!r} computes its {leaf} from other parameters; {site.caller} needs it as one")
        if held is not None:
            yield Place(names[held], dimension, times)


def _form(site: NestPlan, name: str) -> LinearMap:
    form = linear_map_of(site.modules[name])
    assert isinstance(form, LinearMap)  # looked at when the group was found
    return form


def _is_tied(parameters: Parameters, units: Units) -> bool:
    return any(len(parameters.aliases(place.parameter)) > 1 for place in units.places)


def _is_covered(units: Units, pattern: str) -> bool:
    return any(matches(f"{name}.weight", pattern) for name in units.layers)
