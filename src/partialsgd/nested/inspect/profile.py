"""What each level costs: parameters, work in two conventions, and measured time."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from partialsgd._util.snapshots import Modes
from partialsgd.nested.inspect import flops
from partialsgd.nested.planning.example_inputs import Call

if TYPE_CHECKING:
    from partialsgd.nested.nested import Nested


@final
@dataclass(frozen=True)
class Row:
    """One level."""

    level: str
    parameters: int
    share: float
    """Of the whole network's parameters."""
    forward: int
    """FLOPs, as torch counts them: a multiply-add is two."""
    training: int
    """FLOPs of forward and backward."""
    multiply_adds: int
    """The paper's convention: BatchNorm counted, forward only."""
    latency: float
    """Median seconds of a forward pass in evaluation."""


@final
@dataclass(frozen=True)
class Profile:
    """One row a level, smallest first."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        head = ("level", "parameters", "share", "forward FLOPs", "training FLOPs", "multiply-adds", "latency")
        cells = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in cells
        )


def profile(nested: Nested, call: Call, repeats: int) -> Profile:
    whole = nested.size(nested.levels[-1])
    return Profile(tuple(_row(nested, level, call, repeats, whole) for level in nested.levels))


def _row(nested: Nested, level: str, call: Call, repeats: int, whole: int) -> Row:
    args, kwargs = call
    parameters = nested.size(level)
    with nested.at(level):
        counted = flops.count(nested.model, *args, **kwargs)
        latency = _latency(nested, call, repeats)
    return Row(level, parameters, parameters / whole, counted.forward, counted.training, counted.multiply_adds, latency)


def _latency(nested: Nested, call: Call, repeats: int) -> float:
    modes = Modes(nested)
    nested.eval()
    try:
        with torch.inference_mode():
            return statistics.median(_seconds(nested, call) for _ in range(repeats + 1))
    finally:
        modes.restore()


def _seconds(nested: Nested, call: Call) -> float:
    args, kwargs = call
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    nested.model(*args, **kwargs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _cells(row: Row) -> tuple[str, ...]:
    counts = (f"{n:.3g}" for n in (row.forward, row.training, row.multiply_adds))
    return (row.level, f"{row.parameters:,}", f"{row.share:.1%}", *counts, f"{1e3 * row.latency:.2f} ms")
