"""The cost of a level, parameters or FLOPs, as a function of the sizes of its groups and layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, final

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from partialsgd.nested.budgets.choices import Choice, RankChoice, UnitChoice, frozen
from partialsgd.nested.example_inputs import Call
from partialsgd.nested.inspect import flops
from partialsgd.nested.layers.base import level_parameters

Sizes: TypeAlias = Mapping[str, int]
SHORT = "short"
"""The level at which lists of blocks are while blocks are left out of them."""


class Length(NamedTuple):
    """The length of a dimension: so many entries for each unit of some choices, and the rest, which always stays."""

    entries: tuple[tuple[str, int], ...]
    rest: int

    def at(self, sizes: Sizes) -> int:
        return self.rest + sum(sizes[name] * each for name, each in self.entries)


class Term(Protocol):
    """The part of the cost that depends on some of the choices."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def value(self, sizes: Sizes) -> float: ...


@final
@dataclass(frozen=True)
class Product:
    """A coefficient times the lengths of some dimensions."""

    coefficient: float
    lengths: tuple[Length, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for length in self.lengths for name, _ in length.entries)

    def value(self, sizes: Sizes) -> float:
        return self.coefficient * math.prod(length.at(sizes) for length in self.lengths)


@final
@dataclass(frozen=True)
class Cost:
    """The cost of the whole network, and the terms of it that become smaller."""

    full: float
    terms: tuple[Term, ...]
    at_full: float
    """The value of the terms in the whole network."""
    allowed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The sizes that a choice may have, where not every size may be chosen; they grow."""

    def at(self, sizes: Sizes) -> float:
        return self.full - self.at_full + sum(term.value(sizes) for term in self.terms)

    def sizes_of(self, choice: Choice) -> Sequence[int]:
        """Return the sizes that a choice may have, smallest first."""
        return self.allowed.get(choice.name) or range(1, choice.largest + 1)

    def saved(self, sizes: Sizes, name: str, size: int) -> float:
        """Return how much a smaller size of one choice saves."""
        smaller = {**sizes, name: size}
        return sum(t.value(sizes) - t.value(smaller) for t in self.terms if name in t.names)


def parameter_cost(model: nn.Module, choices: Sequence[Choice]) -> Cost:
    """Return the number of parameters of an extracted level."""
    full = float(sum(parameter.numel() for parameter in level_parameters(model, SHORT)))
    return _cost(full, _products(model, choices, {}), choices)


def flop_cost(model: nn.Module, choices: Sequence[Choice], call: Call) -> Cost:
    """Return the FLOPs of a forward pass; in a layer they are proportional to the size of its weight."""
    args, kwargs = call
    full = float(flops.count(model, *args, **kwargs).forward)
    return _cost(full, _products(model, choices, _flops_by_module(model, call)), choices)


def _flops_by_module(model: nn.Module, call: Call) -> dict[str, float]:
    """Return the FLOPs of each module without children, which its weight is responsible for."""
    counter, root = FlopCounterMode(display=False), type(model).__name__
    args, kwargs = call
    with torch.no_grad(), frozen(model), counter:
        model(*args, **kwargs)
    counts = counter.get_flop_counts()
    leaves = [name for name, module in model.named_modules() if not any(module.children())]
    return {name: float(sum(counts.get(f"{root}.{name}", {}).values())) for name in leaves}


def _products(model: nn.Module, choices: Sequence[Choice], by_module: Mapping[str, float]) -> list[Product]:
    """Return a product for each parameter that becomes smaller, in parameters, or in FLOPs if they are given."""
    products = []
    for name, by_dim in cut_lengths(model, choices).items():
        parameter, module = model.get_parameter(name), name.rpartition(".")[0]
        rest: float = math.prod(n for dim, n in enumerate(parameter.shape) if dim not in by_dim)
        if by_module:
            weights = [p for p in model.get_submodule(module).parameters(recurse=False) if p.ndim > 1]
            whole = sum(p.numel() for p in weights)
            rest = by_module.get(module, 0.0) / whole * rest if parameter.ndim > 1 else 0
        products.append(Product(rest, tuple(by_dim.values())))
    for choice in choices:
        if isinstance(choice, RankChoice):
            outputs, inputs = choice.factors[0].shape[0], choice.factors[1].shape[1]
            per_weight = by_module.get(choice.name, 0.0) / (outputs * inputs) if by_module else 1.0
            products.append(Product(per_weight * (outputs + inputs), (Length(((choice.name, 1),), 0),)))
    return products


def cut_lengths(model: nn.Module, choices: Sequence[Choice]) -> dict[str, dict[int, Length]]:
    """Return the lengths of the dimensions of parameters that become smaller with the units of choices."""
    entries: dict[str, dict[int, dict[str, int]]] = {}
    units = {choice.name: choice for choice in choices if isinstance(choice, UnitChoice)}
    for name, choice in units.items():
        for part in choice.slices:
            own = entries.setdefault(part.parameter, {}).setdefault(part.dim, {})
            own[name] = own.get(name, 0) + part.repeats * part.width
    lengths: dict[str, dict[int, Length]] = {}
    for parameter, by_dim in entries.items():
        shape = model.get_parameter(parameter).shape
        lengths[parameter] = {
            dim: Length(tuple(own.items()), shape[dim] - sum(units[name].full * n for name, n in own.items()))
            for dim, own in by_dim.items()
        }
    return lengths


def _cost(full: float, products: Sequence[Product], choices: Sequence[Choice]) -> Cost:
    sizes = {choice.name: choice.full for choice in choices}
    ranks = {choice.name: choice for choice in choices if isinstance(choice, RankChoice)}
    at_full = 0.0
    for product in products:
        rank = ranks.get(product.names[0])
        if rank is None:
            at_full += product.value(sizes)
        else:  # the whole layer is dense
            outputs, inputs = rank.factors[0].shape[0], rank.factors[1].shape[1]
            at_full += product.coefficient * outputs * inputs / (outputs + inputs)
    return Cost(full, tuple(products), at_full)
