"""`Alerts` watches the criteria for signs of trouble and warns once for each, with advice."""

from __future__ import annotations

import math
import statistics
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from partialsgd.meters.criteria import Criteria


@final
@dataclass(frozen=True)
class Alerts:
    """Thresholds for warnings about the last `window` measurements of each mask, logged under "partialsgd".

    `growth` is the factor by which c_norm may grow over its first value. `patience` is the number of windows for which
    a level's loss may stall while another level's improves. `rate` is the factor by which SGD's step size may exceed
    1/L, with the L that the two gradients of a step show.
    """

    window: int = 20
    growth: float = 10.0
    patience: int = 3
    rate: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.window, int) or self.window < 2:
            raise ValueError(f"window must be an integer of at least 2, got {self.window!r}")
        for name in ("growth", "patience", "rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")

    def check(
        self, memory: MutableMapping[str, Any], name: str, measured: Criteria, loss: Tensor | None, rate: float | None
    ) -> tuple[str, ...]:
        """Return the new warnings of a measurement; each is returned once in a run, even after a resume."""
        history = _History(memory, self.window)
        cosines, norms = history.add(f"{name}/cosine", measured.cosine), history.add(f"{name}/c_norm", measured.c_norm)
        warnings = {
            f"alert.apart.{name}": self._opposed(cosines),
            f"alert.growing.{name}": self._growing(norms, history.first_median(f"{name}/c_norm")),
            f"alert.stuck.{name}": "" if loss is None else self._stalled(name, history, float(loss)),
            f"alert.rate.{name}": "" if rate is None else self._too_fast(measured.secant, rate),
        }
        new = {key: text for key, text in warnings.items() if text and key not in memory}
        memory.update(dict.fromkeys(new, 1))
        return tuple(f"{name}: {text}" for text in new.values())

    def _opposed(self, cosines: list[float]) -> str:
        negative = sum(value < 0 for value in cosines)
        if len(cosines) < self.window or negative <= self.window / 2:
            return ""
        return (
            f"the gradient at x̃ points away from the gradient at x in {negative} of the last {self.window} "
            "measurements, so these steps go uphill for the full network. Try a smaller perturbation (a larger "
            "core, a larger keep, a smaller rho), methods.scaled_by_alpha(method), which skips such steps, or "
            "methods.guarded(method, by='c_align')"
        )

    def _growing(self, norms: list[float], first: float) -> str:
        if len(norms) < self.window or not (now := statistics.median(norms)) > self.growth * first:
            return ""
        return (
            f"c_norm = ‖G‖ / ‖p ⊙ G‖ has grown from {first:.3g} to {now:.3g}: the mask leaves ever less "
            "of the gradient. Either this part has converged and the rest has not (give the full network more "
            "steps: order='criterion' or weights= of methods.alternating), or the mask is too small (larger keep)"
        )

    def _stalled(self, name: str, history: _History, loss: float) -> str:
        """Compare a level with its own past, and only while another level still improves."""
        history.add_loss(name, loss)
        stale = history.windows_since_best(name)
        others = [history.windows_since_best(other) for other in history.levels() if other != name]
        if not stale >= self.patience or all(since != 0 for since in others):
            return ""
        return (
            f"its loss has not improved over {int(stale) * self.window} measurements while another "
            "level's has. Try more steps for it (order=, weights= of methods.alternating), its own learning rate "
            "(lr=), distillation (distill=True), or another initialisation (LowRank(init='zero') from scratch)"
        )

    def _too_fast(self, secant: float, rate: float) -> str:
        if not math.isfinite(secant) or rate * secant <= self.rate:
            return ""
        return (
            f"the step size {rate:.3g} (with momentum) is {rate * secant:.3g} times 1/L, because "
            f"the two gradients of this step show L ≥ {secant:.3g}. The theorem allows at most 1/L: "
            "try a smaller learning rate, or a warm-up"
        )


@final
class _History:
    """The last values of each quantity, stored in the meter's memory so that they are saved with the run."""

    def __init__(self, memory: MutableMapping[str, Any], window: int) -> None:
        self._memory = memory
        self._window = window

    def add(self, name: str, value: float) -> list[float]:
        before = self._memory.get(f"last.{name}")
        values: list[float] = before.tolist() if isinstance(before, Tensor) else []
        if not math.isnan(value):  # nan: the gradient was zero
            values = [*values, value][-self._window :]
        self._memory[f"last.{name}"] = torch.tensor(values, dtype=torch.float64)
        if len(values) == self._window:
            self._memory.setdefault(f"first.{name}", statistics.median(values))
        return values

    def first_median(self, name: str) -> float:
        """Return the median of the first full window; nan before it is full."""
        return float(self._memory.get(f"first.{name}", math.nan))

    def add_loss(self, level: str, loss: float) -> None:
        """Add a loss, and at the end of a window compare the window's mean with the best so far."""
        key = f"loss.{level}"
        total, count = float(self._memory.get(f"{key}.sum", 0.0)) + loss, int(self._memory.get(f"{key}.n", 0)) + 1
        if count == self._window:
            best, mean = float(self._memory.get(f"{key}.best", math.inf)), total / self._window
            is_better = mean < best - 1e-3 * abs(best) if math.isfinite(best) else True
            stale = int(self._memory.get(f"{key}.stale", 0))
            self._memory.update({f"{key}.best": min(best, mean), f"{key}.stale": 0 if is_better else stale + 1})
            total, count = 0.0, 0
        self._memory.update({f"{key}.sum": total, f"{key}.n": count})

    def windows_since_best(self, level: str) -> float:
        return float(self._memory.get(f"loss.{level}.stale", math.nan))

    def levels(self) -> list[str]:
        return [key.removeprefix("loss.").removesuffix(".stale") for key in self._memory if key.endswith(".stale")]
