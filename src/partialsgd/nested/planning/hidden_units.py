"""Groups of hidden units from a trace: which dimensions of which parameters are cut together, and what is not cut."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.planning.groups import HiddenUnits, Producer, UnitGroup, UnitSlice
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.planning.ties import NO_UNIT, Solution, unique
from partialsgd.nested.planning.trace import Attention, Trace


class Layout(NamedTuple):
    """How the units of a group lie in one dimension; see `UnitSlice`."""

    repeats: int
    width: int
    tail: int
    before: int


class Dims(NamedTuple):
    """Units that lie in the same dimensions of parameters, and these dimensions."""

    units: Tensor
    keys: list[tuple[str, int]]


def hidden_units(plan: NestPlan, trace: Trace) -> HiddenUnits:
    """Return what the trace shows about the model of a plan."""
    finder = _Finder(plan, trace, trace.ties.solve(with_attention=True))
    while finder.tie_parts():  # parts that are tied lie in more dimensions together, and meet other parts there
        finder = _Finder(plan, trace, trace.ties.solve(with_attention=True))
    hidden = HiddenUnits(query_key=list(_query_key_groups(plan, trace)))
    for units, dims in finder.components:
        result = finder.group(units, dims)
        if isinstance(result, str):
            hidden.refused |= {finder.layer(name): result for name, dim in dims if finder.is_made(name, dim)}
        elif finder.is_attention(dims):
            hidden.heads.append(result)
        elif finder.is_default(dims):
            hidden.feed_forward.append(result)
        else:
            why = "it is not between two layers of the residual stream"
            hidden.refused |= {finder.layer(name): why for name, dim in dims if finder.is_made(name, dim)}
    _refuse_unequal_parts(hidden)
    finder.explain(hidden)
    order = {name: i for i, name in enumerate(plan.modules)}
    for groups in (hidden.feed_forward, hidden.heads):
        groups.sort(key=lambda group: order[group.name])
    return hidden


def _refuse_unequal_parts(hidden: HiddenUnits) -> None:
    """Leave out groups of one name: they are parts of a layer's outputs that are not equally long."""
    for groups in (hidden.feed_forward, hidden.heads):
        names = Counter(group.name for group in groups)
        for group in [group for group in groups if names[group.name] > 1]:
            groups.remove(group)
            why = "its outputs go to different layers in parts that are not equally long"
            hidden.refused |= dict.fromkeys(group.producer_names, why)


@final
@dataclass
class _Finder:
    plan: NestPlan
    trace: Trace
    solution: Solution

    def __post_init__(self) -> None:
        self.owners = dict(self._owners())
        attention = self.solution.unit_of[self.trace.ties.attention_entries()]
        self.attention_units = unique(attention)
        self.has_attention = any(attention.has_values for attention in self.trace.attentions)

    def _owners(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each parameter, and each BatchNorm's running_mean, with the names of the modules that hold it."""
        for name in self.plan.parameters:
            yield name, [alias.rpartition(".")[0] for alias in self.plan.parameters.aliases(name)]
        for name, _ in self.trace.ties.offsets:
            if name.rpartition(".")[2] == "running_mean":
                yield name, [name.rpartition(".")[0]]

    def numbers(self, name: str, dim: int) -> Tensor:
        first, length = self.trace.ties.offsets[name, dim]
        return torch.arange(first, first + length, device="cpu")

    def units(self, name: str, dim: int) -> Tensor:
        return self.solution.units(self.numbers(name, dim))

    def layer(self, name: str) -> str:
        return name.rpartition(".")[0]

    def is_made(self, name: str, dim: int) -> bool:
        return self._is_in(self.trace.made, name, dim)

    def is_taken(self, name: str, dim: int) -> bool:
        return self._is_in(self.trace.taken, name, dim)

    def _is_in(self, entries: set[int], name: str, dim: int) -> bool:
        first, length = self.trace.ties.offsets[name, dim]
        return any(first <= entry < first + length for entry in entries)

    @cached_property
    def components(self) -> list[Dims]:
        """The units that some layers make and others take, those in the same dimensions together."""
        return [
            dims
            for dims in self._dims()
            if any(self.is_made(*key) for key in dims.keys) and any(self.is_taken(*key) for key in dims.keys)
        ]

    def _dims(self) -> list[Dims]:
        keys = [key for key in self.trace.ties.offsets if key[0] in self.owners]
        places: dict[int, list[tuple[int, int]]] = {}
        for i, key in enumerate(keys):
            units, counts = torch.unique(self.units(*key), return_counts=True)
            for unit, count in zip(units.tolist(), counts.tolist(), strict=True):
                if unit != NO_UNIT:
                    places.setdefault(unit, []).append((i, count))
        by_place: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for unit, own in places.items():
            by_place.setdefault(tuple(own), []).append(unit)
        return [Dims(torch.tensor(units, device="cpu"), [keys[i] for i, _ in own]) for own, units in by_place.items()]

    def tie_parts(self) -> bool:
        """Tie the parts of a layer's outputs that go to different layers, if they are as long; return if any were.

        The code that splits the outputs needs parts of equal length, or it would split a narrow layer elsewhere.
        """
        parts: dict[tuple[str, int], list[Tensor]] = {}
        for units, keys in self.components:
            for key in keys:
                if self.is_made(*key):
                    own = self.units(*key)
                    parts.setdefault(key, []).append(own[torch.isin(own, units)])
        tied = False
        for first, *others in parts.values():
            if others and all(len(other) == len(first) for other in others):
                for other in others:
                    self.trace.ties.tie(first, other)
                tied = True
        return tied

    def is_attention(self, dims: Sequence[tuple[str, int]]) -> bool:
        return any(bool(torch.isin(self.units(*key), self.attention_units).any()) for key in dims)

    def is_default(self, dims: Sequence[tuple[str, int]]) -> bool:
        """True if the group is cut by default: any group, or in a network with attention only one that lies between two
        layers of the residual stream."""
        if not self.has_attention:
            return True
        read, written = (
            [
                self.solution.unit_of[self.numbers(name, other)]
                for name, dim in dims
                if is_one(name, dim)
                for (parameter, other) in self.trace.ties.offsets
                if parameter == name and other != dim
            ]
            for is_one in (self.is_made, self.is_taken)
        )
        return bool(read) and bool(written) and bool(torch.isin(torch.cat(read), torch.cat(written)).any())

    def group(self, members: Tensor, dims: Sequence[tuple[str, int]]) -> UnitGroup | str:
        """Return the group of units that lie in some dimensions, or the reason why they cannot be cut."""
        order = {name: i for i, name in enumerate([*self.plan.parameters, *self.owners])}
        dims = sorted(dims, key=lambda key: (not self.is_made(*key), order[key[0]]))
        first = self.units(*dims[0])
        units = list(dict.fromkeys(first[torch.isin(first, members)].tolist()))
        if len(units) < 2:
            return self._why_mixed(dims)
        if (reason := self._why_not_replaceable(dims)) is not None:
            return reason
        place = torch.full((self.trace.ties.count,), -1, device="cpu")
        place[torch.tensor(units, device="cpu")] = torch.arange(len(units), device="cpu")
        layouts: dict[tuple[str, int], list[Layout]] = {}
        for name, dim in sorted(dims, key=lambda key: order[key[0]]):
            layout = _layouts(place[self.units(name, dim)], len(units))
            if layout is None:
                return f"its units lie in {name!r} in an order that cannot be cut"
            layouts[name, dim] = layout
        return self._assembled(layouts, len(units))

    def _why_mixed(self, dims: Sequence[tuple[str, int]]) -> str:
        reason = self.trace.ties.reason(torch.cat([self.numbers(*key) for key in dims]), self.solution)
        return f"its outputs are mixed by {reason}" if reason else "its outputs go one by one to different layers"

    def _why_not_replaceable(self, dims: Sequence[tuple[str, int]]) -> str | None:
        members = {self.layer(name) for name, _ in dims}
        for name, _ in dims:
            if len(owners := self.owners[name]) > 1:
                return f"{name!r} is tied to {owners[1]!r}"
        for branch in self.trace.branches:
            inside = [name for name in members if not branch or name == branch or name.startswith(f"{branch}.")]
            children = {name.removeprefix(f"{branch}.").partition(".")[0] for name in inside}
            if inside and members != {branch} and (len(inside) < len(members) or len(children) > 1):
                return f"the code of {branch or 'the model'!r} depends on numbers that the network computes"
        return None

    def _assembled(self, layouts: dict[tuple[str, int], list[Layout]], units: int) -> UnitGroup | str:
        """Sort the dimensions by the kind of their modules."""
        producers: dict[str, list[Layout]] = {}
        norms: dict[str, list[Layout]] = {}
        taken: list[UnitSlice] = []
        others: list[UnitSlice] = []
        for (name, dim), own in layouts.items():
            layer, leaf = self.layer(name), name.rpartition(".")[2]
            module = self.plan.modules[layer]
            linear = linear_map_of(module)
            if isinstance(module, _BatchNorm):
                if norms.setdefault(layer, own) != own:
                    return f"its units lie in {layer!r} in an order that cannot be cut"
            elif isinstance(linear, LinearMap) and leaf in ("weight", "bias"):
                if leaf == "weight" and dim != (1 if linear.kind == "conv1d_hf" else 0):
                    taken += [UnitSlice(name, dim, *layout) for layout in own]
                elif producers.setdefault(layer, own) != own:
                    return f"weight and bias of {layer!r} have other units"
            elif (reason := _why_not_cut(module, layer, self.plan)) is not None:
                return f"{name!r} cannot be cut: {reason}"
            else:
                others += [UnitSlice(name, dim, *layout) for layout in own]
        makers = tuple(
            Producer(name, one.repeats, one.tail, width=one.width, before=one.before)
            for name, own in producers.items()
            for one in own
        )
        normalised = tuple(UnitSlice(f"{name}.running_mean", 0, *one) for name, own in norms.items() for one in own)
        return UnitGroup(units, makers, tuple(taken), normalised, others=tuple(others))

    def explain(self, hidden: HiddenUnits) -> None:
        """Give the reason for each layer that makes units which are in no group."""
        grouped = {name for group in (*hidden.feed_forward, *hidden.heads) for name in group.producer_names}
        for name, dim in self.trace.ties.offsets:
            layer = self.layer(name)
            if name in self.owners and self.is_made(name, dim) and layer not in grouped | hidden.refused.keys():
                reason = self.trace.ties.reason(self.numbers(name, dim), self.solution)
                hidden.refused[layer] = (
                    f"its outputs keep their number: {reason}" if reason else "nothing takes its outputs"
                )


def _layouts(places: Tensor, units: int) -> list[Layout] | None:
    """Return how units lie in a dimension whose entries are the units at `places`, -1 for none of them."""
    is_unit = places >= 0
    border = (is_unit[1:] != is_unit[:-1]).nonzero().flatten() + 1
    ends = [0, *border.tolist(), len(places)]
    layouts = [_layout(places, start, end, units) for start, end in itertools.pairwise(ends) if bool(is_unit[start])]
    regular = [layout for layout in layouts if layout is not None]
    return regular if len(regular) == len(layouts) else None


def _layout(places: Tensor, start: int, end: int, units: int) -> Layout | None:
    body = places[start:end]
    if len(body) % units:
        return None
    change = (body != body[0]).nonzero().flatten()
    width = int(change[0]) if len(change) else len(body)
    repeats = len(body) // (units * width)
    expected = torch.arange(units, device="cpu").repeat_interleave(width).repeat(repeats)
    return Layout(repeats, width, len(places) - end, start) if torch.equal(body, expected) else None


def _why_not_cut(module: nn.Module, name: str, plan: NestPlan) -> str | None:
    """Return why the parameters of a module that is no linear layer cannot be cut, or None."""
    if isinstance(module, nn.MultiheadAttention):
        return "nn.MultiheadAttention packs its weights and knows its width"
    parent = plan.modules[name.rpartition(".")[0]] if name else None
    if isinstance(parent, nn.MultiheadAttention):
        return "it belongs to nn.MultiheadAttention, which reads its children's weights without calling them"
    if not name:
        return "it belongs to the model itself"
    if any(list(child.parameters()) or list(child.buffers()) for child in module.children()):
        return f"a {type(module).__name__} has other layers inside"
    if list(module.buffers(recurse=False)):
        return f"a {type(module).__name__} has buffers"
    return None


def _query_key_groups(plan: NestPlan, trace: Trace) -> Iterator[UnitGroup]:
    """Yield the units of query and key of each attention whose projections hold them head by head."""
    before_attention = trace.ties.solve(with_attention=False)
    seen: set[tuple[str, ...]] = set()
    for attention in trace.attentions:
        if not attention.has_values:
            continue
        group = _query_key_group(plan, trace, attention, before_attention)
        if group is not None and group.producer_names not in seen:
            seen.add(group.producer_names)
            yield group


def _query_key_group(plan: NestPlan, trace: Trace, attention: Attention, solution: Solution) -> UnitGroup | None:
    (query, query_rows), (key, key_rows) = (_rows(plan, trace, n) for n in (attention.query, attention.key))
    if query is None or key is None:
        return None
    width = attention.query.shape[1]
    if query == key:
        rows, stacked = torch.cat([query_rows, key_rows]), 2
        if len(query_rows) != len(key_rows):
            return None
        layers = [(query, rows, stacked)]
    else:
        layers = [(query, query_rows, 1), (key, key_rows, 1)]
    producers = []
    for name, rows, stacked in layers:
        if not torch.equal(rows.flatten(), torch.arange(rows.numel(), device="cpu")):
            return None
        tail = plan.linear_map(name).outputs - rows.numel()
        producers.append(Producer(name, len(rows), tail, stacked))
    # Units that are tied within a head, as by rotary embeddings, must stay where they are.
    units = solution.unit_of[attention.query]
    can_be_ordered = all(len(unique(row)) == width for row in units)
    return UnitGroup(width, tuple(producers), pads=True, can_be_ordered=can_be_ordered)


def _rows(plan: NestPlan, trace: Trace, numbers: Tensor) -> tuple[str | None, Tensor]:
    """Return the layer whose rows the numbers are, and the rows."""
    lowest, highest = int(numbers.min()), int(numbers.max())
    for (name, dim), (first, length) in trace.ties.offsets.items():
        if first <= lowest and highest < first + length:
            layer, _, leaf = name.rpartition(".")
            linear = linear_map_of(plan.modules[layer]) if layer in plan.modules else ""
            is_rows = isinstance(linear, LinearMap) and dim == (1 if linear.kind == "conv1d_hf" else 0)
            if is_rows and leaf == "weight" and plan.why_not_nestable(layer) is None:
                return layer, numbers - first
    return None, numbers
