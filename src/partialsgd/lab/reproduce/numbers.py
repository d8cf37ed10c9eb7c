"""The numbers of an experiment, out of the files of its runs alone, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, TypeAlias

from partialsgd.lab.reproduce import elsewhere, medians
from partialsgd.lab.reproduce.folder import Ended, Folder, flops_of
from partialsgd.lab.reproduce.plans import Experiment, Line, Together

Found: TypeAlias = dict[str, Any]

NEAR = 0.5
"""Points by which a level may be behind the same level trained alone, to count as there."""


def found(experiment: Experiment, folder: Folder) -> Found:
    """Everything that the tables show. Lines without a finished run have no scores."""
    together = [each for each in elsewhere.together(experiment, folder) if folder.scored(each.joint)]
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "score": experiment.score,
        "lines": [_line(experiment, folder, line) for line in elsewhere.lines(experiment, folder)],
        "costs": [_cost(folder, each) for each in together],
        "near": [row for each in together for row in _near(experiment, folder, each)],
        "starts": list(_starts(experiment, folder)),
        "grid": list(_grid(experiment, folder)),
        "elsewhere": list(elsewhere.found(experiment, folder)),
        "criteria": [] if experiment.figure is None else list(medians.of_figure(experiment.figure, folder)),
        "judge": experiment.judge,
        "choices": list(experiment.choices(folder)),
        **_made_with(experiment, folder),
    }


def _line(experiment: Experiment, folder: Folder, line: Line) -> Found:
    ended = folder.scored(line.row)
    return {
        "group": line.group,
        "network": line.network,
        "trained": line.trained,
        "row": line.row,
        "paper": None if line.printed is None else str(line.printed),
        "scores": _scores(experiment, folder, line.row, line.level),
        "equal_flops": {} if line.equal_flops is None else _scores(experiment, folder, line.equal_flops, line.level),
        "diverged": _diverged(folder, line.row),
        "equal_flops_diverged": 0 if line.equal_flops is None else _diverged(folder, line.equal_flops),
        "parameters": _mean(run["levels"][line.level]["parameters"] for run in _summaries(ended)),
        "epoch_seconds": _median(each["seconds"] / _epochs(run) for run, each in _with_summaries(ended)),
        "epoch_flops": _mean(flops_of(each) / _epochs(run) for run, each in _with_summaries(ended)),
        "paper_epoch_flops": line.printed_flops,
        "as_the_paper_counts": _mean(_paper_flops(each) for each in _summaries(ended)),
    }


def _diverged(folder: Folder, row: str) -> int:
    return len(folder.seeds(row)) - len(folder.scored(row))


def _scores(experiment: Experiment, folder: Folder, row: str, level: str) -> dict[str, float]:
    """By seed, as JSON has its keys."""
    return {
        str(run.settings.seed): experiment.factor * summary["levels"][level]["test"][experiment.score]
        for run, summary in _with_summaries(folder.scored(row))
        if level in summary["levels"]
    }


def _cost(folder: Folder, each: Together) -> Found:
    """The joint run against those that train the same networks one by one, with the seeds that all have.

    FLOPs are means; times are medians, for a machine is disturbed now and then.
    """
    rows = (each.joint, *each.alone.values())
    runs = {row: {run.settings.seed: summary for run, summary in _with_summaries(folder.scored(row))} for row in rows}
    seeds = sorted(set.intersection(*(set(found) for found in runs.values())))
    joint, *alone = ([runs[row][seed] for seed in seeds] or list(runs[row].values()) for row in rows)
    return {
        "label": each.label,
        "seeds": seeds,
        "joint_flops": _mean(map(flops_of, joint)),
        "joint_seconds": _median(run["seconds"] for run in joint),
        "alone_flops": sum(fmean(map(flops_of, found)) for found in alone) if seeds else None,
        "alone_seconds": sum(median(run["seconds"] for run in found) for found in alone) if seeds else None,
    }


def _near(experiment: Experiment, folder: Folder, each: Together) -> Iterator[Found]:
    """For each level the FLOPs after which it is as good on the validation data as alone, but for half a point."""
    for level, row in each.alone.items():
        pairs = [
            (joint, alone)
            for joint in folder.scored(each.joint)
            for alone in folder.scored(row)
            if joint.settings.seed == alone.settings.seed
        ]
        reached = {str(pair[0].settings.seed): _reached(experiment, *pair, level) for pair in pairs}
        if pairs and all(one is not None for one in reached.values()):
            yield {"label": each.label, "level": level, "seeds": reached}


def _reached(experiment: Experiment, joint: Ended, alone: Ended, level: str) -> Found | None:
    curves = {
        "jointly": curve(joint, level, experiment),
        "alone": curve(alone, next(iter(alone.looks[-1].levels)) if alone.looks else "", experiment),
    }
    if not all(curves.values()):
        return None
    goal = max(score for _, score in curves["alone"]) - NEAR
    return {"goal": goal} | {
        how: next((flops for flops, score in curve if score >= goal), None) for how, curve in curves.items()
    }


def curve(ended: Ended, level: str, experiment: Experiment) -> list[tuple[float, float]]:
    """Training FLOPs of the whole run so far, and the validation score of a level."""
    assert ended.summary is not None  # it is scored
    per_step = flops_of(ended.summary) / ended.summary["steps"]
    return [
        (look.steps * per_step, experiment.factor * look.levels[level][experiment.score])
        for look in ended.looks
        if experiment.score in look.levels.get(level, {})
    ]


def _starts(experiment: Experiment, folder: Folder) -> Iterator[Found]:
    """The runs with seed 0, which choose among them; one that has diverged is worse than any other."""
    for start, rows in experiment.starts.items():
        first = folder.ended(folder.run(rows.joint, 0))
        merit = -math.inf if first is None else first.merit(experiment.judge)
        yield {
            "start": start,
            "core_alone": _first(experiment, folder, rows.alone["core"], "full"),
            "core": _first(experiment, folder, rows.joint, "core"),
            "full": _first(experiment, folder, rows.joint, "full"),
            "is_known": first is not None,
            "merit": merit if math.isfinite(merit) else None,
        }


def _first(experiment: Experiment, folder: Folder, row: str, level: str) -> float | str | None:
    """The score with seed 0, or that it has diverged."""
    ended = folder.ended(folder.run(row, 0))
    is_gone = ended is not None and ended.summary is None
    return "diverged" if is_gone else _scores(experiment, folder, row, level).get("0")


def _grid(experiment: Experiment, folder: Folder) -> Iterator[Found]:
    for row in dict.fromkeys(row.name for row in experiment.rows(folder) if row.tuned_as == row.name):
        tried = folder.tried(row, experiment.grid)
        chosen = folder.chosen(row, experiment.grid, experiment.judge)
        for cell, ended in [*tried.items(), *folder.tried_before(row, experiment.grid).items()]:
            merit = ended.merit(experiment.judge)
            yield {
                "row": row,
                "lr": cell.lr,
                "warm_up": cell.warm_up,
                "merit": merit if math.isfinite(merit) else None,
                "chosen": cell == chosen,
                "earlier": cell not in tried,
            }


def _made_with(experiment: Experiment, folder: Folder) -> Found:
    """The libraries that trained, not those that print, and how scores were computed."""
    lines = elsewhere.lines(experiment, folder)
    every = [summary for line in lines for summary in _summaries(folder.scored(line.row))]
    versions = [summary["versions"] for summary in every if summary["versions"]]
    signatures = {summary["extras"].get("signature") for summary in every} - {None}
    return {
        "versions": [each for k, each in enumerate(versions) if each not in versions[:k]],
        "signature": sorted(signatures),
    }


def _with_summaries(ended: Sequence[Ended]) -> Iterator[tuple[Ended, Mapping[str, Any]]]:
    for each in ended:
        if each.summary is not None:
            yield each, each.summary


def _summaries(ended: Sequence[Ended]) -> list[Mapping[str, Any]]:
    return [summary for _, summary in _with_summaries(ended)]


def _paper_flops(summary: Mapping[str, Any]) -> float:
    """FLOPs of an epoch in the paper's convention, where the recipe counts them; 0 elsewhere."""
    rows = summary["extras"].get("training FLOPs", [])
    return float(next((row["paper"] for row in rows if row["an epoch of"] == "the method"), 0.0))


def _epochs(ended: Ended) -> float:
    """Those that were run: the last step always ends with a look, also in the middle of an epoch."""
    return ended.looks[-1].epoch


def _mean(values: Iterable[float]) -> float | None:
    return fmean(known) if (known := list(values)) else None


def _median(values: Iterable[float]) -> float | None:
    return median(known) if (known := list(values)) else None
