"""What to do when a run cannot go on: a loss that is NaN, a disk that is full."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.settings import Settings

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def advised(run: Run, settings: Settings) -> Iterator[None]:
    """The errors of the block in words for who has started the run."""
    try:
        yield
    except FloatingPointError as error:
        what, _, _ = str(error).partition(";")  # after it the library's own advice, for those who wrote the loop
        raise FloatingPointError(
            f"{what}. What to try: {', '.join(_tips(settings))}, or a look at the data. {_kept(run)}"
        ) from error
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OSError(
            f"{run.path} could not be written ({error}). Make room on the disk, then: partialsgd resume {run.path} "
            "(it goes on from the last checkpoint, which is whole)"
        ) from error


def _kept(run: Run) -> str:
    if checkpoints.paths(run.checkpoints):
        return f"The last good checkpoints are in {run.checkpoints}"
    return "There is no checkpoint yet: start anew, with another --out"


def _tips(settings: Settings) -> list[str]:
    """Options that this recipe has."""
    names = [field.name for field in fields(settings)]
    tips = [f"a smaller --{name.replace('_', '-')}" for name in names if name.partition("_")[0] == "lr"]
    tips += ["a longer --warm-up"] if "warm_up" in names else []
    tips += ["--clip-norm 1"] if settings.clip_norm is None else ["a smaller --clip-norm"]
    tips += ["another --init"] if "init" in names else []
    return tips + (["--precision fp32"] if settings.precision != "fp32" else [])
