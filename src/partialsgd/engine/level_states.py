"""Optimizer state for each level: a shared parameter has the moments of the level that a step trains.

The optimizer holds the state of the level that has moved a parameter last. Those of the other levels lie in the memory
of the run, and are exchanged before an update.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

from partialsgd._util.undo import UndoStack
from partialsgd.engine.masked_update import MaskedUpdate
from partialsgd.engine.step import StepInProgress
from partialsgd.method import Remembered
from partialsgd.parameters import Parameters

StateOf: TypeAlias = Literal["shared", "per_level"]

_LEVEL, _STATE = "level of the state of ", "state at "


def check_state_of(state: StateOf, outside: str) -> StateOf:
    """Return the argument `state` of `PartialSGD`, or raise."""
    if state not in get_args(StateOf):
        raise ValueError(f"state must be one of {', '.join(get_args(StateOf))}; got {state!r}")
    if state == "per_level" and outside != "hold":
        raise ValueError(f"state='per_level' needs outside='hold', got {outside!r}: other levels have their own state")
    return state


def require_one_level(step: StepInProgress) -> str:
    """Return the level of the step; raise if it has none, or several."""
    if len(step.branches) > 1 or step.level is None:
        raise ValueError(
            f"state='per_level' keeps the state of the level that a step trains, and {step.method.name} trains "
            f"{'no level' if step.level is None else 'several'}; use alternating or only, or state='shared'"
        )
    return step.level


def exchange(parameters: Parameters, update: MaskedUpdate, step: StepInProgress, undo: UndoStack) -> None:
    """Give the optimizers the state of the step's level; `undo` takes it back if they do not step."""
    level, memory, before = require_one_level(step), step.context.memory, dict(step.context.memory)
    states: dict[str, Any] = {name: update.groups[name].optimizer.state for name in step.mask if name in update.groups}
    replaced: dict[str, dict[str, Any]] = {}

    def take_back() -> None:
        if update.stepped < len(update.optimizers):
            for name, state in replaced.items():
                states[name][parameters[name]] = state
            memory.clear()
            memory.update(before)

    undo.append(take_back)
    own: dict[str, dict[str, Remembered]] = {}
    prefix = f"{_STATE}{level}: "
    for entry in [entry for entry in memory if entry.startswith(prefix)]:
        key, name = entry.removeprefix(prefix).rsplit(" ", 1)
        if step.mask[name] is not False:
            own.setdefault(name, {})[key] = memory.pop(entry)
    for name, inside in step.mask.items():
        if inside is False or name not in states:
            continue
        owner, memory[_LEVEL + name] = memory.get(_LEVEL + name, level), level
        if owner != level:
            parameter = parameters[name]
            replaced[name] = state = states[name].get(parameter, {})
            # The name of the parameter comes last: by it a sharded one is found.
            memory.update({f"{_STATE}{owner}: {key} {name}": v for key, v in state.items() if v is not None})
            states[name][parameter] = {key: _copied(key, v, parameter) for key, v in own.get(name, {}).items()}


def _copied(key: str, value: Remembered, parameter: Tensor) -> Remembered:
    """Return a copy that an optimizer may change, on the parameter's device."""
    if not isinstance(value, Tensor):
        return value
    return value.clone() if key == "step" or value.shape != parameter.shape else value.to(parameter.device, copy=True)
