"""The cost of each level: parameters, FLOPs in two conventions, and measured time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from partialsgd._util.snapshots import Modes
from partialsgd.nested.example_inputs import Call
from partialsgd.nested.inspect import flops

if TYPE_CHECKING:
    from partialsgd.nested.nested import Nested


@final
@dataclass(frozen=True)
class Row:
    """The cost of one level."""

    level: str
    parameters: int
    share: float
    """The parameters divided by those of the full level."""
    forward: int
    """FLOPs of a forward pass, as torch counts them: a multiply-add is two."""
    training: int
    """FLOPs of forward and backward."""
    multiply_adds: int
    """The paper's count: forward only, with BatchNorm."""
    latency: float
    """Median seconds of a forward pass in evaluation mode."""
    spread: tuple[float, float] = (0.0, 0.0)
    """The quartiles of those seconds."""


@final
@dataclass(frozen=True)
class Profile:
    """One row for each level, smallest first."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        head = ("level", "parameters", "share", "forward FLOPs", "training FLOPs", "multiply-adds", "latency")
        lines = [head, *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        columns = [f"{{:<{widths[0]}}}", *(f"{{:>{width}}}" for width in widths[1:])]
        return "\n".join("  ".join(columns).format(*line) for line in lines)


def profile(nested: Nested, call: Call, repeats: int) -> Profile:
    full, seconds = nested.size(nested.levels[-1]), _latencies(nested, call, repeats)
    return Profile(tuple(_measure(nested, level, call, full, seconds[level]) for level in nested.levels))


def _measure(nested: Nested, level: str, call: Call, full: int, seconds: Sequence[float]) -> Row:
    args, kwargs = call
    size = nested.size(level)
    with nested.at(level):
        counted = flops.count(nested.model, *args, **kwargs)
    costs = (counted.forward, counted.training, counted.multiply_adds)
    return Row(level, size, size / full, *costs, statistics.median(seconds), quartiles(seconds))


def quartiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile; of a single number twice that number."""
    if len(seconds) == 1:
        return seconds[0], seconds[0]
    first, _, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return first, third


def _latencies(nested: Nested, call: Call, repeats: int) -> dict[str, list[float]]:
    """Time all levels in turns, after a round to warm up, so that a load on the machine meets all of them alike."""
    seconds: dict[str, list[float]] = {level: [] for level in nested.levels}
    modes = Modes(nested)
    nested.eval()
    try:
        with torch.no_grad():  # inference tensors cannot be transposed on every backend
            for turn in range(repeats + 1):
                for level in nested.levels:
                    with nested.at(level):
                        taken = _seconds(nested, call)
                    if turn > 0 or repeats == 0:
                        seconds[level].append(taken)
    finally:
        modes.restore()
    return seconds


def _seconds(nested: Nested, call: Call) -> float:
    args, kwargs = call
    devices = {p.device for p in nested.parameters() if p.device.type != "cpu"}
    for device in devices:
        torch.get_device_module(device).synchronize(device)
    start = time.perf_counter()
    nested.model(*args, **kwargs)
    for device in devices:
        torch.get_device_module(device).synchronize(device)
    return time.perf_counter() - start


def _cells(row: Row) -> tuple[str, ...]:
    counts = (f"{n:.3g}" for n in (row.forward, row.training, row.multiply_adds))
    low, high = (f"{1e3 * seconds:.2f}" for seconds in row.spread)
    latency = f"{1e3 * row.latency:.2f} ms ({low} to {high})"
    return (row.level, f"{row.parameters:,}", f"{row.share:.1%}", *counts, latency)
