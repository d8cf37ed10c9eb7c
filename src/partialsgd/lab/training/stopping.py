"""Ctrl-C and SIGTERM: the step is finished, the state saved, and the run says how to go on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SAME = 1.0
"""Seconds in which a second signal is the first one again: launchers pass on what their workers got already."""


class Stopped(Exception):
    """The run was asked to end before its time, and has saved its state."""


@contextmanager
def asked_to_stop(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """A question to ask between steps. A second signal ends the process at once."""
    asked: list[float] = []

    def note(number: int, frame: FrameType | None) -> None:
        if asked and time.monotonic() - asked[0] > _SAME:
            raise KeyboardInterrupt
        if not asked:
            asked.append(time.monotonic())
            with suppress(RuntimeError):  # the signal may come in the middle of another print
                say("Stopping after this step; once more to stop at once, without saving.")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
