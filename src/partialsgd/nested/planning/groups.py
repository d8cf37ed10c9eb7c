"""Groups of hidden units that are narrowed together: those that patterns name, and the axes of their layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd.nested.layers.axes import Axis, AxisPart
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.parameters import matches

Order = Literal["first", "norm", "gradient"]
_WILDCARD = r"(\*|\?|\[[^\]]+\])"


@final
@dataclass(frozen=True)
class Producer:
    """A layer whose outputs are the units of a group, in each of `heads` heads, between `before` and `tail` others.

    Each unit is `width` outputs in a row.
    """

    name: str
    heads: int = 1
    tail: int = 0
    stacked: int = 1
    """How many projections the heads belong to: 2 if query and key are packed in one layer."""
    width: int = 1
    before: int = 0


@final
@dataclass(frozen=True)
class UnitSlice:
    """The place of a group's units in one dimension of a parameter, or of a buffer.

    The dimension has `before` entries of other groups or none, then `repeats` times all units, one after the other,
    each unit `width` entries in a row, then `tail` other entries.
    """

    parameter: str
    dim: int
    repeats: int = 1
    width: int = 1
    tail: int = 0
    before: int = 0

    @property
    def module(self) -> str:
        return self.parameter.rpartition(".")[0]

    @property
    def is_whole(self) -> bool:
        """True if all entries of the dimension belong to the units, each unit once."""
        return self.repeats == 1 and not self.before and not self.tail


@final
@dataclass(frozen=True)
class UnitGroup:
    """The units of one hidden layer, the layers that make them (producers) and those that take them (consumers)."""

    units: int
    producers: tuple[Producer, ...]
    taken: tuple[UnitSlice, ...] = ()
    """The places of the units in the weights of the consumers."""
    normalised: tuple[UnitSlice, ...] = ()
    """Their places in BatchNorms, alike in weight, bias, running_mean and running_var."""
    pads: bool = False
    """True for query and key: they are narrowed in each head and padded with zeros, so they have no consumers."""
    can_be_ordered: bool = True
    others: tuple[UnitSlice, ...] = ()
    """Parameters of other modules than linear layers and BatchNorm: experts, depth-wise convolutions, subclasses."""

    @property
    def name(self) -> str:
        return self.producer_names[0]

    @property
    def producer_names(self) -> tuple[str, ...]:
        """The layers that make the units; modules of other kinds may both make and take them."""
        return tuple(producer.name for producer in self.producers) + self.other_names

    @property
    def consumers(self) -> tuple[str, ...]:
        return _modules_of(self.taken)

    @property
    def norms(self) -> tuple[str, ...]:
        return _modules_of(self.normalised)

    @property
    def other_names(self) -> tuple[str, ...]:
        return _modules_of(self.others)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of producers and consumers."""
        return self.producer_names + self.consumers

    def is_named_by(self, pattern: str) -> bool:
        """True if the pattern matches a layer that makes the units."""
        return any(matches(name, pattern) for name in self.producer_names)


@final
@dataclass
class HiddenUnits:
    """The groups that a trace shows, and the reasons why other layers are in none."""

    feed_forward: list[UnitGroup] = field(default_factory=list)
    """The groups that `Width` narrows by default."""
    heads: list[UnitGroup] = field(default_factory=list)
    """Attention heads, with their queries, keys, values and the columns that take them."""
    query_key: list[UnitGroup] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """The layers whose outputs are not narrowed, each with the reason."""
    unknown: list[str] = field(default_factory=list)
    """The operations that have no rule, each with the module that ran it."""


def _modules_of(slices: Sequence[UnitSlice]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.module for part in slices))


def unit_slices(plan: NestPlan, group: UnitGroup) -> list[UnitSlice]:
    """Return the dimensions of parameters that become smaller with the units of a group."""
    slices = []
    for producer in group.producers:
        is_transposed = _linear_map(plan, producer.name).kind == "conv1d_hf"
        for leaf, dim in (("weight", int(is_transposed)), ("bias", 0)):
            if getattr(plan.modules[producer.name], leaf) is not None:
                layout = producer.heads, producer.width, producer.tail, producer.before
                slices.append(UnitSlice(f"{producer.name}.{leaf}", dim, *layout))
    for part in group.normalised:
        leaves = plan.modules[part.module]._parameters
        slices += [
            replace(part, parameter=f"{part.module}.{leaf}") for leaf in ("weight", "bias") if leaves[leaf] is not None
        ]
    return [*slices, *group.others, *group.taken]


def require_disjoint(groups: Sequence[UnitGroup]) -> None:
    """Refuse groups of which two have the same entries of a layer's outputs, of its inputs, or of a norm."""
    owners: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for group in groups:
        outputs = [UnitSlice(f"{p.name}.", 0, p.heads, p.width, p.tail, p.before) for p in group.producers]
        for role, slices in (("made", outputs), ("taken", group.taken), ("norm", group.normalised), ("", group.others)):
            for part in slices:
                end = part.before + part.repeats * part.width * group.units
                spans = owners.setdefault((role, part.parameter, part.dim), [])
                if any(part.before < other_end and start < end for start, other_end in spans):
                    raise ValueError(
                        f"{part.module!r} belongs to two groups of hidden units; a layer can be narrowed in one way"
                    )
                spans.append((part.before, end))


def hidden_groups(plan: NestPlan, chains: Sequence[tuple[str, ...]]) -> list[UnitGroup]:
    """Return one group for each way in which all patterns of a chain match with the same text for `*`."""
    groups = []
    for chain in chains:
        names_by_text = [_names_by_wildcard_text(plan, pattern) for pattern in chain]
        for text, first in names_by_text[0].items():
            names = [first, *(names[text] for names in names_by_text[1:] if text in names)]
            if len(names) < len(chain):
                missing = next(p for p, names in zip(chain, names_by_text, strict=True) if text not in names)
                raise ValueError(f"hidden: {first!r} makes units, and no layer that matches {missing!r} goes with it")
            groups.append(_group(plan, names))
    return groups


def _group(plan: NestPlan, names: Sequence[str]) -> UnitGroup:
    """Return the group of layers of which the last takes the units; a BatchNorm among them normalises the units."""
    norms = tuple(name for name in names if isinstance(plan.modules[name], _BatchNorm))
    *makers, taker = [name for name in names if name not in norms] or [""]
    if not makers:
        raise ValueError(
            f"hidden names {', '.join(map(repr, names))}; it must name a layer that makes units and one that takes them"
        )
    taken, units = _linear_map(plan, taker).inputs, _linear_map(plan, makers[0]).outputs
    for name in makers:
        linear = _linear_map(plan, name)
        is_flattened = linear.kind == "conv2d" and taken % linear.outputs == 0 and len(makers) == 1
        if linear.outputs != taken and not is_flattened:
            raise ValueError(f"{name!r} makes {linear.outputs} units and {taker!r} takes {taken}")
    for name in norms:
        if (features := plan.modules[name].num_features) != units:
            raise ValueError(f"{makers[0]!r} makes {units} units and {name!r} normalises {features}")
    producers = tuple(Producer(name) for name in makers)
    normalised = tuple(UnitSlice(f"{name}.running_mean", 0) for name in norms)
    return UnitGroup(units, producers, (taken_slice(plan, taker, taken // units),), normalised)


def taken_slice(plan: NestPlan, name: str, width: int) -> UnitSlice:
    """Return the inputs of a layer that takes each unit of a group as `width` inputs in a row."""
    return UnitSlice(f"{name}.weight", 0 if _linear_map(plan, name).kind == "conv1d_hf" else 1, width=width)


def _linear_map(plan: NestPlan, name: str) -> LinearMap:
    linear = linear_map_of(plan.modules[name])
    if isinstance(linear, str):
        raise ValueError(f"hidden: {name!r} neither makes nor takes units: {linear}; name other layers")
    return linear


def _names_by_wildcard_text(plan: NestPlan, pattern: str) -> dict[tuple[str, ...], str]:
    """Return each matching module by the text before the pattern and the texts of its wildcards."""
    regex = re.compile(r"(?:(.*)\.)?" + "".join(_as_regex(part) for part in re.split(_WILDCARD, pattern)))
    names = ((regex.fullmatch(name), name) for name in plan.match([pattern]))
    return {tuple(text or "" for text in match.groups()): name for match, name in names if match}


def _as_regex(part: str) -> str:
    if re.fullmatch(_WILDCARD, part) is None:
        return re.escape(part)
    return {"*": "(.*)", "?": "(.)"}.get(part, f"({part.replace('[!', '[^')})")


@final
@dataclass(frozen=True)
class Cut:
    """A group, and how many of its units each level has."""

    group: UnitGroup
    sizes: dict[str, int]
    order: Order | Mapping[str, Sequence[int]]

    def producer_part(self, plan: NestPlan, producer: Producer) -> AxisPart:
        """Return the part of a layer's outputs that are the units."""
        order, width = self._permutation(plan), producer.width
        if order is not None:
            order = _over_heads(order, producer)
        sizes = {level: size * width for level, size in self.sizes.items()}
        return AxisPart(producer.before, Axis(self.group.units * width, sizes, producer.heads, 0, order))

    def part(self, plan: NestPlan, units: UnitSlice) -> AxisPart:
        """Return the part of a dimension that belongs to the units; flattened, a unit is several entries in a row."""
        return self.producer_part(plan, Producer("", units.repeats, width=units.width, before=units.before))

    def _permutation(self, plan: NestPlan) -> Tensor | None:
        """Return the units of each head, the most important first."""
        if isinstance(self.order, Mapping):
            return self._given_permutation(self.order)
        if self.order == "first" or not self.group.can_be_ordered:
            return None
        return torch.argsort(_importance(plan, self.group, self.order), dim=1, descending=True, stable=True)

    def _given_permutation(self, orders: Mapping[str, Sequence[int]]) -> Tensor | None:
        if (order := orders.get(self.group.name)) is None:
            return None
        units = self.group.units
        if sorted(order) != list(range(units)):
            raise ValueError(
                f"order must list each of the {units} units of {self.group.name!r} once, from 0 to {units - 1}; "
                f"it lists {len(order)}"
            )
        if not self.group.can_be_ordered and list(order) != list(range(units)):
            raise ValueError(f"the units of {self.group.name!r} cannot be reordered; leave it out of `order`")
        return torch.tensor(list(order), device="cpu")[None]


def _importance(plan: NestPlan, group: UnitGroup, order: Order) -> Tensor:
    """Return for each unit the squared norm of its weights (for a small δx) or gradients (for a small c_norm)."""
    # Only query and key are ordered in each head; units that lie several times in a dimension are the same ones.
    heads = min(producer.heads // producer.stacked for producer in group.producers) if group.pads else 1
    total = torch.zeros(heads, group.units, dtype=torch.float64, device="cpu")
    for producer in group.producers:
        length = producer.heads * group.units * producer.width
        for values in _values(plan, producer.name, order):
            squares = values.narrow(0, producer.before, length).double().pow(2).flatten(1).sum(1)
            # Several query heads may share one key head; their units are ordered together.
            total += squares.view(producer.stacked, heads, -1, group.units, producer.width).sum((0, 2, 4)).cpu()
    rows = {f"{producer.name}.{leaf}" for producer in group.producers for leaf in ("weight", "bias")}
    for part in unit_slices(plan, group):
        if part.parameter not in rows or part in group.taken:
            name = part.parameter if part in group.others else part.module
            values = _of_order(plan.model.get_parameter(part.parameter), order, name)
            body = by_unit(values.double().pow(2), part, group.units)
            total += body.transpose(0, 1).flatten(1).sum(1).cpu()
    return total


def by_unit(tensor: Tensor, part: UnitSlice, units: int) -> Tensor:
    """Return a view (repeats, units, width, …) of the part of a parameter that belongs to units."""
    body = tensor.movedim(part.dim, 0).narrow(0, part.before, part.repeats * units * part.width)
    return torch.unflatten(body, 0, (part.repeats, units, part.width))


def _values(plan: NestPlan, name: str, order: Order) -> list[Tensor]:
    """Return weight and bias, or their gradients, with the outputs in the first dimension."""
    layer, linear = plan.modules[name], linear_map_of(plan.modules[name])
    parameters = [p for p in (layer._parameters.get("weight"), layer._parameters.get("bias")) if p is not None]
    values = [_of_order(p, order, name) for p in parameters]
    return [v[:, None] if v.ndim == 1 else linear.stored(v) if isinstance(linear, LinearMap) else v for v in values]


def _of_order(parameter: nn.Parameter, order: Order, name: str) -> Tensor:
    if order == "norm":
        return parameter.detach()
    if parameter.grad is None:
        raise ValueError(f'order="gradient" needs gradients and {name!r} has none: run loss.backward() before nest')
    return parameter.grad


def _over_heads(order: Tensor, producer: Producer) -> Tensor:
    heads, units = order.shape
    each = order.repeat_interleave(producer.heads // producer.stacked // heads, 0).repeat(producer.stacked, 1)
    each = each + units * torch.arange(producer.heads, device="cpu")[:, None]
    return (each[:, :, None] * producer.width + torch.arange(producer.width, device="cpu")).flatten()
