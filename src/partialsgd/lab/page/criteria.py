"""The section of convergence: the measured criteria, and what Theorem 1 concludes from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, final

from partialsgd import theory
from partialsgd.lab.page.charts import Charts, measured
from partialsgd.lab.page.run_files import Run
from partialsgd.logging import series
from partialsgd.logging.series import Measured

_KEYS = ("c_norm", "c_sim", "c_align", "alpha", "q")
_CHARTS = {
    "c_norm": "‖G‖ / ‖p ⊙ G‖",
    "c_sim": "‖p ⊙ G‖ / ‖p ⊙ G̃‖",
    "c_align": "1 / cos(p ⊙ G, p ⊙ G̃)",
    "q": "‖G‖ / (α ‖p ⊙ G̃‖)",
}


@final
@dataclass(frozen=True)
class LevelCriteria:
    """The criteria that were measured for one level, or for one probe, of a run."""

    name: str
    by_step: Measured

    def medians(self, key: str) -> list[float]:
        """Return the medians of all measurements, of the first half and of the second half."""
        values = [float(self.by_step[t][key]) for t in sorted(self.by_step)]
        if key == "c_align":
            values = [math.inf if value < 0 else value for value in values]  # worse than every positive value
        half = (len(values) + 1) // 2
        parts = ([v for v in part if not math.isnan(v)] for part in (values, values[:half], values[-half:]))
        return [median(part) if part else math.nan for part in parts]

    @property
    def is_plain(self) -> bool:
        """True if every measured step was a step of plain training."""
        return all(abs(float(one[key]) - 1) < 1e-6 for one in self.by_step.values() for key in _KEYS)

    @property
    def angle(self) -> float:
        """The median angle between the two gradients in degrees; at least 90 if they point in opposite directions."""
        c_align = self.medians("c_align")[0]
        return math.degrees(math.acos(min(1.0, 1 / c_align)))

    @property
    def negative_count(self) -> int:
        """The number of measurements with a negative alignment."""
        return sum(float(one["c_align"]) < 0 for one in self.by_step.values())

    @property
    def unbounded_count(self) -> int:
        """The number of measurements with an infinite q, for which the theorem has no bound."""
        return sum(math.isinf(float(one["q"])) for one in self.by_step.values())

    @property
    def largest_q(self) -> tuple[int, float] | None:
        """The step with the largest finite q, and that q."""
        finite = {t: float(one["q"]) for t, one in self.by_step.items() if math.isfinite(float(one["q"]))}
        return max(finite.items(), key=lambda item: item[1], default=None)


def level_criteria(run: Run) -> list[LevelCriteria]:
    return [LevelCriteria(name, series.measured(run.steps, recorded)) for name, recorded in measured(run).items()]


def section(runs: Sequence[Run], charts: Charts) -> dict[str, Any]:
    measured_runs = [(run, levels) for run in runs if (levels := level_criteria(run))]
    partial_levels = [(run, one) for run, levels in measured_runs for one in levels if not one.is_plain]
    records = [record for _, levels in measured_runs for one in levels for record in one.by_step.values()]
    drawn = []
    for key, formula in _CHARTS.items() if partial_levels else ():
        curves = {run.label(one.name): series.ratio(one.by_step, key) for run, one in partial_levels}
        drawn.append(charts.lines(curves, key, key, note=formula, kind="ratio"))
    return {
        "measured": [(run, levels, _alerts(levels), alternating_factor(run)) for run, levels in measured_runs],
        "unmeasured": [run.name for run in runs if not level_criteria(run)],
        "charts": drawn,
        "legend": charts.legend([run.label(one.name) for run, one in partial_levels]),
        "batches": max((run.settings.get("measure_batches") or 1 for run, _ in measured_runs), default=1),
        "flags": {key for record in records for key in ("probe", "quiet", "left_out") if record.get(key)},
    }


def iterations_factors(q: float) -> list[float]:
    """Return how many times SGD's iterations Theorem 1 asks for: without noise, and if noise dominates."""
    if not math.isfinite(q):
        return [q, q]
    needed = partial(theory.iterations, smoothness=1.0, epsilon=1.0, gap=1.0)
    q = max(q, 1.0)  # rounding can make the q of plain training slightly smaller
    return [needed(q=q, variance=variance) / needed(variance=variance) for variance in (0.0, 1e12)]


def alternating_factor(run: Run) -> float | None:
    """Return the ratio of the bound of alternating training, which has no q (erratum E22), to the bound of SGD."""
    updates = [level.updates for level in run.trained]
    if not run.method.startswith("alternating") or len(updates) < 2:
        return None
    problem = {"smoothness": 1.0, "gap": 1.0, "T": 1.0, "gamma_base": 1.0}
    return theory.alternating_bound(**problem, share=updates[-1] / sum(updates)) / theory.average_bound(**problem)


def _alerts(levels: Sequence[LevelCriteria]) -> list[str]:
    """Return the warnings that were logged with the measurements, each once."""
    texts = (text for one in levels for record in one.by_step.values() for text in record.get("alerts", ()))
    return list(dict.fromkeys(map(str, texts)))
