"""Optimizer state that has one number for each coordinate, so that it can move between workers with its parameter."""

from __future__ import annotations

from torch import Tensor

from partialsgd.optimizers import capabilities
from partialsgd.optimizers.param_groups import GroupOf, ParamGroups
from partialsgd.parameters import Parameters


def state_of(parameters: Parameters, groups: ParamGroups, name: str) -> dict[str, Tensor]:
    """The state of a parameter that has the parameter's shape, by the optimizer's own keys."""
    group: GroupOf | None = groups.get(name)
    parameter = parameters[name]
    state = {} if group is None else group.optimizer.state.get(parameter, {})
    return capabilities.per_coordinate(state, parameter)


def require_mergeable_state(parameters: Parameters, groups: ParamGroups) -> None:
    """Raise if an optimizer keeps state that is neither one number for each coordinate nor a single number."""
    for name, parameter in parameters.items():
        group: GroupOf | None = groups.get(name)
        if group is None:
            continue
        known = state_of(parameters, groups, name)
        for key, value in group.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.ndim and value.numel() > 1 and key not in known:
                raise NotImplementedError(
                    f"{type(group.optimizer).__name__} keeps {key!r} of shape {tuple(value.shape)} for {name!r}, "
                    "which cannot be split by units; use an optimizer whose state has the shape of the parameter"
                )
