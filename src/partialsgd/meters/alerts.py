"""`Alerts` watches the criteria for signs of trouble and warns once for each, with advice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, MutableMapping
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
        warnings = [
            *self._opposed(name, cosines),
            *self._growing(name, norms, history.first_median(f"{name}/c_norm")),
            *self._stalled(name, history, loss),
            *self._too_fast(name, measured.secant, rate),
        ]
        new = [(kind, text) for kind, text in warnings if f"alert.{kind}" not in memory]
        memory.update({f"alert.{kind}": 1 for kind, _ in new})
        return tuple(text for _, text in new)

    def _opposed(self, name: str, cosines: list[float]) -> Iterator[tuple[str, str]]:
        negative = sum(value < 0 for value in cosines)
        if len(cosines) == self.window and negative > self.window / 2:
            yield (
                f"apart.{name}",
                f"{name}: the gradient at x̃ points away from the gradient at x in {negative} of the last {self.window} "
                "measurements, so these steps go uphill for the full network. Try a smaller perturbation (a larger "
                "core, a larger keep, a smaller rho), methods.scaled_by_alpha(method), which skips such steps, or "
                "methods.guarded(method, by='c_align')",
            )

    def _growing(self, name: str, norms: list[float], first: float) -> Iterator[tuple[str, str]]:
        if len(norms) < self.window or math.isnan(first):
            return
        now = statistics.median(norms)
        if now > self.growth * first:
            yield (
                f"growing.{name}",
                f"{name}: c_norm = ‖G‖ / ‖p ⊙ G‖ has grown from {first:.3g} to {now:.3g}: the mask leaves ever less "
                "of the gradient. Either this part has converged and the rest has not (give the full network more "
                "steps: order='criterion' or weights= of methods.alternating), or the mask is too small (larger keep)",
            )

    def _stalled(self, name: str, history: _History, loss: Tensor | None) -> Iterator[tuple[str, str]]:
        """Compare a level with its own past, and only while another level still improves."""
        if loss is None:
            return
        history.add_loss(name, float(loss))
        stale = history.windows_since_best(name)
        others = [history.windows_since_best(other) for other in history.levels() if other != name]
        if stale >= self.patience and any(since == 0 for since in others):
            yield (
                f"stuck.{name}",
                f"{name}: its loss has not improved over {int(stale) * self.window} measurements while another "
                "level's has. Try more steps for it (order=, weights= of methods.alternating), its own learning rate "
                "(lr=), distillation (distill=True), or another initialisation (LowRank(init='zero') from scratch)",
            )

    def _too_fast(self, name: str, secant: float, rate: float | None) -> Iterator[tuple[str, str]]:
        if rate is not None and math.isfinite(secant) and rate * secant > self.rate:
            yield (
                f"rate.{name}",
                f"{name}: the step size {rate:.3g} (with momentum) is {rate * secant:.3g} times 1/L, because "
                f"the two gradients of this step show L ≥ {secant:.3g}. The theorem allows at most 1/L: "
                "try a smaller learning rate, or a warm-up",
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
