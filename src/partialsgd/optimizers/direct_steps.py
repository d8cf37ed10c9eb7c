"""`optimizer.step()` left in a loop that uses `PartialSGD`: it would move what a mask holds, and t would stay."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, final
from weakref import finalize

from torch.optim import Optimizer

from partialsgd._util.undo import UndoStack

_IS_STEPPING: ContextVar[bool] = ContextVar("partialsgd_is_stepping", default=False)


def allow_steps(undo: UndoStack) -> None:
    """Allow steps until `undo` runs: `PartialSGD` is making one."""
    undo.push(partial(_IS_STEPPING.set, False))
    _IS_STEPPING.set(True)


@final
class RefuseDirectStep:
    """A step hook that raises, before anything has moved, unless `PartialSGD.update` makes the step."""

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not _IS_STEPPING.get():
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called directly, but a PartialSGD owns this optimizer, and "
                "only sgd.update() or sgd.step(closure) makes its steps: replace optimizer.step() (or "
                "scaler.step(optimizer)) by sgd.update(); under Lightning set self.automatic_optimization = False. "
                "To train without PartialSGD for a while, write `with sgd.direct_steps():`"
            )


def refuse_direct_steps(owner: object, optimizers: Sequence[Optimizer]) -> None:
    """Refuse steps that the owner does not make, for as long as it lives."""
    for optimizer in optimizers:
        if hasattr(optimizer, "_optimizer_step_pre_hooks"):  # a wrapper may not have called Optimizer.__init__
            finalize(owner, optimizer.register_step_pre_hook(RefuseDirectStep()).remove)
