"""Hidden units, and the coordinates that must go with a unit for the rest to be a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partialsgd import masks
from partialsgd._util import randomness, shards
from partialsgd._util.bitwise_select import rows_of
from partialsgd._util.plain_copy import structure
from partialsgd._util.snapshots import RandomState
from partialsgd.masks import Mask
from partialsgd.nested.nested import Nested
from partialsgd.nested.planning.build import find_hidden_groups
from partialsgd.nested.planning.groups import UnitGroup, UnitSlice, require_disjoint, unit_slices
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import Hidden, chains_of
from partialsgd.nested.switch import FULL, Switch
from partialsgd.parameters import Parameters, matches, unwrap


class Place(NamedTuple):
    """The units in one parameter or buffer: along a dimension, `repeats` times all of them, each `times` in a row."""

    parameter: str
    dimension: int
    times: int = 1
    repeats: int = 1
    tail: int = 0
    """The entries behind them, and below those in front of them, which belong to none of the units."""
    before: int = 0

    def entries(self, is_in: Tensor) -> Tensor:
        """Return True for the entries of the units that are in, and for those of none."""
        body = is_in.repeat_interleave(self.times).repeat(self.repeats)
        return F.pad(body, (self.before, self.tail), value=True) if self.before or self.tail else body


@final
@dataclass(frozen=True)
class Units:
    """The units of one hidden layer, or of layers whose outputs are added, and where in x they lie."""

    count: int
    layers: tuple[str, ...]
    """The layers that make them."""
    places: tuple[Place, ...]
    norms: tuple[Place, ...]
    """The running means of BatchNorms over them; the entries of the running variances are the same."""

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
    model, prefix = structure(unwrap(model)), ""
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


def random_owners(hidden: Sequence[Units], keys: Sequence[int], workers: int) -> list[Tensor]:
    """Split the units of each layer at random, as evenly as the numbers allow: the worker of each unit."""
    generators = [randomness.generator(key) for key in keys]
    return [
        torch.randperm(units.count, generator=generator, device="cpu") % workers
        for units, generator in zip(hidden, generators, strict=True)
    ]


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
            entry = place.entries(is_in.to(x.device)).view(shape).expand(x.shape)
            entry = shards.part_of(entry, x)
            entries[place.parameter] = entries[place.parameter] & entry if place.parameter in entries else entry
    parts = {name: entry if rows_of(entry) is not None else entry.contiguous() for name, entry in entries.items()}
    return {name: shards.from_part(parameters[name], part) for name, part in parts.items()}


def statistics_kept(model: nn.Module, chosen: Chosen) -> AbstractContextManager[None]:
    """Keep BatchNorm's running statistics of the units that are out: the pass did not see them."""
    buffers = [
        (buffer, ~place.entries(is_in))
        for units, is_in in chosen
        for place in units.norms
        for norm in [model.get_submodule(place.parameter.rpartition(".")[0])]
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
    names = {p: name for name, p in plan.parameters.items()}
    places: list[Place] = []
    for part in unit_slices(plan, group):
        layer, _, leaf = part.parameter.rpartition(".")
        parameter = getattr(plan.modules[layer], leaf)
        if parameter not in names:
            raise ValueError(f"{layer!r} computes its {leaf} from other parameters; {plan.caller} needs it as one")
        places.append(_place(part, prefix + names[parameter]))
    layers = tuple(prefix + name for name in group.producer_names)
    norms = tuple(_place(part, prefix + part.parameter) for part in group.normalised)
    return Units(group.units, layers, tuple(places), norms)


def _place(part: UnitSlice, name: str) -> Place:
    return Place(name, part.dim, part.width, part.repeats, part.tail, part.before)
