"""Errors that end a command, stops on request, and advice when a run cannot go on."""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import FrameType

from partialsgd.lab.training.settings import Settings

_REPEAT_SECONDS = 1.0
"""A second signal within this time counts as the first one: launchers forward a signal that the worker already got."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WrongCall(ValueError):
    """The command was called with something that does not exist or is not allowed; exit code 2."""


class NotThere(WrongCall, FileNotFoundError):
    """A run or its data were not found at the path that the call gives."""


class AlreadyThere(WrongCall, FileExistsError):
    """The output path exists, and would be overwritten."""


class Stopped(Exception):
    """The run was interrupted before its end, and its state is saved."""


@contextmanager
def advice_on_errors(run: Path, settings: Settings) -> Iterator[None]:
    """Add what the user can do to the message of a NaN or of a full disk."""
    try:
        yield
    except FloatingPointError as error:
        problem, _, _ = str(error).partition(";")  # the library's own advice after it is for people who write loops
        from partialsgd.lab.runs.checkpoints import paths  # which imports torch

        last = "There is no checkpoint yet: start again with another --out"
        if paths(run / "checkpoints"):
            last = f"The last good checkpoints are in {run / 'checkpoints'}"
        raise FloatingPointError(
            f"{problem}. What to try: {', '.join(_remedies(settings))}, or a check of the data. {last}"
        ) from error
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise OSError(
            f"{run} could not be written ({error}). Free some disk space, then run: partialsgd resume {run} "
            "(it continues from the last checkpoint, which is complete)"
        ) from error


def _remedies(settings: Settings) -> list[str]:
    """Options of this recipe that may help against a NaN."""
    names = [field.name for field in fields(settings)]
    remedies = [f"a smaller --{name.replace('_', '-')}" for name in names if name.partition("_")[0] == "lr"]
    remedies += ["a longer --warm-up"] if "warm_up" in names else []
    remedies += ["--clip-norm 1"] if settings.clip_norm is None else ["a smaller --clip-norm"]
    remedies += ["another --init"] if "init" in names else []
    return remedies + (["--precision fp32"] if settings.precision != "fp32" else [])


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
