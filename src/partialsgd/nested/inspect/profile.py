"""The cost of each level: parameters, FLOPs in two conventions, and measured time."""

from __future__ import annotations

import statistics
import time
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
    full = nested.size(nested.levels[-1])
    return Profile(tuple(_measure(nested, level, call, repeats, full) for level in nested.levels))


def _measure(nested: Nested, level: str, call: Call, repeats: int, full: int) -> Row:
    args, kwargs = call
    size, modes = nested.size(level), Modes(nested)
    with nested.at(level):
        counted = flops.count(nested.model, *args, **kwargs)
        nested.eval()
        try:
            with torch.inference_mode():
                latency = statistics.median(_seconds(nested, call) for _ in range(repeats + 1))
        finally:
            modes.restore()
    return Row(level, size, size / full, counted.forward, counted.training, counted.multiply_adds, latency)


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
    return (row.level, f"{row.parameters:,}", f"{row.share:.1%}", *counts, f"{1e3 * row.latency:.2f} ms")
