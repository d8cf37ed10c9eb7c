"""Two ways to check a run: compare all that is left of it with another run, and take its steps by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.export import files
from studies.assault.targets import fingerprint


def remains(run: Path) -> dict[str, Any]:
    """Return everything that must be the same of two runs, to the bit: all but the time that they took."""
    contents = fingerprint(run)
    assert contents, f"{run} has no checkpoint"
    return contents


def leftovers(run: Path) -> list[str]:
    """Return the files that a kill has left and nobody has removed."""
    expected = {"config.json", "metrics.jsonl", "summary.json", ".lock", "inputs.json", "tokenizer.json"}
    expected |= {files.WEIGHTS, "best", "last", "checkpoints"}
    others = (path for path in run.rglob("*") if path.name not in expected)
    return [
        str(path.relative_to(run))
        for path in others
        if path.parent.name != "checkpoints" or path.suffix != ".safetensors"
    ]


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
