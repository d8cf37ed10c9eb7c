"""Probes of an optimizer on 64 numbers of a throw-away instance, so that no list of names is needed."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from partialsgd.optimizers.param_groups import RefuseDirectStep

_SHAPE = (8, 8)  # two-dimensional, because an optimizer for matrices refuses anything else


def is_from_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def initial_state(optimizer: Optimizer, group: Mapping[str, Any], entry: str) -> float:
    """The value of a coordinate's state before its first step: zero, with two exceptions in torch."""
    if isinstance(optimizer, torch.optim.Rprop) and entry == "step_size":
        return float(group["lr"])
    if isinstance(optimizer, torch.optim.Adagrad) and entry == "sum":
        return float(group["initial_accumulator_value"])
    return 0.0


def per_coordinate(state: Mapping[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """The entries of a parameter's state that hold one number for each coordinate; a counter on the CPU, which has the
    shape of a parameter with one number, does not."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor) and key != "step"}
    return {key: t for key, t in tensors.items() if t.shape == parameter.shape and t.device == parameter.device}


def has_step_hooks(optimizer: Optimizer) -> bool:
    """True if something of the user's runs around the optimizer's step, and may look at the parameters."""
    hooks = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    own = (optimizer._optimizer_step_pre_hooks.values(), optimizer._optimizer_step_post_hooks.values())
    return bool(hooks) or any(type(hook) is not RefuseDirectStep for hooks in own for hook in hooks)


def reads_found_inf(optimizer: Optimizer) -> bool:
    """True if the optimizer's kernels leave a step out on the device where `found_inf` says so."""
    supports = is_from_torch(optimizer) and getattr(optimizer, "_step_supports_amp_scaling", False)
    return bool(supports) and all(group.get("fused") for group in optimizer.param_groups)


Probe: TypeAlias = Callable[[Optimizer, Mapping[str, Any]], str | None]
"""Returns None if the optimizer, with the options of this group, can do a thing, else the reason why not."""


@torch.enable_grad()
def reason(probe: Probe, optimizer: Optimizer, group: Mapping[str, Any]) -> str | None:
    """Run a probe; the answer is no if it raises, because a constructor from outside torch may need anything."""
    try:
        return probe(optimizer, group)
    except Exception as error:
        return f"a throw-away instance could not be stepped ({type(error).__name__}: {error})"


def why_not_coordinate_wise(optimizer: Optimizer, group: Mapping[str, Any]) -> str | None:
    """64 numbers stepped whole and in halves, by rows and by columns, must agree to the bit."""
    for dim in (0, 1):
        halves = [part.contiguous() for part in torch.chunk(_points(), 2, dim)]
        steppers = [_instance(optimizer, group, part) for part in (_points(), *halves)]
        for t in range(12):
            for stepper, g in zip(steppers, (_directions(t), *torch.chunk(_directions(t), 2, dim)), strict=True):
                _step(stepper, g)
        if not torch.equal(_value(steppers[0]), torch.cat([_value(s) for s in steppers[1:]], dim)):
            return "it couples the coordinates of a tensor: half a tensor moves otherwise than in the whole"
    return None if is_from_torch(optimizer) else _why_not_held(optimizer, group)


def why_not_forgetful(optimizer: Optimizer, group: Mapping[str, Any]) -> str | None:
    """A coordinate whose state is cleared must move next as it would in a new optimizer."""

    def clear(old: Optimizer, parameter: nn.Parameter) -> None:
        for entry, tensor in per_coordinate(old.state[parameter], parameter).items():
            tensor.fill_(initial_state(optimizer, group, entry))

    if _starts_anew(optimizer, group, clear):
        return None
    return "its per-tensor counters would make the first move of a cleared coordinate wrong"


def why_not_restartable(optimizer: Optimizer, group: Mapping[str, Any]) -> str | None:
    """A tensor whose state is dropped must move next as it would in a new optimizer."""
    if _starts_anew(optimizer, group, lambda old, parameter: restart(old, group, parameter)):
        return None
    return "it remembers more of a tensor than its state holds"


def why_not_scalable(optimizer: Optimizer, group: Mapping[str, Any]) -> str | None:
    """Return why a step cannot be scaled by α, else None: with a learning rate of 0 nothing may move."""
    stepper = _instance(optimizer, group, _points())
    for t in range(3):
        _step(stepper, _directions(t))
    before = _value(stepper).clone()
    stepper.param_groups[0]["lr"] *= 0.0
    _step(stepper, _directions(3))
    return None if torch.equal(before, _value(stepper)) else "its step does not follow the learning rate of the moment"


def restart(optimizer: Optimizer, group: Mapping[str, Any], parameter: nn.Parameter) -> None:
    """Reset a tensor's state: drop it, or set it to its start for Adagrad, which makes it beforehand."""
    if isinstance(optimizer, torch.optim.Adagrad):
        optimizer.state[parameter]["step"].zero_()
        optimizer.state[parameter]["sum"].fill_(initial_state(optimizer, group, "sum"))
    else:
        optimizer.state.pop(parameter, None)


def _starts_anew(
    optimizer: Optimizer, group: Mapping[str, Any], forget: Callable[[Optimizer, nn.Parameter], None]
) -> bool:
    old = _instance(optimizer, group, _points())
    for t in range(30):
        _step(old, _directions(t))
    forget(old, old.param_groups[0]["params"][0])
    new = _instance(optimizer, group, _value(old).clone())
    for stepper in (old, new):
        _step(stepper, _directions(30))
    return torch.equal(_value(old), _value(new))


def _why_not_held(optimizer: Optimizer, group: Mapping[str, Any]) -> str | None:
    """The per-coordinate state of an optimizer from outside torch must be visible, and zero at the start."""
    stepper = _instance(optimizer, {**group, "weight_decay": 0.0}, _points())
    _step(stepper, torch.zeros(_SHAPE))
    parameter = stepper.param_groups[0]["params"][0]
    if any(isinstance(value, (dict, list, tuple, deque)) for value in stepper.state[parameter].values()):
        return "it keeps tensors inside containers, where what is outside a mask cannot be held"
    if any(bool(t.any()) for t in per_coordinate(stepper.state[parameter], parameter).values()):
        return "its state does not start at zero, so what a held coordinate should hold is unknown"
    return None


def _instance(optimizer: Optimizer, group: Mapping[str, Any], start: Tensor) -> Optimizer:
    accepted = inspect.signature(type(optimizer).__init__).parameters
    options = {k: v for k, v in group.items() if k in accepted and k != "params"}
    options |= {k: float(v) for k, v in options.items() if isinstance(v, Tensor) and v.numel() == 1}
    if "capturable" in options:
        options["capturable"] = False  # wants a GPU; the arithmetic is the same
    constructor: Any = type(optimizer)
    instance: Optimizer = constructor([nn.Parameter(start)], **options)
    return instance


def _step(optimizer: Optimizer, gradient: Tensor) -> None:
    optimizer.param_groups[0]["params"][0].grad = gradient.clone()
    optimizer.step()


def _value(optimizer: Optimizer) -> Tensor:
    parameter: Tensor = optimizer.param_groups[0]["params"][0]
    return parameter.detach()


def _points() -> Tensor:
    return torch.arange(64, dtype=torch.float32).add(1).sin().view(_SHAPE)


def _directions(t: int) -> Tensor:
    return torch.arange(64, dtype=torch.float32).add(1).mul(t + 2.0).cos().view(_SHAPE)
