"""Optimizers from outside torch: their first masked step is checked for changes outside the mask."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
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
        self.unverified = {optimizer for optimizer in optimizers if not is_from_torch(optimizer)}

    def copy_of(self, mask: Mask, *, with_state: bool) -> Callable[[], None]:
        """Copy what the step must not change, and return the function that compares it after the step."""
        held = {name: self._groups[name].optimizer for name, e in mask.items() if e is False and name in self._groups}
        outside = {name: optimizer for name, optimizer in held.items() if optimizer in self.unverified}
        if not outside:
            return lambda: None
        values = {p: p.detach().clone() for p in self._parameters.values()}
        states = {o: {p: copy.deepcopy(dict(state)) for p, state in o.state.items()} for o in self._optimizers}
        options = [(g, copy.deepcopy(_without_params(g))) for o in self._optimizers for g in o.param_groups]

        @torch.no_grad()
        def compare() -> None:
            for name, optimizer in outside.items():
                parameter = self._parameters[name]
                same_state = not with_state or _equal(states[optimizer].get(parameter), optimizer.state.get(parameter))
                if same_state and torch.equal(parameter, values[parameter]):
                    continue
                torch._foreach_copy_([p.detach() for p in values], list(values.values()))
                for stepped, state in states.items():
                    stepped.state.clear()
                    stepped.state.update(state)
                for group, old in options:
                    group.update(old)
                raise RuntimeError(
                    f"{type(optimizer).__name__} changed {name!r} although it had no gradient, so a mask cannot be "
                    "held with it; the step was undone. Use an optimizer that skips parameters whose grad is None"
                )
            self.unverified -= set(outside.values())

        return compare


def _without_params(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _equal(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> bool:
    a, b = a or {}, b or {}
    same = (torch.equal(a[k], b[k]) if isinstance(a[k], Tensor) else a[k] == b[k] for k in a.keys() & b.keys())
    return a.keys() == b.keys() and all(same)
