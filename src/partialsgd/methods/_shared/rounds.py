"""When a round of local training ends: after a number of steps, or before it, when what was measured says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

from partialsgd.meters.summaries import highest, latest, times
from partialsgd.method import Context, Remembered

Judge: TypeAlias = Callable[[Mapping[str, Remembered]], bool]
"""Whether the last measurements of all workers are reason enough for a new round."""

_NUMBER, _BEGAN, _AT, _SEEN = "round", "round.began", "round.at", "round.seen."


@final
@dataclass(frozen=True)
class Rounds:
    """In a round each worker has the same number of steps, `every` at most."""

    workers: tuple[str, ...]
    every: int
    judge: Judge | None = None
    """Asked when each worker was measured in this round; without one a round has all of its steps."""

    def of(self, context: Context) -> tuple[int, int]:
        """The number of the round that step t is in, and the first step of that round."""
        if self.judge is None:
            number = context.t // self._length
            return number, number * self._length
        number, began, at = (int(context.memory.get(key, 0)) for key in (_NUMBER, _BEGAN, _AT))
        if at == context.t or not self._is_over(context, self.judge, began):
            return number, began
        return number + 1, context.t

    def remember(self, context: Context) -> None:
        """Before a step: its round, so that what the step itself measures does not change it."""
        if self.judge is None or context.memory.get(_AT) == context.t:
            return
        number, began = self.of(context)
        context.memory.update({_NUMBER: number, _BEGAN: began, _AT: context.t})
        if began == context.t:
            context.memory.update({_SEEN + worker: times(context.measured, worker) for worker in self.workers})

    def starts(self, context: Context) -> bool:
        return self.of(context)[1] == context.t

    def ends(self, context: Context) -> bool:
        """Whether step t, which has been measured by now, is the last of its round."""
        return self.starts(replace(context, t=context.t + 1))

    @property
    def _length(self) -> int:
        return self.every * len(self.workers)

    def _is_over(self, context: Context, judge: Judge, began: int) -> bool:
        steps = context.t - began
        if steps <= 0 or steps % len(self.workers) != 0:
            return False
        seen = {worker: int(context.memory.get(_SEEN + worker, 0)) for worker in self.workers}
        all_new = all(times(context.measured, worker) > before for worker, before in seen.items())
        return steps >= self._length or (all_new and judge(context.measured))


def by_alignment(workers: Sequence[str], bound: float) -> Judge:
    """c_align is over the bound: the mean over the workers of its inverse, the cosine, is below 1 / bound."""

    def judge(measured: Mapping[str, Remembered]) -> bool:
        cosines = [_last(measured, worker, "cosine") for worker in workers]
        return not sum(cosines) * bound >= len(cosines)  # so that what is not a number is over it too

    return judge


def by_assumption(workers: Sequence[str], smoothness: float | None) -> Judge:
    """Assumption 3, ‖δx‖ / max{‖p ⊙ G‖, ‖p ⊙ G̃‖} < 1 / (2L), does not hold for some worker.

    Without L it is the steepest secant that was measured so far, which is a lower bound: the assumption then seems to
    hold more often than it does.
    """

    def judge(measured: Mapping[str, Remembered]) -> bool:
        secants = [highest(measured, worker, "secant") for worker in workers]
        steepest = max((secant for secant in secants if not math.isnan(secant)), default=0.0)
        smooth = steepest if smoothness is None else smoothness
        return not all(2 * smooth * _last(measured, worker, "bounded_perturbation") < 1 for worker in workers)

    return judge


def _last(measured: Mapping[str, Remembered], worker: str, name: str) -> float:
    value = latest(measured, worker, name)
    return math.nan if value is None else value
