"""t, level, f, γ_t, criteria: one JSON line a step, which a kill and a resume leave as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from partialsgd.engine.step import Step
from partialsgd.logging import records
from partialsgd.logging import tensorboard as board


@final
class MetricsLog:
    """A metrics file, open for writing; under torch.distributed rank 0 alone writes, and the losses are its own.

    A run that goes on from a checkpoint opens its log with `t=sgd.t`: what later steps wrote is dropped, as is half
    a line that a kill left, so that the file ends as if the run had never stopped. Write a step before you save it.
    Where steps may be skipped, `skips=sgd.state_dict()["skips"]` keeps the attempts from before the checkpoint.
    `t=0` starts anew; without `t` a file that holds something is refused. Each line is flushed as it is written.

    `tensorboard` names a folder that is given the same numbers: `loss/core`, `lr`, `criteria/core/c_norm`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        t: int | None = None,
        skips: int = 0,
        tensorboard: str | os.PathLike[str] | None = None,
    ) -> None:
        self._file = self._board = None
        if _rank() != 0:
            return
        if tensorboard is not None:
            board.require()
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut(path, t, skips)
        self._file = path.open("ab")
        if tensorboard is not None:
            self._board = board.writer(tensorboard, t)

    def write(self, step: Step, **numbers: float | Tensor) -> None:
        """Append what a step did, and numbers of your own. The host waits for the loss: one read a step."""
        if self._file is None:
            return
        found = records.record(step, **numbers)
        self._file.write(records.line(found))
        self._file.flush()
        if self._board is not None and not step.skipped:
            for name, value in board.scalars(found):
                self._board.add_scalar(name, value, step.t)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut(path: Path, t: int | None, skips: int) -> None:
    """Leave the lines of the steps before t. They come first, so the file is made shorter: whole, or not at all."""
    if not path.exists() or path.stat().st_size == 0:
        return
    if t is None:
        raise FileExistsError(
            f"{path} holds something already: to go on from a checkpoint open it with t=sgd.t, to start anew with t=0"
        )
    size = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n") and line[: len(records.BEGIN)] == records.BEGIN[: len(line)]:
                break  # a kill left it
            found = records.parse(line, f"line {number} of {path}")
            is_earlier_attempt = found["t"] == t and "skipped" in found and skips > 0
            if found["t"] >= t and not is_earlier_attempt:
                break
            skips -= is_earlier_attempt
            size += len(line)
    os.truncate(path, size)


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
