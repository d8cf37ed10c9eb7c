"""Optimizer state where parameters change their form: each coordinate takes its moments along.

A copy of the nested model whose parameters hold the numbers of their own coordinates is extracted, and the extracted
network then says where each of its coordinates came from. No layer has to know of it.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from partialsgd.nested.extract.level import extract_level
from partialsgd.nested.layers.base import NestedModule
from partialsgd.nested.layers.batch_norm import never_updated_is_fine
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.layers.separate import SeparateLevels
from partialsgd.nested.layers.sums import SumLayer
from partialsgd.nested.switch import FULL
from partialsgd.optimizers.capabilities import per_coordinate

if TYPE_CHECKING:
    from partialsgd.nested.nested import Nested

State: TypeAlias = dict[str, Any]


def carry_to_levels(
    nested: Nested, states: Mapping[Tensor, State], separate: Nested, optimizers: Sequence[Any]
) -> None:
    """Give the optimizers of `nested.part_ways()` the state that others had for the nested model.

    At the full level W + VU has the state of W. A counter, such as the steps of Adam, is the largest of those of the
    parameters that the new one was joined from.
    """
    assert isinstance(separate.model, SeparateLevels)
    sources = list(nested.parameters())
    carried: dict[Tensor, State] = {}
    for level in separate.levels:
        numbers = _coordinate_numbers(nested, level)
        for name, parameter in separate.model.network(level).named_parameters():
            carried[parameter] = _joined_state(sources, states, numbers[name], parameter)
    for optimizer in optimizers:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if carried[parameter]:
                optimizer.state[parameter] = carried[parameter]


def carry_into(nested: Nested, before: Mapping[str, nn.Parameter], optimizer: Optimizer) -> None:
    """Replace the parameters that a model had before it was nested in an optimizer, with their state.

    Parameters that are new, such as U and V of a low-rank layer, join the param group of their layer and begin anew.
    """
    sources, total = list(before.values()), sum(p.numel() for p in nested.parameters())
    came_from = torch.zeros(total + 1, dtype=torch.long)
    numbers = _coordinate_numbers(nested, FULL)
    for (name, parameter), first in zip(before.items(), _firsts(sources), strict=True):
        came_from[numbers[name].flatten()] = torch.arange(first, first + parameter.numel())
    group_of = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    owners: dict[str, int | None] = {}
    carried: dict[nn.Parameter, State] = {}
    for (name, parameter), first in zip(nested.named_parameters(), _firsts(list(nested.parameters())), strict=True):
        own = came_from[first : first + parameter.numel()].view(parameter.shape)
        carried[parameter] = _joined_state(sources, optimizer.state, own, parameter)
        if numbers_of_sources := _owners(own, sources):
            owners[name] = group_of.get(sources[numbers_of_sources[0]])
    members: defaultdict[int | None, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in nested.named_parameters():
        members[_group(name, owners)].append(parameter)
    for source in sources:
        optimizer.state.pop(source, None)
    for number, group in enumerate(optimizer.param_groups):
        others = [p for p in group["params"] if p not in set(sources)]
        group["params"] = others + members[number]
        optimizer.state.update({p: carried[p] for p in members[number] if carried[p]})


def require_carriable(modules: Iterable[nn.Module]) -> None:
    """Raise if a nested module makes one layer out of several that are trained."""
    if any(isinstance(module, SumLayer) for module in modules):
        raise NotImplementedError(
            "a LayerSum adds two layers to one, which has the moments of neither; build a new optimizer after nest"
        )


def _coordinate_numbers(nested: Nested, level: str) -> dict[str, Tensor]:
    """Return for each parameter of the extracted level the numbers of its coordinates in the nested model.

    The coordinates of all parameters of the nested model are counted from 1, in their order; 0 stands for none.
    """
    require_carriable(nested.nested_modules().values())
    probe = copy.deepcopy(nested.model).double().cpu()
    switches = [module.switch for module in probe.modules() if isinstance(module, NestedModule)]
    merged: set[nn.Parameter] = set()
    for module in probe.modules():
        if isinstance(module, LowRankLayer) and level not in module.low_rank_levels:
            merged |= {p for name, p in module.named_parameters() if name[0] in "UV"}
    parameters = list(probe.parameters())
    with torch.no_grad(), switches[0].at(level) if switches else nullcontext():
        for parameter, first in zip(parameters, _firsts(parameters), strict=True):
            numbers = torch.arange(first, first + parameter.numel()).view(parameter.shape)
            parameter.copy_(torch.zeros_like(numbers) if parameter in merged else numbers)
        with never_updated_is_fine():  # nobody runs this network
            extracted = extract_level(probe, level, {})
    return {name: p.detach().long() for name, p in extracted.named_parameters()}


def _joined_state(
    sources: Sequence[Tensor], states: Mapping[Tensor, State], numbers: Tensor, parameter: Tensor
) -> State:
    """Return the state of a parameter whose coordinates have these numbers among those of the sources."""
    firsts, joined = _firsts(sources), State()
    for index in _owners(numbers, sources):
        source, first = sources[index], firsts[index]
        state = states.get(source, {})
        coordinates = per_coordinate(state, source)
        inside = (numbers >= first) & (numbers < first + source.numel())
        for key, value in state.items():
            if key in coordinates:
                target = joined.setdefault(key, torch.zeros_like(parameter, dtype=value.dtype))
                target[inside.to(target.device)] = value.flatten()[(numbers[inside] - first).to(value.device)]
            elif value is not None and (key not in joined or float(value) > float(joined[key])):
                joined[key] = value.clone() if isinstance(value, Tensor) else value
    return joined


def _owners(numbers: Tensor, sources: Sequence[Tensor]) -> list[int]:
    """Return the indices of the sources that coordinates with these numbers are of."""
    counts = torch.bincount(torch.bucketize(numbers.flatten(), torch.tensor(_firsts(sources)), right=True))
    return [int(index) - 1 for index in counts.nonzero().flatten() if index > 0]


def _firsts(parameters: Iterable[Tensor]) -> list[int]:
    """Return the number of the first coordinate of each parameter."""
    return list(accumulate((p.numel() for p in parameters), initial=1))[:-1]


def _group(name: str, owners: Mapping[str, int | None]) -> int | None:
    """Return the param group of a parameter: its own, or that of a parameter in the smallest module around it."""
    prefix = name
    while prefix:
        for owner, group in owners.items():
            if owner == prefix or owner.startswith(f"{prefix}."):
                return group
        prefix = prefix.rpartition(".")[0]
    return 0
