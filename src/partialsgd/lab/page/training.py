"""The section of training: losses and scores over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partialsgd.lab.page.charts import MAX_POINTS, Charts, training_losses, validation_curves
from partialsgd.lab.page.run_files import Run


def section(runs: Sequence[Run], charts: Charts) -> dict[str, Any]:
    if not any(run.steps for run in runs):
        return {"charts": [], "legend": []}
    is_thinned = max(len(run.steps) for run in runs) > MAX_POINTS
    note = f"means of neighbouring steps, at most {MAX_POINTS} points" if is_thinned else "of the batch at each step"
    losses, validation_losses = training_losses(runs), validation_curves(runs, "loss")
    drawn = [charts.lines(losses, "Training loss", "loss", note=note)]
    if validation_losses:
        drawn.append(charts.lines(validation_losses, "Validation loss", "loss"))
    for score in dict.fromkeys(run.score for run in runs if run.score):
        if curves := validation_curves(runs, score):
            drawn.append(charts.lines(curves, f"Validation {score}", score, log=False, best=max))
    return {"charts": drawn, "legend": charts.legend([*losses, *validation_losses])}
