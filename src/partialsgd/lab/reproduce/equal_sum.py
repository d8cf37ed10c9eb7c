"""One joint run or one run for each network, for the same total FLOPs, compared on the validation data.

This needs no run of its own where the learning rate does not depend on the length of the training, as the inverse
square root: there the first half of a run is what a run of half the length would have been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from partialsgd.lab.reproduce.experiment import Comparison
from partialsgd.lab.reproduce.run_folder import FinishedRun, RunFolder, Scored, total_flops

Record: TypeAlias = dict[str, Any]

_NEAR = 0.02
"""The largest difference between the steps at an evaluation and the wanted steps, as a share of the latter."""


def rate_ignores_length(run: FinishedRun) -> bool:
    """True if the learning rate at a step does not depend on how many steps follow."""
    return getattr(run.settings, "schedule", None) == "inverse-sqrt"


def common_seeds(folder: RunFolder, comparison: Comparison) -> dict[int, tuple[Scored, dict[str, Scored]]]:
    """The joint run and the runs of its levels alone by seed, for seeds of which all runs are finished."""
    joint = _by_seed(folder, comparison.joint)
    alone = {level: _by_seed(folder, row) for level, row in comparison.alone.items()}
    seeds = [seed for seed in joint if all(seed in runs for runs in alone.values())]
    return {seed: (joint[seed], {level: runs[seed] for level, runs in alone.items()}) for seed in seeds}


def _by_seed(folder: RunFolder, row: str) -> dict[int, Scored]:
    return {run.settings.seed: (run, summary) for run, summary in folder.scored(row)}


def evaluations_to_compare(joint: Scored, alone: Mapping[str, Scored]) -> dict[str, Record] | None:
    """Return two evaluations by level: the last one of the joint run, and the one at which the runs of all levels alone
    have used as many FLOPs together.

    None if no evaluation is near enough, or if the learning rate depends on the length of the training.
    """
    if not all(rate_ignores_length(run) for run, _ in alone.values()):
        return None
    share = total_flops(joint[1]) / sum(total_flops(summary) for _, summary in alone.values())
    compared = {}
    for level, (run, summary) in alone.items():
        wanted = share * summary["steps"]
        evaluation = min(run.evaluations, key=lambda each: abs(each.steps - wanted))
        if abs(evaluation.steps - wanted) > _NEAR * wanted:
            return None
        compared[level] = {
            "alone": next(iter(evaluation.levels.values())),
            "jointly": joint[0].evaluations[-1].levels[level],
        }
    return compared


def collect(score: str, factor: float, folder: RunFolder, comparisons: Sequence[Comparison]) -> list[Record]:
    """A record for each comparison and level: the score and the loss by seed, alone and jointly."""
    records = []
    for comparison in comparisons:
        by_seed = {seed: evaluations_to_compare(*runs) for seed, runs in common_seeds(folder, comparison).items()}
        comparable = {str(seed): levels for seed, levels in by_seed.items() if levels is not None}
        for level in comparison.alone if comparable else ():
            own = {seed: levels[level] for seed, levels in comparable.items()}
            record: Record = {"label": comparison.label, "level": level}
            for trained in ("alone", "jointly"):
                for name, number, unit in (("scores", score, factor), ("losses", "loss", 1.0)):
                    record[f"{trained}_{name}"] = {
                        seed: unit * each[trained][number] for seed, each in own.items() if number in each[trained]
                    }
            records.append(record)
    return records
