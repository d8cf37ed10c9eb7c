"""What the criteria warn of, once each, with what to try."""

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
    """Looks at the last `window` measurements of each mask; what it warns of, once each, is logged under "partialsgd".

    `growth`: how many times c_norm may grow over what it was at first. `patience`: for how many windows a level may
    not improve while another one does. `rate`: how many times the step size of SGD may be over the 1/L that the
    measured gradients allow at most.
    """

    window: int = 20
    growth: float = 10.0
    patience: int = 3
    rate: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.window, int) or self.window < 2:
            raise ValueError(f"window must be a whole number of at least 2, got {self.window!r}")
        for name in ("growth", "patience", "rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")

    def check(
        self, memory: MutableMapping[str, Any], place: str, found: Criteria, loss: Tensor | None, rate: float | None
    ) -> tuple[str, ...]:
        """The warnings that this measurement gives rise to; each is given once in a run, also in a resumed one."""
        series = _Series(memory, self.window)
        cosines, norms = series.add(f"{place}/cosine", found.cosine), series.add(f"{place}/c_norm", found.c_norm)
        told = [
            *self._apart(place, cosines),
            *self._growing(place, norms, series.first(f"{place}/c_norm")),
            *self._stuck(place, series, loss),
            *self._too_fast(place, found, rate),
        ]
        new = [(kind, text) for kind, text in told if f"alert.{kind}" not in memory]
        memory.update({f"alert.{kind}": 1 for kind, _ in new})
        return tuple(text for _, text in new)

    def _apart(self, place: str, cosines: list[float]) -> Iterator[tuple[str, str]]:
        negative = sum(value < 0 for value in cosines)
        if len(cosines) == self.window and negative > self.window / 2:
            yield (
                f"apart.{place}",
                f"{place}: the gradient at x̃ points away from the one at x in {negative} of the last {self.window} "
                "measurements, so its steps go uphill for the whole network. Try a smaller perturbation (a larger "
                "core, a larger keep, a smaller rho), methods.scaled_by_alpha(method), which takes no such step, or "
                "methods.guarded(method, by='c_align')",
            )

    def _growing(self, place: str, norms: list[float], first: float) -> Iterator[tuple[str, str]]:
        if len(norms) < self.window or math.isnan(first):
            return
        now = statistics.median(norms)
        if now > self.growth * first:
            yield (
                f"growing.{place}",
                f"{place}: c_norm = ‖G‖ / ‖p ⊙ G‖ has grown from {first:.3g} to {now:.3g}: the mask leaves ever less "
                "of the gradient. Either the part is trained and the rest is not (give the whole network more steps: "
                "methods.alternating(order='criterion') or weights=), or the mask is too small (larger keep)",
            )

    def _stuck(self, place: str, series: _Series, loss: Tensor | None) -> Iterator[tuple[str, str]]:
        """A level is compared with itself, and only where another one still improves."""
        if loss is None:
            return
        series.improve(place, float(loss), self.window)
        stale = series.windows_since_best(place)
        others = [series.windows_since_best(other) for other in series.places() if other != place]
        if stale >= self.patience and any(since == 0 for since in others):
            yield (
                f"stuck.{place}",
                f"{place}: its loss has not improved over {int(stale) * self.window} measurements while another "
                "level's has. Try more steps for it (order=, weights= of methods.alternating), its own learning rate "
                "(lr=), distillation (distill=True), or another start (LowRank(init='zero') from scratch)",
            )

    def _too_fast(self, place: str, found: Criteria, rate: float | None) -> Iterator[tuple[str, str]]:
        if rate is not None and math.isfinite(found.secant) and rate * found.secant > self.rate:
            yield (
                f"rate.{place}",
                f"{place}: the step size {rate:.3g} (with momentum) is {rate * found.secant:.3g} times 1/L, and "
                f"the two gradients of this step show L ≥ {found.secant:.3g}. The theorem allows 1/L at most: "
                "try a smaller learning rate, or a warm-up",
            )


@final
class _Series:
    """The last values of each quantity, kept in the meter's memory."""

    def __init__(self, memory: MutableMapping[str, Any], window: int) -> None:
        self._memory = memory
        self._window = window

    def add(self, name: str, value: float) -> list[float]:
        before = self._memory.get(f"last.{name}")
        values: list[float] = before.tolist() if isinstance(before, Tensor) else []
        if not math.isnan(value):  # there was no gradient to speak of
            values = [*values, value][-self._window :]
        self._memory[f"last.{name}"] = torch.tensor(values, dtype=torch.float64)
        if len(values) == self._window:
            self._memory.setdefault(f"first.{name}", statistics.median(values))
        return values

    def first(self, name: str) -> float:
        """The median of the first window, or nan before it is full."""
        return float(self._memory.get(f"first.{name}", math.nan))

    def improve(self, place: str, loss: float, window: int) -> None:
        """At the end of each window of losses: is their mean the best so far?"""
        key = f"loss.{place}"
        total, count = float(self._memory.get(f"{key}.sum", 0.0)) + loss, int(self._memory.get(f"{key}.n", 0)) + 1
        if count == window:
            best, mean = float(self._memory.get(f"{key}.best", math.inf)), total / window
            is_better = mean < best - 1e-3 * abs(best) if math.isfinite(best) else True
            stale = int(self._memory.get(f"{key}.stale", 0))
            self._memory.update({f"{key}.best": min(best, mean), f"{key}.stale": 0 if is_better else stale + 1})
            total, count = 0.0, 0
        self._memory.update({f"{key}.sum": total, f"{key}.n": count})

    def windows_since_best(self, place: str) -> float:
        return float(self._memory.get(f"loss.{place}.stale", math.nan))

    def places(self) -> list[str]:
        return [key.removeprefix("loss.").removesuffix(".stale") for key in self._memory if key.endswith(".stale")]
