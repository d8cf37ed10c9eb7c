"""What an optimizer does is found out on 64 numbers of a throw-away instance, not looked up by its name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_SHAPE = (8, 8)  # two-dimensional, because an optimizer for matrices refuses anything else


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside the wrappers of accelerate and Lightning."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if isinstance(inner, Optimizer) else optimizer


def is_from_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def initial_state(optimizer: Optimizer, group: Mapping[str, Any], entry: str) -> float:
    """What a coordinate's state holds before its first step: zero, with two exceptions in torch."""
    if isinstance(optimizer, torch.optim.Rprop) and entry == "step_size":
        return float(group["lr"])
    if isinstance(optimizer, torch.optim.Adagrad) and entry == "sum":
        return float(group["initial_accumulator_value"])
    return 0.0


def per_coordinate(state: Mapping[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """The entries of a parameter's state that hold one number for each coordinate."""
    return {k: v for k, v in state.items() if isinstance(v, Tensor) and v.shape == parameter.shape}


def why_not_coordinate_wise(optimizer: Optimizer, group: Mapping[str, Any]) -> str | None:
    """None if 64 numbers stepped whole and in halves agree to the bit, else what is wrong."""
    try:
        whole, halves = _points(), [h.clone() for h in torch.split(_points(), _SHAPE[0] // 2)]
        steppers = [_instance(optimizer, group, part) for part in (whole, *halves)]
        for t in range(3):
            gradient = _directions(t)
            for stepper, g in zip(steppers, (gradient, *torch.split(gradient, _SHAPE[0] // 2)), strict=True):
                _step(stepper, g)
        if not torch.equal(_value(steppers[0]), torch.cat([_value(s) for s in steppers[1:]])):
            return "it couples the coordinates of a tensor: half a tensor moves otherwise than in the whole"
        if not is_from_torch(optimizer) and not _starts_at_zero(optimizer, group):
            return "its state does not start at zero, so what a held coordinate should hold is unknown"
    except Exception as error:  # a foreign constructor may want anything
        return f"a throw-away instance could not be stepped ({type(error).__name__}: {error})"
    return None


def why_not_forgetful(optimizer: Optimizer, group: Mapping[str, Any]) -> str | None:
    """None if a coordinate whose state is cleared moves next as it would in a new optimizer."""
    old = _instance(optimizer, group, _points())
    for t in range(30):
        _step(old, _directions(t))
    parameter = old.param_groups[0]["params"][0]
    for entry, tensor in per_coordinate(old.state[parameter], parameter).items():
        tensor.fill_(initial_state(optimizer, group, entry))
    new = _instance(optimizer, group, _value(old).clone())
    for stepper in (old, new):
        _step(stepper, _directions(30))
    if torch.equal(_value(old), _value(new)):
        return None
    return "its per-tensor counters would make the first move of a cleared coordinate wrong"


def _starts_at_zero(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    stepper = _instance(optimizer, group, torch.zeros(_SHAPE))
    _step(stepper, torch.zeros(_SHAPE))
    parameter = stepper.param_groups[0]["params"][0]
    return not any(bool(t.any()) for t in per_coordinate(stepper.state[parameter], parameter).values())


def _instance(optimizer: Optimizer, group: Mapping[str, Any], start: Tensor) -> Optimizer:
    accepted = inspect.signature(type(optimizer).__init__).parameters
    options = {k: v for k, v in group.items() if k in accepted and k != "params"}
    options |= {k: float(v) for k, v in options.items() if isinstance(v, Tensor) and v.numel() == 1}
    if "capturable" in options:
        options["capturable"] = False  # wants a GPU; the arithmetic is the same
    constructor: Any = type(optimizer)
    made: Optimizer = constructor([nn.Parameter(start)], **options)
    return made


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
