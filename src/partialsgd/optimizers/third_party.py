"""Optimizers from outside torch: their first masked step is checked for changes outside the mask."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from partialsgd.masks import Mask
from partialsgd.optimizers.capabilities import is_from_torch
from partialsgd.optimizers.param_groups import ParamGroups
from partialsgd.parameters import Parameters


@final
class Verification:
    """Compares tensors wholly outside the mask with a copy, once for each such optimizer, and undoes a wrong step."""

    def __init__(self, parameters: Parameters, groups: ParamGroups, optimizers: Sequence[Optimizer]) -> None:
        self._parameters = parameters
        self._groups = groups
        self._optimizers = optimizers
        self.unverified = [optimizer for optimizer in optimizers if not is_from_torch(optimizer)]

    @contextmanager
    def verify(self, mask: Mask, *, with_state: bool) -> Iterator[None]:
        outside = {n: self._parameters[n] for n, e in mask.items() if e is False and self._is_unverified(n)}
        if not outside:
            yield
            return
        undo = Undo(self._parameters, self._optimizers)
        yield
        for name, parameter in outside.items():
            optimizer = self._groups[name].optimizer
            if not undo.is_unchanged(parameter, optimizer, with_state=with_state):
                undo.roll_back()
                raise RuntimeError(
                    f"{type(optimizer).__name__} changed {name!r} although it had no gradient, so a mask cannot be "
                    "held with it; the step was undone. Use an optimizer that skips parameters whose grad is None"
                )
        verified = {id(self._groups[name].optimizer) for name in outside}
        self.unverified = [optimizer for optimizer in self.unverified if id(optimizer) not in verified]

    def _is_unverified(self, name: str) -> bool:
        return name in self._groups and any(self._groups[name].optimizer is optimizer for optimizer in self.unverified)


@final
class Undo:
    """A copy of parameters and optimizers, to go back to."""

    def __init__(self, parameters: Parameters, optimizers: Sequence[Optimizer]) -> None:
        self._values: dict[Tensor, Tensor] = {p: p.detach().clone() for p in parameters.values()}
        self._optimizers = optimizers
        self._states = [{p: copy.deepcopy(dict(s)) for p, s in o.state.items()} for o in optimizers]
        self._groups = [[_options(group) for group in o.param_groups] for o in optimizers]

    def is_unchanged(self, parameter: Tensor, optimizer: Optimizer, *, with_state: bool) -> bool:
        before = next(s for o, s in zip(self._optimizers, self._states, strict=True) if o is optimizer)
        same_state = not with_state or _equal(before.get(parameter), optimizer.state.get(parameter))
        return torch.equal(parameter, self._values[parameter]) and same_state

    @torch.no_grad()
    def roll_back(self) -> None:
        for parameter, value in self._values.items():
            parameter.copy_(value)
        for optimizer, state, groups in zip(self._optimizers, self._states, self._groups, strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                group.update(options)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}


def _equal(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> bool:
    if not a or not b:
        return not a and not b
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], Tensor) else a[k] == b[k] for k in a
    )
