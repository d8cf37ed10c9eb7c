"""`UpdatingOptimizer`: the optimizer of a loop that calls `optimizer.step()` itself; its step is `sgd.update()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

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
