"""Algorithm 1 over the batches of a task, in a loop that knows nothing of recipes and runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass


def steps_by_hand(
    task: Any, method: ps.Method, count: int, *, lr: float | None = None, **options: Any
) -> list[ps.Step]:
    """Take steps on the first batches; `lr` follows the schedule of the task, None leaves the optimizer's."""
    sgd = ps.PartialSGD(task.network, list(task.optimizers), method, **options)
    steps = []
    for t in range(count):
        epoch, index = divmod(t, len(task.batches))
        batch, units = task.batches.make(epoch, index), task.batches.units(epoch, index)
        if lr is not None:
            for group in task.optimizers[0].param_groups:
                group["lr"] = lr * task.learning_rate(t, count)

        def closure(g: GradientPass, batch: Any = batch, units: int = units) -> Tensor:
            loss: Tensor = task.loss(task.network, batch, g) / units
            loss.backward()
            return loss

        steps.append(sgd.step(closure))
    return steps
