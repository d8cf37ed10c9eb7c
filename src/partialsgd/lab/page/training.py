"""How the training went: losses and scores over the steps, and what a size is worth."""

from __future__ import annotations

from collections.abc import Sequence

from partialsgd.lab.page import curves
from partialsgd.lab.page.charts import Charts, Point, grid
from partialsgd.lab.page.curves import MOST
from partialsgd.lab.page.markup import Html, el, section
from partialsgd.lab.page.runs import Run


def shown(runs: Sequence[Run], charts: Charts) -> Html:
    if not any(run.steps for run in runs):
        return section("training", "Training", el("p", "No step was made yet."))
    losses, valid = curves.training_loss(runs), curves.validation(runs, "loss")
    figures = [charts.lines(losses, "Training loss", "loss", note=_means(runs))]
    if valid:
        figures.append(charts.lines(valid, "Validation loss", "loss"))
    figures += [
        charts.lines(found, f"Validation {score}", score, log=False, best=max)
        for score in _scores(runs)
        if (found := curves.validation(runs, score))
    ]
    named = list(dict.fromkeys([*losses, *valid]))
    return section("training", "Training", charts.legend(named), grid(figures))


def sizes(runs: Sequence[Run], charts: Charts) -> list[Html]:
    """What a size is worth, by each score."""
    return [charts.sizes(points, score) for score in _scores(runs) if (points := _points(runs, score))]


def _scores(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.score for run in runs if run.score))


def _points(runs: Sequence[Run], score: str) -> list[Point]:
    """Levels that had steps of their own, of runs that are at their end."""
    return [
        (curves.name_of(run, level.name, runs), run, level)
        for run in runs
        if run.is_finished and run.score == score
        for level in run.trained
    ]


def _means(runs: Sequence[Run]) -> str:
    """Points of long runs are means of neighbours."""
    longest = max(len(run.steps) for run in runs)
    return f"means of neighbouring steps, {MOST} points at most" if longest > MOST else "of the batch at each step"
