"""Other trainings with the FLOPs of a joint one."""

from __future__ import annotations

import math
from dataclasses import replace

from partialsgd.recipes.settings import Settings
from partialsgd.reproduce.folder import Ended, Folder, flops_of
from partialsgd.reproduce.plans import Row


def with_the_flops_of(joint: str, other: str, name: str, seeds: int) -> Row:
    """A row like another that is finished, for as many steps as the FLOPs of the joint row pay for."""

    def make(folder: Folder, seed: int) -> Settings | None:
        runs = [folder.ended(folder.run(row, seed)) for row in (joint, other)]
        return None if None in runs else _paid(*(run for run in runs if run is not None))

    return Row(name, make, seeds, tuned_as=None, waits_for=f"{joint} and {other}")


def _paid(joint: Ended, other: Ended) -> Settings | None:
    if joint.summary is None or other.summary is None:
        return None
    per_step = flops_of(other.summary) / other.summary["steps"]
    steps = max(1, round(flops_of(joint.summary) / per_step))
    per_epoch = other.summary["steps"] / other.looks[-1].epoch
    return replace(other.settings, max_steps=steps, epochs=math.ceil(steps / per_epoch))
