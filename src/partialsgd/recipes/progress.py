"""What a training shows: a live line in a terminal, plain lines elsewhere, nothing on other ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn

from partialsgd.recipes.tasks import Numbers

_SECONDS = 10.0
"""Between plain lines."""


@final
class Display:
    """Progress from step `position` to `total`."""

    def __init__(self, console: Console, *, position: int, total: int, per_epoch: int, unit: str) -> None:
        self.console = console
        self._total, self._per_epoch, self._unit = total, per_epoch, unit
        self._first, self._began, self._said = position, time.monotonic(), time.monotonic()
        self._units, self._losses, self._glances = 0, dict[str, float](), dict[str, Numbers]()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if console.is_terminal and not console.quiet:
            self._bar = Progress(*_columns(), console=console)
            self._task = self._bar.add_task("", total=total, completed=position, status="")

    def __enter__(self) -> Display:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, position: int, losses: Mapping[str, float], units: int) -> None:
        """After a step: the loss is shown by level, smoothed over about twenty of its steps."""
        self._units += units
        for level, loss in losses.items():
            self._losses[level] = 0.95 * self._losses.get(level, loss) + 0.05 * loss
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=position, status=self._status(position, now))
        elif now - self._said >= _SECONDS:
            self._said = now
            left = (now - self._began) / (position - self._first) * (self._total - position)
            self.console.print(
                f"step {position:,} of {self._total:,}  {self._status(position, now)}  {_clock(left)} left"
            )

    def evaluated(self, position: int, glances: Mapping[str, Numbers]) -> None:
        self._glances = dict(glances)
        where = f"epoch {position / self._per_epoch:.4g}, step {position:,}"
        self.console.print(f"{where}  valid: {_by_level(self._glances)}", highlight=False)

    def _status(self, position: int, now: float) -> str:
        speed = self._units / max(now - self._began, 1e-9)
        losses = ", ".join(f"{level} {loss:.3f}" for level, loss in self._losses.items())
        return f"epoch {position / self._per_epoch:.1f}  loss: {losses}  {speed:,.0f} {self._unit}/s"


def _columns() -> list[ProgressColumn]:
    bar = BarColumn(bar_width=20)
    return [
        TextColumn("step {task.completed:,}/{task.total:,}"),
        bar,
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    ]


def _by_level(glances: Mapping[str, Numbers]) -> str:
    shown = (
        f"{level} " + ", ".join(f"{name} {value:.4g}" for name, value in each.items())
        for level, each in glances.items()
    )
    return "; ".join(shown)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
