"""Evaluation mode for a while, and the latency of a network."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from partialsgd._util.snapshots import Modes

_REPEATS = 20


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, and each of its modules back at the end."""
    modes = Modes(model)
    model.eval()
    try:
        yield
    finally:
        modes.restore()


def latency(plain: nn.Module, *args: Any) -> float:
    """The median time of 20 calls in evaluation mode, in seconds, after two warm-up calls."""
    with evaluation_mode(plain), torch.inference_mode():
        return statistics.median([_seconds(plain, args) for _ in range(_REPEATS + 2)][2:])


def _seconds(plain: nn.Module, args: tuple[Any, ...]) -> float:
    _synchronise()
    start = time.perf_counter()
    plain(*args)
    _synchronise()
    return time.perf_counter() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
