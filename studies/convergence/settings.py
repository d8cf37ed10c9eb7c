"""The settings: which method trains (p_t, δx_t), and which masks are measured beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from torch import nn

import partialsgd as ps
from partialsgd import methods
from partialsgd.method import Method
from studies.convergence.images import IMAGES
from studies.convergence.sentences import SENTENCES
from studies.convergence.tasks import Task

KEEP = 0.8
INNER = ("stages.*.conv1",)


@final
@dataclass(frozen=True)
class Setting:
    task: Task
    text: str
    """The training in words; with the settings of the task it identifies a run."""
    method: Callable[[nn.Module, int], Method]
    """The method for a network and a number of steps in an epoch."""
    probe: Method | str | None = None
    """The method or level that is measured, if not the trained one."""
    period: str = ""
    """After how many steps alternating training switches."""

    @property
    def settings(self) -> str:
        return f"{self.task.settings}; {self.text}"

    def with_steps(self, steps: int | None) -> Setting:
        """The same with another number of steps, to try it out."""
        return self if steps is None else replace(self, task=replace(self.task, steps=steps))


def neurons(where: Sequence[str] | None = None) -> Method:
    return methods.dropout(KEEP, unit="neurons", where=where)


def switching(period: int | None) -> Callable[[nn.Module, int], Method]:
    """`period` full steps, then as many of the core; None means an epoch of each."""

    def method(model: nn.Module, epoch: int) -> Method:
        assert isinstance(model, ps.Nested)
        steps = period or epoch
        return methods.alternating(order=["full"] * steps + ["core"] * steps)

    return method


def at_random(model: nn.Module, epoch: int) -> Method:
    assert isinstance(model, ps.Nested)
    return methods.alternating(weights={"full": 1, "core": 1})


def _plain(model: nn.Module, epoch: int) -> Method:
    return methods.plain()


def _dropout(where: Sequence[str] | None) -> tuple[Setting, Setting]:
    probe, what = neurons(where), "inside the blocks" if where else "of every hidden layer"
    masked = f"dropout of neurons {what}, keep {KEEP}"
    without = Setting(IMAGES, f"plain, measured against {masked}", _plain, probe)
    return without, Setting(IMAGES, masked, lambda model, epoch: probe)


def _alternating(period: str, text: str, method: Callable[[nn.Module, int], Method]) -> Setting:
    return Setting(SENTENCES, f"alternating, {text}, measured against its core", method, "core", period)


PERIODS = {"1": 1, "2": 2, "8": 8, "64": 64, "epoch": None}

SETTINGS: dict[str, Setting] = {
    **dict(zip(("plain", "dropout"), _dropout(None), strict=True)),
    **dict(zip(("plain_inner", "dropout_inner"), _dropout(INNER), strict=True)),
    "standard": Setting(SENTENCES, "plain training of the whole network, measured against its core", _plain, "core"),
    **{
        f"period_{name}": _alternating(name, f"switching after {name if steps else 'an epoch'}", switching(steps))
        for name, steps in PERIODS.items()
    },
    "period_random": _alternating("random", "each step full or core at random", at_random),
}
SWITCHING = tuple(name for name, setting in SETTINGS.items() if setting.period)
