"""Rows at equal FLOPs: another network trained with the compute of the joint run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from partialsgd.lab.reproduce.experiment import Row
from partialsgd.lab.reproduce.run_folder import AT, FinishedRun, RunFolder, total_flops
from partialsgd.lab.training.settings import Settings


def equal_flops_name(name: str, other: str, folder: RunFolder) -> str:
    """The name of the row at equal FLOPs; it has the cell of the other row's runs if its grid chose another one.

    So runs that exist keep their meaning when better ones are found.
    """
    _, _, cell = folder.shown_row(other).partition(AT)
    return f"{name}-flops-{cell}" if cell else f"{name}-flops"


def equal_flops(joint: str, other: str, name: str, seeds: int, data: str | None) -> Row:
    """A row like `other`, at the cell that is shown, for as many steps as the FLOPs of the joint row pay for.

    `data` is where the data are now: the folder may have been moved since.
    """

    def make(folder: RunFolder, seed: int) -> Settings | None:
        runs = [folder.finished(folder.run(folder.shown_row(row), seed)) for row in (joint, other)]
        if any(run is None or run.summary is None for run in runs):
            return None
        changes: Any = {"data": data}
        return replace(_for_the_flops_of(*(run for run in runs if run is not None)), **changes)

    return Row(name, make, seeds, tuned_as=None, waits_for=f"{joint} and {other}")


def _for_the_flops_of(joint: FinishedRun, other: FinishedRun) -> Settings:
    assert joint.summary is not None and other.summary is not None  # both have a score
    steps_done = other.summary["steps"]
    steps = max(1, round(total_flops(joint.summary) / (total_flops(other.summary) / steps_done)))
    return replace(other.settings, max_steps=steps, epochs=math.ceil(steps / (steps_done / other.epochs)))
