"""The section of levels: which sizes came out, and how good each of them is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from partialsgd.lab.page.charts import Charts
from partialsgd.lab.page.run_files import Level, Run


def section(runs: Sequence[Run], charts: Charts) -> dict[str, Any]:
    finished = [run for run in runs if run.summary]
    scores = list(dict.fromkeys(str(run.score) for run in finished))
    return {
        "finished": finished,
        "unfinished": [run for run in runs if not run.summary],
        "scores": scores,
        "charts": [chart for score in scores if (chart := charts.sizes(score))],
        "best": _best_of_each_level(finished),
        "signatures": list(dict.fromkeys(run.extras["signature"] for run in finished if "signature" in run.extras)),
        "has_untrained": any(not level.updates for run in finished for level in run.levels),
    }


def _best_of_each_level(finished: Sequence[Run]) -> list[tuple[Run, Level]]:
    """Return, for each score and each name of a level, the trained level with the best score, and its run."""
    best: dict[tuple[str | None, str], tuple[Run, Level]] = {}
    for run in finished:
        for level in run.trained:
            key, score = (run.score, level.name), level.score or 0.0
            if math.isfinite(score) and (key not in best or score > (best[key][1].score or 0.0)):
                best[key] = (run, level)
    return list(best.values())
