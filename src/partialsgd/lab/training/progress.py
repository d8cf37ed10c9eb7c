"""Progress of a training: a live display in a terminal, plain lines elsewhere, nothing on other ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from partialsgd.lab.training.task import Numbers

_LINE_SECONDS = 10.0  # between plain lines
_SMOOTHING = 0.95  # the weight of the past in the shown loss and speed: averages over about twenty steps


@final
class Display:
    """Progress from step `position` to `total`, with the numbers of the last evaluation."""

    def __init__(
        self, console: Console, evaluations: Mapping[str, Numbers], *, position: int, total: int, epoch: int, unit: str
    ) -> None:
        """`epoch` is the number of steps in an epoch."""
        self.console = console
        self._position, self.total, self._per_epoch, self._unit = position, total, epoch, unit
        self._losses, self._evaluations = dict[str, float](), dict(evaluations)
        self._first, self._began = position, time.monotonic()
        self._printed = self._then = self._began
        self._seconds = self._units = 0.0  # of the last steps, for the speed
        is_live = console.is_terminal and not console.quiet
        self._live = Live(get_renderable=self._render, console=console, transient=True) if is_live else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self, position: int, losses: Mapping[str, float], units: int) -> None:
        """Update the display after a step; each level's loss is smoothed over its own steps."""
        smoothed = dict(self._losses)  # a new dict, because another thread draws it
        for level, loss in losses.items():
            smoothed[level] = _SMOOTHING * smoothed.get(level, loss) + (1 - _SMOOTHING) * loss
        self._losses = smoothed
        now = time.monotonic()
        self._seconds = _SMOOTHING * self._seconds + now - self._then
        self._units = _SMOOTHING * self._units + units
        self._position, self._then = position, now
        if self._live is None and now - self._printed >= _LINE_SECONDS:
            self._printed = now
            losses_text = ", ".join(f"{level} {loss:.3f}" for level, loss in smoothed.items())
            say(self.console, f"step {position:,} of {self.total:,}  {self._pace()}  loss: {losses_text}")

    def evaluated(self, position: int, evaluations: Mapping[str, Numbers]) -> None:
        """Print an evaluation; its time does not count for the speed of steps."""
        self._evaluations, self._then = dict(evaluations), time.monotonic()
        where = f"epoch {position / self._per_epoch:.4g}, step {position:,}  valid: "
        levels = [f"{level} {_join_numbers(each)}" for level, each in evaluations.items()]
        line = where + "; ".join(levels)
        if self._live is not None and len(line) > self.console.width:  # in a log one line is easier to search
            line = where + ("\n" + " " * len(where)).join(levels)
        say(self.console, line)

    def _pace(self) -> str:
        """The speed of the last steps, and the remaining time, which includes evaluations."""
        epoch, done = f"epoch {self._position / self._per_epoch:.1f}", self._position - self._first
        if not done:
            return epoch
        left = timedelta(seconds=round((self._then - self._began) / done * (self.total - self._position)))
        return f"{epoch}  {self._units / max(self._seconds, 1e-9):,.0f} {self._unit}/s  {left} left"

    def _render(self) -> Group:
        """One line for the run, and one for each level with its loss and last evaluation."""
        bar = ProgressBar(total=self.total, completed=self._position, width=16)
        run = Table.grid(padding=(0, 2))
        run.add_row(f"step {self._position:,}/{self.total:,}", bar, self._pace())
        levels = Table.grid(padding=(0, 2))
        losses, evaluations = self._losses, self._evaluations
        for level in dict.fromkeys([*evaluations, *losses]):
            loss = f"loss {losses[level]:.3f}" if level in losses else ""
            valid = f"valid: {_join_numbers(evaluations[level])}" if level in evaluations else ""
            levels.add_row(f"  {level}", loss, Text(valid, overflow="ellipsis", no_wrap=True))
        return Group(run, levels)


def say(console: Console, line: str, style: str = "") -> None:
    """Print a line unchanged: rich would wrap paths and read brackets as colours."""
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def show_warnings_on(console: Console) -> Iterator[None]:
    """Show warnings of the library above the progress display."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(console, f"{record.levelname.lower()}: {record.getMessage()}", style="yellow")

    logger, handler = logging.getLogger("partialsgd"), Handler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _join_numbers(numbers: Numbers) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
