"""The table of the study in docs/which_size.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from partialsgd.lab.reproduce import equal_sum, paired, tables
from partialsgd.lab.reproduce.numbers import shown_comparisons
from partialsgd.lab.reproduce.run_folder import RunFolder, Scored, total_flops
from studies import pages
from studies.results import RESULTS
from studies.worth import regime, store
from studies.worth.plans import SCHEMES, Plan

HEAD = (
    "data and axis",
    "r",
    "joint run",
    "network",
    "seeds",
    "alone",
    "jointly",
    "jointly less alone",
    "FLOPs, jointly / alone",
)


def sections(folder: Path = RESULTS) -> str:
    """A row for each scheme and network whose runs are there."""
    with store.stored(folder) as found:
        rows = [row for plan, runs in found if isinstance(plan, Plan) for row in _rows(plan, runs)]
    return pages.table(HEAD, rows) if rows else "No pair of joint and separate runs is stored yet."


def regime_section(folder: Path = RESULTS) -> str:
    """The core alone and jointly by learning rate."""
    return regime.section(_regime_scores(folder))


def draw(to: Path, folder: Path = RESULTS) -> None:
    """Write the figure of the rates."""
    regime.draw(_regime_scores(folder), to)


def _regime_scores(folder: Path) -> dict[str, dict[float, float]]:
    with store.stored(folder) as found:
        of_regime = [plan.scores(runs) for plan, runs in found if isinstance(plan, regime.Regime)]
    return of_regime[0] if of_regime else {"core": {}, "joint": {}}


def _rows(plan: Plan, folder: RunFolder) -> Iterator[tuple[str, ...]]:
    for comparison in shown_comparisons(plan.experiment(), folder):
        runs = equal_sum.common_seeds(folder, comparison)
        scheme = SCHEMES[comparison.joint.partition("-")[0]].says
        for level in comparison.alone if runs else ():
            jointly = [plan.factor * joint[1]["levels"][level]["test"][plan.score] for joint, _ in runs.values()]
            alone = [plan.factor * own[level][1]["levels"]["full"]["test"][plan.score] for _, own in runs.values()]
            shares = [total_flops(joint[1]) / _together(own) for joint, own in runs.values()]
            difference = paired.difference([a - b for a, b in zip(jointly, alone, strict=True)])
            yield (
                plan.says,
                comparison.label.removeprefix("r = "),
                scheme,
                level,
                str(len(runs)),
                tables.spread(alone),
                tables.spread(jointly),
                str(difference),
                f"{fmean(shares):.3f}",
            )


def _together(runs: Mapping[str, Scored]) -> float:
    """The FLOPs of the runs of all levels alone."""
    return sum(total_flops(summary) for _, summary in runs.values())
