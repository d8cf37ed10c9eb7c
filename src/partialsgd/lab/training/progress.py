"""What a training shows: a live display in a terminal, plain lines elsewhere, nothing on other ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from partialsgd.lab.training.task import Numbers

_SECONDS = 10.0
"""Between plain lines."""
_KEPT = 0.95
"""What the shown loss and speed keep of their past at each step: they are means over about twenty."""


@final
class Display:
    """Progress from step `position` to `total`; `glances` are of the last evaluation."""

    def __init__(
        self,
        console: Console,
        *,
        position: int,
        total: int,
        per_epoch: int,
        unit: str,
        glances: Mapping[str, Numbers] | None = None,
    ) -> None:
        self.console = console
        self._position, self._total, self._per_epoch, self._unit = position, total, per_epoch, unit
        self._losses, self._glances = dict[str, float](), dict(glances or {})
        self._first, self._began = position, time.monotonic()
        self._said = self._then = self._began
        self._seconds = self._units = 0.0  # of the last steps, to tell the speed
        is_live = console.is_terminal and not console.quiet
        self._live = Live(get_renderable=self._drawn, console=console, transient=True) if is_live else None

    def __enter__(self) -> Display:
        self._began = self._then = time.monotonic()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self, position: int, losses: Mapping[str, float], units: int) -> None:
        """After a step: the loss is shown by level, smoothed over its own steps."""
        smooth = {level: _KEPT * self._losses.get(level, loss) + (1 - _KEPT) * loss for level, loss in losses.items()}
        self._losses = {**self._losses, **smooth}  # a new one: the display is drawn by another thread
        now = time.monotonic()
        self._seconds = _KEPT * self._seconds + now - self._then
        self._units = _KEPT * self._units + units
        self._position, self._then = position, now
        if self._live is None and now - self._said >= _SECONDS:
            self._said = now
            say(self.console, f"step {position:,} of {self._total:,}  {self._pace()}  loss: {_by_level(self._losses)}")

    def evaluated(self, position: int, glances: Mapping[str, Numbers]) -> None:
        """After an evaluation, whose time is not the steps'."""
        self._glances, self._then = dict(glances), time.monotonic()
        where = f"epoch {position / self._per_epoch:.4g}, step {position:,}  valid: "
        levels = [f"{level} {_listed(each)}" for level, each in glances.items()]
        line = where + "; ".join(levels)
        if self._live is not None and len(line) > self.console.width:  # a log is searched, a screen is read
            line = where + ("\n" + " " * len(where)).join(levels)
        say(self.console, line)

    def _pace(self) -> str:
        """The speed is that of the last steps; the time left counts evaluations too."""
        epoch, done = f"epoch {self._position / self._per_epoch:.1f}", self._position - self._first
        if not done:
            return epoch
        left = (self._then - self._began) / done * (self._total - self._position)
        return f"{epoch}  {self._units / max(self._seconds, 1e-9):,.0f} {self._unit}/s  {_clock(left)} left"

    def _drawn(self) -> Group:
        """A line for the run and one for each level: its loss, and its last evaluation."""
        bar = ProgressBar(total=self._total, completed=self._position, width=16)
        run = Table.grid(padding=(0, 2))
        run.add_row(f"step {self._position:,}/{self._total:,}", bar, self._pace())
        levels = Table.grid(padding=(0, 2))
        losses, glances = self._losses, self._glances
        for level in dict.fromkeys([*glances, *losses]):
            loss = f"loss {losses[level]:.3f}" if level in losses else ""
            valid = f"valid: {_listed(glances[level])}" if level in glances else ""
            levels.add_row(f"  {level}", loss, Text(valid, overflow="ellipsis", no_wrap=True))
        return Group(run, levels)


def say(console: Console, line: str, style: str = "") -> None:
    """A line as it is: a path is not cut in two, nor a bracket taken for a colour."""
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def warnings_on(console: Console) -> Iterator[None]:
    """What the library warns of is shown above the progress."""
    logger, handler = logging.getLogger("partialsgd"), _Shown()
    handler.console = console
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@final
class _Shown(logging.Handler):
    console: Console

    def emit(self, record: logging.LogRecord) -> None:
        say(self.console, f"{record.levelname.lower()}: {record.getMessage()}", style="yellow")


def _by_level(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{level} {loss:.3f}" for level, loss in losses.items())


def _listed(numbers: Numbers) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
