"""Stop a training on Ctrl-C or SIGTERM: the current step is finished and the state is saved."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_REPEAT_SECONDS = 1.0
"""A second signal within this time counts as the first one: launchers forward a signal that the worker already got."""


@contextmanager
def stop_on_signal(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Give a function that is true after the first signal. A second signal raises KeyboardInterrupt at once."""
    signalled: list[float] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if signalled and time.monotonic() - signalled[0] > _REPEAT_SECONDS:
            raise KeyboardInterrupt
        if not signalled:
            signalled.append(time.monotonic())
            with suppress(RuntimeError):  # the signal may arrive in the middle of another print
                say("Stopping after this step; signal again to stop at once, without saving.")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(signalled)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
