"""Other trainings with the FLOPs of a joint one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from partialsgd.lab.reproduce.folder import AT, Ended, Folder, flops_of
from partialsgd.lab.reproduce.plans import Grid, Row
from partialsgd.lab.training.settings import Settings


def named(name: str, other: str, folder: Folder, grid: Grid, judge: str) -> str:
    """The name of such a row, with the cell of the other row's runs that are shown where its grid chose another one:
    when better ones are found, what was made before stays what it is."""
    _, _, cell = folder.shown(other, grid, judge).partition(AT)
    return f"{name}-flops-{cell}" if cell else f"{name}-flops"


def with_the_flops_of(
    joint: str, other: str, name: str, seeds: int, *, data: str | None, grid: Grid, judge: str
) -> Row:
    """A row like another that is finished, for as many steps as the FLOPs of the joint row pay for.

    Of whole runs at several cells it is like those that are shown. The data are where they are now: the folder may
    have been moved since.
    """

    def make(folder: Folder, seed: int) -> Settings | None:
        runs = [folder.ended(folder.run(folder.shown(row, grid, judge), seed)) for row in (joint, other)]
        paid = None if None in runs else _paid(*(run for run in runs if run is not None))
        changes: Any = {"data": data}
        return None if paid is None else replace(paid, **changes)

    return Row(name, make, seeds, tuned_as=None, waits_for=f"{joint} and {other}")


def _paid(joint: Ended, other: Ended) -> Settings | None:
    if joint.summary is None or other.summary is None:
        return None
    per_step = flops_of(other.summary) / other.summary["steps"]
    steps = max(1, round(flops_of(joint.summary) / per_step))
    per_epoch = other.summary["steps"] / other.looks[-1].epoch
    return replace(other.settings, max_steps=steps, epochs=math.ceil(steps / per_epoch))
