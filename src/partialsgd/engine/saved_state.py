"""Checks of a state that `PartialSGD.load_state_dict` is given: they raise, and change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from partialsgd._util import shards
from partialsgd._util.randomness import key
from partialsgd.method import Remembered
from partialsgd.parameters import Parameters

_SINCE_LATER = {"measured", "remembers", "state"}
"""Entries that states of earlier versions do not have."""


def remembered_names(state: Mapping[str, Any]) -> str:
    """A number for the names of all that a state remembers, to notice a state that was loaded in part."""
    memories = {"memory": state["memory"], "left_out": state["left_out"], **state.get("measured", {})}
    names = sorted(f"{who}\0{name}" for who, memory in memories.items() for name in memory)
    return f"{len(names)} names ({key(*names) % 2**32:08x})"


def check_state(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise if the state is not one of a `PartialSGD` with the same method and model as the state `own`."""
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict() takes what state_dict() returned, got {state!r}")
    if missing := own.keys() - state.keys() - _SINCE_LATER:
        raise ValueError(
            f"this is not a state of PartialSGD: it lacks {', '.join(sorted(missing))}; load what "
            "sgd.state_dict() returned (the optimizer's own state is loaded by optimizer.load_state_dict)"
        )
    for name, saved in (
        ("method", state["method"]),
        ("outside", state["outside"]),
        ("state", state.get("state", "shared")),
    ):
        if saved != own[name]:
            raise ValueError(f"the state was saved with {name}={saved!r}, and this has {name}={own[name]!r}")
    for name in own["parameters"].keys() | state["parameters"].keys():
        saved, shape = state["parameters"].get(name), own["parameters"].get(name)
        if saved != shape:
            raise ValueError(f"the state is of another model: {name!r} has shape {saved} there, {shape} here")
    if state.get("remembers", remembered_names(state)) != remembered_names(state):
        raise ValueError(
            f"the state was saved with a memory of {state['remembers']}, and was loaded with "
            f"{remembered_names(state)}: torch.distributed.checkpoint loads only names that are there already; "
            "load it by ps.distributed.load(directory, sgd)"
        )


def placed(parameters: Parameters, memory: Mapping[str, Remembered]) -> dict[str, Remembered]:
    """Return the memory with each tensor that belongs to a parameter in the layout of that parameter."""
    if not (parameters.is_sharded or any(map(shards.is_sharded, memory.values()))):
        return dict(memory)
    laid_out: dict[str, Remembered] = {}
    for name, value in memory.items():
        if isinstance(value, Tensor):
            about = parameter_in(parameters, name, value.shape)
            value = shards.gathered(value) if about is None else shards.sharded_like(parameters[about], value)
        laid_out[name] = value
    return laid_out


def parameter_in(parameters: Parameters, name: str, shape: Any) -> str | None:
    """The parameter that a remembered tensor belongs to: its name ends with that of a parameter of its shape."""
    ends = (p for p in parameters if name.endswith(p) and (name == p or name[-len(p) - 1] in " ./"))
    return max((p for p in ends if parameters[p].shape == shape), key=len, default=None)
