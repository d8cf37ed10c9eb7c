"""The cost of going to another level and back, when nothing runs there."""

from __future__ import annotations

from torch import nn

import partialsgd as ps
from benchmarks.figures import Figure
from benchmarks.harness import Estimate, Track, ready

SUMMARY = "level switch alone"
SWITCHES = 1000


def measure(track: Track) -> list[Figure]:
    return [_switch(track, layers) for layers in (1, 60)]


def _switch(track: Track, layers: int) -> Figure:
    nested = ps.nest(nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers + 1))), ps.LowRank(1 / 4))

    def run() -> None:
        for _ in range(SWITCHES):
            with nested.at("core"):
                pass

    what = f"level switch alone, {layers} nested {'layer' if layers == 1 else 'layers'}"
    taken = track.race(what, {"switch": ready(run)}, repeat=5).estimate("switch")
    each = Estimate(*(seconds / SWITCHES * 1e6 for seconds in (taken.value, taken.low, taken.high)))
    return Figure(what, each, 20 + 1.0 * layers, "µs")
