"""c_norm, c_sim, c_align, α, q of a run in words: what Theorem 1 says of them, and what it does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import final

from partialsgd import theory
from partialsgd.lab.page import curves, numbers
from partialsgd.lab.page.runs import Run
from partialsgd.logging import series
from partialsgd.logging.series import Measured

KEYS = ("c_norm", "c_sim", "c_align", "alpha", "q")
_SAME = 0.02  # a ratio that is nearer to 1 is called 1


@final
@dataclass(frozen=True)
class Reading:
    """What was measured of a level, or of a probe, in one run."""

    name: str
    found: Measured

    def median(self, key: str, part: int | None = None) -> float:
        """Over all measurements, or over their first or second half; a negative alignment is beyond every bound."""
        steps, half = sorted(self.found), (len(self.found) + 1) // 2
        chosen = steps if part is None else steps[:half] if part == 0 else steps[-half:]
        values = [float(self.found[t][key]) for t in chosen]
        known = [math.inf if key == "c_align" and v < 0 else v for v in values if not math.isnan(v)]
        return median(known) if known else math.nan

    @property
    def is_plain(self) -> bool:
        """Whether every step was one of plain training."""
        return all(abs(float(one[key]) - 1) < 1e-6 for one in self.found.values() for key in KEYS)

    @property
    def negative(self) -> int:
        return sum(float(one["c_align"]) < 0 for one in self.found.values())

    @property
    def unbounded(self) -> int:
        """Measurements with an infinite q, for which the theorem has no bound."""
        return sum(math.isinf(float(one["q"])) for one in self.found.values())

    @property
    def worst(self) -> tuple[int, float] | None:
        """The step of the largest finite q, and that q."""
        known = {t: float(one["q"]) for t, one in self.found.items() if math.isfinite(float(one["q"]))}
        top = max(known, key=known.__getitem__, default=None)
        return None if top is None else (top, known[top])


def readings(run: Run) -> list[Reading]:
    return [Reading(name, series.measured(run.steps, key)) for name, key in curves.measured(run).items()]


def more_iterations(q: float) -> tuple[float, float]:
    """How many times SGD's iterations the bound of Theorem 1 asks for: without noise, and where it is all noise."""
    if not math.isfinite(q):
        return (q, q)
    least = max(q, 1.0)  # a measured q of plain training may be 1 less a rounding
    return (_ratio(least, variance=0.0), _ratio(least, variance=1e12))


def _ratio(q: float, variance: float) -> float:
    needed = partial(theory.iterations, smoothness=1.0, epsilon=1.0, gap=1.0, variance=variance)
    return needed(q=q) / needed()


def words(reading: Reading, method: str) -> dict[str, str]:
    """What the median of each number says."""
    says: dict[str, Callable[[float], str]] = {
        "c_norm": lambda c_norm: f"The step's mask leaves {numbers.share(1 / c_norm)} of the gradient's length.",
        "c_sim": _length,
        "c_align": _angle,
        "alpha": lambda alpha: f"The theorem allows {numbers.share(alpha)} of SGD's step size; {_scaled(method)}.",
        "q": _iterations,
    }
    medians = {key: reading.median(key) for key in KEYS}
    return {key: "Undefined, as 0 / 0." if math.isnan(medians[key]) else says[key](medians[key]) for key in KEYS}


def _length(c_sim: float) -> str:
    if abs(c_sim - 1) < _SAME:
        return "The gradient that the step uses is as long as the masked one at x."
    word = "shorter" if c_sim > 1 else "longer"
    factor = numbers.times(max(c_sim, 1 / c_sim)) if c_sim > 0 else "∞"
    return f"The gradient that the step uses is {factor} times {word} than the masked one at x."


def _angle(c_align: float) -> str:
    if math.isinf(c_align):
        return "Most often the two gradients point apart."
    if c_align - 1 < 1e-4:
        return "The two gradients point the same way."
    return f"The two gradients are {math.degrees(math.acos(min(1.0, 1 / c_align))):.3g}° apart."


def _scaled(method: str) -> str:
    return "this run scales its steps so" if "scaled_by_alpha" in method else "this run does not scale its steps by it"


def _iterations(q: float) -> str:
    if not math.isfinite(q):
        return "There is no bound on the number of iterations."
    low, high = more_iterations(q)
    return (
        f"The bound asks for {numbers.times(low)} times the iterations of SGD where the noise is small (q²), and for "
        f"{numbers.times(high)} times where it rules (q⁴)."
    )


def verdict(reading: Reading) -> str:
    """The theorem asks for the largest q; where it is infinite there is no bound, and that is said first."""
    count, said = len(reading.found), []
    if reading.negative:
        said.append(
            f"No bound: at {reading.negative:,} of {count:,} measured steps the alignment was negative. There α is 0 "
            "and q infinite, and the theorem says nothing of a run that moves at such a step."
        )
    elif reading.unbounded:
        said.append(f"No bound: at {reading.unbounded:,} of {count:,} measured steps q is infinite.")
    if reading.worst is not None:
        t, q = reading.worst
        low, high = more_iterations(q)
        without = "Without those steps the" if said else "The"
        said.append(
            f"{without} theorem takes the largest q of these steps: {numbers.times(q)} at step {t:,}, the largest "
            f"finite one of {numbers.counted(count, 'measurement')}. It stands for {numbers.times(low)} to "
            f"{numbers.times(high)} times the iterations of SGD, for steps that are scaled by α."
        )
    return " ".join(said)


def alternating(run: Run) -> str:
    """The better bound of alternating training, which has no q (erratum E22)."""
    updates = {level.name: level.updates for level in run.trained}
    if not str(run.settings.get("method", "")).startswith("alternating") or len(updates) < 2:
        return ""
    problem = {"smoothness": 1.0, "gap": 1.0, "T": 1.0, "gamma_base": 1.0}
    share = list(updates.values())[-1] / sum(updates.values())
    factor = theory.alternating_bound(**problem, share=share) / theory.average_bound(**problem)
    return (
        f"For the whole network alternating training has a bound without q (erratum E22): over its own steps it is at "
        f"most {numbers.times(factor)} times that of SGD after as many steps, if the other steps are scaled by α."
    )


def limits(runs: Sequence[Run]) -> list[str]:
    """What these numbers cannot say."""
    every = [one for run in runs for reading in readings(run) for one in reading.found.values()]
    several = {run.settings.get("measure_batches") or 1 for run in runs} - {1}
    batches = f" (of {max(several)} batches at most)" if several else ""
    said = [
        f"They are of mini-batches{batches}, and the theorem is about the gradients of f itself.",
        "Both gradients are of the same batches, so their noise is in both, and they look better aligned than they "
        "are (erratum E21).",
        "Only the measured steps are known, and only x along this run.",
        "The theorem is about SGD. With momentum or Adam the criteria still say what a step sees of the gradient; the "
        "step sizes and iterations are SGD's.",
    ]
    if any(one.get("probe") for one in every):
        said.append("A probe is not what was trained: its numbers say what such steps would see along this run.")
    if any(one.get("quiet") for one in every):
        said.append("Dropout was off in the two gradients, because two sizes cannot draw the same noise.")
    if any(one.get("left_out") for one in every):
        said.append("Parameters that only one of the two passes uses are left out of c_sim, c_align and α.")
    return said


def alerts(found: Sequence[Reading]) -> list[str]:
    """The warnings that were given while the run was measured."""
    texts = (text for reading in found for one in reading.found.values() for text in one.get("alerts", ()))
    return list(dict.fromkeys(map(str, texts)))
