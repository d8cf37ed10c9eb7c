"""Groups of hidden units that are narrowed together: those that patterns name, and the axes of their layers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from partialsgd.nested.layers.axes import Axis
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.planning.nest_plan import NestPlan

Order = Literal["first", "norm", "gradient"]
_WILDCARD = r"(\*|\?|\[[^\]]+\])"


@final
@dataclass(frozen=True)
class Producer:
    """A layer whose outputs are the units of a group, in each of `heads` heads, followed by `tail` other outputs."""

    name: str
    heads: int = 1
    tail: int = 0
    stacked: int = 1
    """How many projections the heads belong to: 2 if query and key are packed in one layer."""


@final
@dataclass(frozen=True)
class UnitGroup:
    """The units of one hidden layer, the layers that make them (producers) and those that take them (consumers)."""

    units: int
    producers: tuple[Producer, ...]
    consumers: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    pads: bool = False
    """True for query and key: they are narrowed in each head and padded with zeros, so they have no consumers."""
    can_be_ordered: bool = True

    @property
    def name(self) -> str:
        return self.producers[0].name

    @property
    def producer_names(self) -> tuple[str, ...]:
        return tuple(producer.name for producer in self.producers)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of producers and consumers."""
        return self.producer_names + self.consumers


def require_disjoint(groups: Sequence[UnitGroup]) -> None:
    """Refuse a layer that makes the units of two groups, or takes those of two."""
    for names in zip(*((g.producer_names, g.consumers, g.norms) for g in groups), strict=True):
        twice = [name for name, count in Counter(itertools.chain(*names)).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]!r} belongs to two groups of hidden units; a layer can be narrowed in one way")


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
    return UnitGroup(units, tuple(Producer(name) for name in makers), (taker,), norms)


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
    order: Order

    def producer_axis(self, plan: NestPlan, producer: Producer) -> Axis:
        order = self._permutation(plan)
        if order is not None:
            order = _over_heads(order, producer)
        return Axis(self.group.units, self.sizes, producer.heads, producer.tail, order)

    def consumer_axis(self, plan: NestPlan, name: str) -> Axis:
        """Return the axis of a consumer's inputs; after flattening, each unit is several inputs in a row."""
        times = plan.linear_map(name).inputs // self.group.units
        order = self._permutation(plan)
        if order is not None:
            order = (order[0][:, None] * times + torch.arange(times, device="cpu")).flatten()
        return Axis(self.group.units * times, {level: n * times for level, n in self.sizes.items()}, order=order)

    def norm_axis(self, plan: NestPlan) -> Axis:
        order = self._permutation(plan)
        return Axis(self.group.units, self.sizes, order=None if order is None else order[0])

    def _permutation(self, plan: NestPlan) -> Tensor | None:
        """Return the units of each head, the most important first."""
        if self.order == "first" or not self.group.can_be_ordered:
            return None
        return torch.argsort(_importance(plan, self.group, self.order), dim=1, descending=True, stable=True)


def _importance(plan: NestPlan, group: UnitGroup, order: Order) -> Tensor:
    """Return for each unit the squared norm of its weights (for a small δx) or gradients (for a small c_norm)."""
    heads = min(producer.heads // producer.stacked for producer in group.producers)
    total = torch.zeros(heads, group.units, dtype=torch.float64, device="cpu")
    for producer in group.producers:
        for values in _values(plan, producer.name, order):
            squares = values[: producer.heads * group.units].double().pow(2).flatten(1).sum(1)
            # Several query heads may share one key head; their units are ordered together.
            total += squares.view(producer.stacked, heads, -1, group.units).sum((0, 2)).cpu()
    for name in group.consumers:
        weight = _values(plan, name, order)[0].double().pow(2)
        total += weight.transpose(0, 1).flatten(1).sum(1).view(heads, group.units, -1).sum(2).cpu()
    for name in group.norms:
        for values in _values(plan, name, order):
            total += values.double().pow(2).view(1, -1).cpu()
    return total


def _values(plan: NestPlan, name: str, order: Order) -> list[Tensor]:
    """Return weight and bias, or their gradients, with the outputs in the first dimension."""
    layer, linear = plan.modules[name], linear_map_of(plan.modules[name])
    parameters = [p for p in (layer._parameters.get("weight"), layer._parameters.get("bias")) if p is not None]
    if order == "gradient" and any(p.grad is None for p in parameters):
        raise ValueError(f'order="gradient" needs gradients and {name!r} has none: run loss.backward() before nest')
    values = [p.grad if order == "gradient" and p.grad is not None else p.detach() for p in parameters]
    return [v[:, None] if v.ndim == 1 else linear.stored(v) if isinstance(linear, LinearMap) else v for v in values]


def _over_heads(order: Tensor, producer: Producer) -> Tensor:
    heads, units = order.shape
    each = order.repeat_interleave(producer.heads // producer.stacked // heads, 0).repeat(producer.stacked, 1)
    body = (each + units * torch.arange(producer.heads, device="cpu")[:, None]).flatten()
    return torch.cat([body, torch.arange(producer.tail, device="cpu") + len(body)])
