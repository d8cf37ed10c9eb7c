"""Hidden units that belong together: what must be narrowed at once for a network to stay a network."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from partialsgd.nested.layers.axes import Axis
from partialsgd.nested.layers.kinds import Form, form_of
from partialsgd.nested.planning.nest_plan import NestPlan

Order = Literal["first", "norm", "gradient"]


@final
@dataclass(frozen=True)
class Producer:
    """A layer whose outputs are the units: of one hidden layer, or of each of `heads` heads and then `tail` others."""

    name: str
    heads: int = 1
    tail: int = 0
    stacked: int = 1
    """How often the heads come in turn: twice where query and key are packed in one layer."""


@final
@dataclass(frozen=True)
class Group:
    """The units of one hidden layer, the layers that make them and those that take them."""

    units: int
    producers: tuple[Producer, ...]
    consumers: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    pads: bool = False
    """Query and key: narrowed in each head, padded with zeros to the head's width, and taken by nobody."""
    can_be_ordered: bool = True

    @property
    def name(self) -> str:
        return self.producers[0].name

    @property
    def producer_names(self) -> tuple[str, ...]:
        return tuple(producer.name for producer in self.producers)

    @property
    def members(self) -> tuple[str, ...]:
        """The layers that make the units and those that take them."""
        return self.producer_names + self.consumers


def require_apart(groups: Sequence[Group]) -> None:
    """A layer makes the units of one group, and takes those of one."""
    for members in zip(*((g.producer_names, g.consumers, g.norms) for g in groups), strict=True):
        twice = [name for name, count in Counter(itertools.chain(*members)).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]!r} belongs to two groups of hidden units; a layer can be cut in one way only")


@final
@dataclass(frozen=True)
class Cut:
    """A group and how many of its units each level has."""

    group: Group
    sizes: dict[str, int]
    order: Order

    def producer_axis(self, site: NestPlan, producer: Producer) -> Axis:
        order = self._permutation(site)
        if order is not None:
            order = _over_heads(order, producer)
        return Axis(self.group.units, self.sizes, producer.heads, producer.tail, order)

    def consumer_axis(self, site: NestPlan, name: str) -> Axis:
        """Of a flattened image each unit is several inputs in a row."""
        form = form_of(site.modules[name])
        assert isinstance(form, Form)  # looked at when the group was found
        times = form.inputs // self.group.units
        order = self._permutation(site)
        if order is not None:
            order = (order[0][:, None] * times + torch.arange(times)).flatten()
        return Axis(self.group.units * times, {level: n * times for level, n in self.sizes.items()}, order=order)

    def norm_axis(self, site: NestPlan) -> Axis:
        order = self._permutation(site)
        return Axis(self.group.units, self.sizes, order=None if order is None else order[0])

    def _permutation(self, site: NestPlan) -> Tensor | None:
        """For each head its units, the most important first."""
        if self.order == "first" or not self.group.can_be_ordered:
            return None
        return torch.argsort(_importance(site, self.group, self.order), dim=1, descending=True, stable=True)


def _importance(site: NestPlan, group: Group, order: Order) -> Tensor:
    """‖its coordinates‖² for each unit: of x, so that δx is small, or of the gradient, so that c_norm is."""
    heads = min(producer.heads // producer.stacked for producer in group.producers)
    total = torch.zeros(heads, group.units, dtype=torch.float64)
    for producer in group.producers:
        for values in _values(site, producer.name, order):
            body = values[: producer.heads * group.units].double().pow(2).flatten(1).sum(1)
            # Several query heads may share one key head; their units go together.
            total += body.view(producer.stacked, heads, -1, group.units).sum((0, 2)).cpu()
    for name in group.consumers:
        weight = _values(site, name, order)[0].double().pow(2)
        total += weight.transpose(0, 1).flatten(1).sum(1).view(heads, group.units, -1).sum(2).cpu()
    for name in group.norms:
        for values in _values(site, name, order):
            total += values.double().pow(2).view(1, -1).cpu()
    return total


def _values(site: NestPlan, name: str, order: Order) -> list[Tensor]:
    """Weight and bias, or their gradients, with the outputs in the first dimension."""
    layer, form = site.modules[name], form_of(site.modules[name])
    parameters = [p for p in (layer._parameters.get("weight"), layer._parameters.get("bias")) if p is not None]
    if order == "gradient" and any(p.grad is None for p in parameters):
        raise ValueError(f'order="gradient" needs gradients and {name!r} has none: run loss.backward() before nest')
    values = [p.grad if order == "gradient" and p.grad is not None else p.detach() for p in parameters]
    is_transposed = isinstance(form, Form) and form.kind == "conv1d_hf"
    columns = [v.t() if is_transposed and v.ndim == 2 else v for v in values]
    return [v[:, None] if v.ndim == 1 else v for v in columns]


def _over_heads(order: Tensor, producer: Producer) -> Tensor:
    heads, units = order.shape
    each = order.repeat_interleave(producer.heads // producer.stacked // heads, 0).repeat(producer.stacked, 1)
    body = (each + units * torch.arange(producer.heads)[:, None]).flatten()
    return torch.cat([body, torch.arange(producer.tail) + len(body)])
