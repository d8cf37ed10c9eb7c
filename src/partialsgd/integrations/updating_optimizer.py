"""The optimizer and the gradient scaler of a loop that steps by itself: the step becomes `sgd.update()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch.optim import Optimizer

from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.engine.step import Step


@final
class UpdatingOptimizer(Optimizer):
    """Everything is the inner optimizer's, its state dict too; only `step` is the update of a `PartialSGD`."""

    def __init__(self, optimizer: Optimizer) -> None:  # without Optimizer.__init__: there is no state of its own
        self.optimizer = optimizer
        self.sgd: PartialSGD | None = None
        self.last_step: Step | None = None
        """The result of the last update."""

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # a copy that is being made
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the closure, in which Lightning clips, and make the update from the gradients in `.grad`."""
        if self.sgd is None:
            raise RuntimeError("the training has not begun: there is no PartialSGD yet that could make a step")
        loss = None if closure is None else closure()
        self.last_step = self.sgd.update()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"UpdatingOptimizer({self.optimizer!r})"


def updating(optimizer: Any) -> UpdatingOptimizer | None:
    """Return the `UpdatingOptimizer` inside the wrappers of accelerate and Lightning, or None."""
    while not isinstance(optimizer, UpdatingOptimizer):
        inner = vars(optimizer).get("optimizer", vars(optimizer).get("_optimizer"))
        if not isinstance(inner, Optimizer):
            return None
        optimizer = inner
    return optimizer


@final
class LoopScaler(torch.amp.GradScaler):
    """The GradScaler that a loop sees: it scales losses, and the `PartialSGD` does all the rest with the real one.

    The gradients that the loop clips are unscaled already, because masks and rules need them so.
    """

    def __init__(self, scaler: torch.amp.GradScaler) -> None:  # without GradScaler.__init__: the state is the scaler's
        self.scaler: torch.amp.GradScaler = scaler.scaler if isinstance(scaler, LoopScaler) else scaler

    def __getattr__(self, name: str) -> Any:
        if name == "scaler":  # a copy that is being made
            raise AttributeError(name)
        return getattr(self.scaler, name)

    def scale(self, outputs: Any) -> Any:
        return self.scaler.scale(outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Do nothing: the gradients were unscaled when they were taken."""

    def step(self, optimizer: Optimizer, *args: Any, **options: Any) -> Any:
        """Make the update. As in torch, the `step` of an optimizer that is not fused is not called for an overflow.

        accelerate puts a `step` of its own on the optimizer, and lets the schedule wait if nobody has called it.
        """
        inner = updating(optimizer)
        assert inner is not None  # the loop's optimizer
        flags = self.scaler._found_inf_per_device(inner.optimizer).values()
        is_fused = getattr(inner.optimizer, "_step_supports_amp_scaling", False)
        if not is_fused and any(bool(flag.item()) for flag in flags):
            return UpdatingOptimizer.step(inner)
        return optimizer.step(*args, **options)

    def update(self, new_scale: Any = None) -> None:
        """Do nothing: the scale was updated with the parameters."""

    def is_enabled(self) -> bool:
        return self.scaler.is_enabled()

    def get_scale(self) -> float:
        return self.scaler.get_scale()

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scaler.load_state_dict(state_dict)
