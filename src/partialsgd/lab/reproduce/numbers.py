"""The numbers of an experiment, computed from the files of its runs alone, as one JSON object."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean, median
from typing import Any, TypeAlias

from partialsgd.lab.reproduce import equal_sum
from partialsgd.lab.reproduce.experiment import Comparison, Experiment, Figure, Line
from partialsgd.lab.reproduce.run_folder import AT, FinishedRun, RunFolder, Scored, total_flops
from partialsgd.lab.reproduce.schedule import rows_at_other_cells, stored_other_cells
from partialsgd.logging import metrics_log, series

Numbers: TypeAlias = dict[str, Any]

NEAR = 0.5
"""Points by which a level may be behind the same level alone to count as equally good."""

_SQUARED = ("c_norm", "c_sim", "c_align")


def collect(experiment: Experiment, folder: RunFolder) -> Numbers:
    """Everything that the tables show. Lines without a finished run have no scores."""
    comparisons = [each for each in shown_comparisons(experiment, folder) if folder.scored(each.joint)]
    lines = [_shown(folder, line) for line in experiment.lines(folder)]
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "score": experiment.score,
        "lines": [_line(experiment, folder, line) for line in lines],
        "sums": equal_sum.collect(experiment.score, experiment.factor, folder, comparisons),
        "costs": [_cost(folder, each) for each in comparisons],
        "near": [row for each in comparisons for row in _near(experiment, folder, each)],
        "starts": list(_starts(experiment, folder)),
        "grid": list(_grid(experiment, folder)),
        "other_cells": list(_other_cells(experiment, folder)),
        "criteria": list(_criteria(experiment.figure, folder)) if experiment.figure else [],
        "criterion": experiment.criterion,
        "choices": list(experiment.choices(folder)),
        **_provenance(lines, folder),
    }


def shown_comparisons(experiment: Experiment, folder: RunFolder) -> list[Comparison]:
    """The comparisons, with the runs of the cells that are shown."""
    shown = folder.shown_row
    return [
        replace(each, joint=shown(each.joint), alone={level: shown(row) for level, row in each.alone.items()})
        for each in experiment.comparisons(folder)
    ]


def _shown(folder: RunFolder, line: Line) -> Line:
    equal_flops = line.equal_flops and folder.shown_row(line.equal_flops)
    return replace(line, row=folder.shown_row(line.row), equal_flops=equal_flops)


def _line(experiment: Experiment, folder: RunFolder, line: Line) -> Numbers:
    runs = folder.scored(line.row)
    return {
        "group": line.group,
        "network": line.network,
        "trained": line.trained,
        "row": line.row,
        "paper": None if line.printed is None else str(line.printed),
        "scores": _scores(experiment, folder, line.row, line.level),
        "equal_flops": _scores(experiment, folder, line.equal_flops, line.level) if line.equal_flops else {},
        "diverged": folder.diverged(line.row),
        "equal_flops_diverged": folder.diverged(line.equal_flops) if line.equal_flops else 0,
        "parameters": _mean(summary["levels"][line.level]["parameters"] for _, summary in runs),
        "epoch_seconds": _median(summary["seconds"] / run.epochs for run, summary in runs),
        "epoch_flops": _mean(total_flops(summary) / run.epochs for run, summary in runs),
        "paper_epoch_flops": line.printed_flops,
        "as_the_paper_counts": _mean(_paper_flops(summary) for _, summary in runs),
    }


def _scores(experiment: Experiment, folder: RunFolder, row: str, level: str) -> dict[str, float]:
    """The test scores by seed, which is a string as JSON wants it."""
    return {
        str(run.settings.seed): experiment.factor * summary["levels"][level]["test"][experiment.score]
        for run, summary in folder.scored(row)
        if level in summary["levels"]
    }


def _cost(folder: RunFolder, comparison: Comparison) -> Numbers:
    """The joint run against the separate ones, with the seeds that all have.

    FLOPs are means; times are medians, because other programs disturb a machine now and then.
    """
    rows = (comparison.joint, *comparison.alone.values())
    runs = {row: {run.settings.seed: summary for run, summary in folder.scored(row)} for row in rows}
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))
    joint, *alone = ([runs[row][seed] for seed in seeds] or list(runs[row].values()) for row in rows)
    return {
        "label": comparison.label,
        "seeds": seeds,
        "joint_flops": _mean(map(total_flops, joint)),
        "joint_seconds": _median(summary["seconds"] for summary in joint),
        "alone_flops": sum(fmean(map(total_flops, each)) for each in alone) if seeds else None,
        "alone_seconds": sum(median(run["seconds"] for run in each) for each in alone) if seeds else None,
    }


def _near(experiment: Experiment, folder: RunFolder, comparison: Comparison) -> Iterator[Numbers]:
    """For each level the FLOPs after which its validation score is within NEAR of the best that it has alone."""
    for level, row in comparison.alone.items():
        alone = {run.settings.seed: (run, summary) for run, summary in folder.scored(row)}
        reached = {
            str(seed): _reached(experiment, joint, alone[seed], level)
            for joint in folder.scored(comparison.joint)
            if (seed := joint[0].settings.seed) in alone
        }
        if reached and None not in reached.values():
            yield {"label": comparison.label, "level": level, "seeds": reached}


def _reached(experiment: Experiment, joint: Scored, alone: Scored, level: str) -> Numbers | None:
    curves = {
        "jointly": validation_curve(experiment, joint, level),
        "alone": validation_curve(experiment, alone, next(iter(alone[0].evaluations[-1].levels))),
    }
    if not all(curves.values()):
        return None
    goal = max(score for _, score in curves["alone"]) - NEAR
    first = {how: next((flops for flops, score in curve if score >= goal), None) for how, curve in curves.items()}
    return {"goal": goal} | first


def validation_curve(experiment: Experiment, scored: Scored, level: str) -> list[tuple[float, float]]:
    """Training FLOPs of the whole run so far, and the validation score of a level."""
    run, summary = scored
    per_step = total_flops(summary) / summary["steps"]
    return [
        (each.steps * per_step, experiment.factor * each.levels[level][experiment.score])
        for each in run.evaluations
        if experiment.score in each.levels.get(level, {})
    ]


def _starts(experiment: Experiment, folder: RunFolder) -> Iterator[Numbers]:
    """The runs with seed 0, which choose the start; one that diverged is worse than any other."""
    for start, rows in experiment.starts.items():
        joint = folder.finished(folder.run(rows.joint, 0))
        yield {
            "start": start,
            "core_alone": _first_score(experiment, folder, rows.alone["core"], "full"),
            "core": _first_score(experiment, folder, rows.joint, "core"),
            "full": _first_score(experiment, folder, rows.joint, "full"),
            "is_known": joint is not None,
            "selection_score": None if joint is None else _finite(joint.selection_score(experiment.criterion)),
        }


def _first_score(experiment: Experiment, folder: RunFolder, row: str, level: str) -> float | str | None:
    """The score with seed 0, or that it diverged."""
    run = folder.finished(folder.run(row, 0))
    has_diverged = run is not None and run.summary is None
    return "diverged" if has_diverged else _scores(experiment, folder, row, level).get("0")


def _grid(experiment: Experiment, folder: RunFolder) -> Iterator[Numbers]:
    for row in dict.fromkeys(row.name for row in experiment.rows(folder) if row.tuned_as == row.name):
        searched, chosen = folder.searched(row), folder.chosen_cell(row)
        for cell, run in [*searched.items(), *folder.searched_before(row).items()]:
            yield {
                "row": row,
                "lr": cell.lr,
                "warm_up": cell.warm_up,
                "selection_score": _finite(run.selection_score(experiment.criterion)),
                "chosen": cell == chosen,
                "earlier": cell not in searched,
            }


def _other_cells(experiment: Experiment, folder: RunFolder) -> Iterator[Numbers]:
    """The whole runs of each row with runs at another cell: scores by level and seed, and the selection score.

    If all runs at a cell diverged there is no level and no score.
    """
    stored = rows_at_other_cells(experiment, experiment.rows(folder), stored_other_cells(folder))
    for row in dict.fromkeys(each.name.partition(AT)[0] for each in stored):
        chosen, shown = folder.chosen_cell(row), folder.shown_row(row)
        for cell in experiment.grid.cells:
            name = row if cell == chosen else f"{row}{AT}{cell.name}"
            runs, scored = folder.seeds(name), folder.scored(name)
            levels = list(dict.fromkeys(level for _, summary in scored for level in summary["levels"]))
            for level in levels or ["–"] * bool(runs):
                yield {
                    "row": row,
                    "lr": cell.lr,
                    "warm_up": cell.warm_up,
                    "chosen": cell == chosen,
                    "shown": name == shown,
                    "level": level,
                    "scores": _scores(experiment, folder, name, level),
                    "diverged": folder.diverged(name),
                    "selection_score": runs[0].selection_score(experiment.criterion) if scored else None,
                }


def _criteria(figure: Figure, folder: RunFolder) -> Iterator[Numbers]:
    """For each curve the medians over the second half of each training, and the same for the group of layers."""
    for group in dict.fromkeys([None, figure.group]):
        for label, row in figure.curves.items():
            measured = {run.settings.seed: _measured(run, group) for run, _ in folder.scored(row)}
            by_seed = {seed: each for seed, each in measured.items() if each}
            if by_seed:
                columns = {key: [each[key] for each in by_seed.values()] for key in next(iter(by_seed.values()))}
                yield {"curve": label, "row": row, "of": group or "network", "seeds": list(by_seed)} | columns


def _measured(run: FinishedRun, group: str | None) -> dict[str, float | None]:
    """A negative ratio counts as infinite, because it lies beyond every bound. JSON has no infinity: it is None."""
    steps = [record for record in metrics_log.read(run.path / "metrics.jsonl") if "criteria" in record]
    if not steps:
        return {}
    measured = series.measured(steps, series.names(steps)[0], group)
    late = [one for t in sorted(measured)[len(measured) // 2 :] if not math.isnan((one := measured[t])["cosine"])]
    if not late:
        return {}  # 0 / 0 at every measurement
    squares = {
        f"{key}²": _finite(median(one[key] ** 2 if one[key] >= 0 else math.inf for one in late)) for key in _SQUARED
    }
    cosines = [one["cosine"] for one in late]
    return {**squares, "cosine": fmean(cosines), "negative": fmean(cosine < 0 for cosine in cosines)}


def _provenance(lines: Iterable[Line], folder: RunFolder) -> Numbers:
    """The library versions that trained, not those that print, and how BLEU was computed."""
    summaries = [summary for line in lines for _, summary in folder.scored(line.row)]
    versions = {str(summary["versions"]): summary["versions"] for summary in summaries if summary["versions"]}
    signatures = {summary["extras"].get("signature") for summary in summaries} - {None}
    return {"versions": list(versions.values()), "signature": sorted(signatures)}


def _paper_flops(summary: Mapping[str, Any]) -> float:
    """FLOPs of an epoch in the paper's convention; 0 for a recipe that does not count them."""
    rows = summary["extras"].get("training FLOPs", [])
    return float(next((row["paper"] for row in rows if row["an epoch of"] == "the method"), 0.0))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean(values: Iterable[float]) -> float | None:
    return fmean(numbers) if (numbers := list(values)) else None


def _median(values: Iterable[float]) -> float | None:
    return median(numbers) if (numbers := list(values)) else None
