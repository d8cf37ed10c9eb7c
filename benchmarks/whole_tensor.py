"""A mask of whole tensors should cost what the part that moves costs, and nothing for the rest.

Timed on both sides is all that follows backward. Both have the gradient of the whole network before them, both let
all of it go; the baseline's optimizer knows only the quarter.
"""

from __future__ import annotations

import partialsgd as ps
from benchmarks import baselines, ours
from benchmarks.baselines import Training, after_backward
from benchmarks.figures import Figure, ratio
from benchmarks.harness import Track

SUMMARY = "update under a whole-tensor mask ÷ fused Adam on that part alone"
QUARTER = ("2", "10")  # two of eight equal layers (every other module is a ReLU)


def measure(track: Track) -> list[Figure]:
    training = eight_equal_layers()
    mask = ps.masks.only(training.model, QUARTER)
    quarter = baselines.only_these(training, [mask.parameters[name] for name, moves in mask.items() if moves])
    contestants = {
        "quarter alone": lambda: after_backward(quarter),
        "masked": ours.update(training, ours.constant(mask)),
        "unchecked": ours.update(training, ours.constant(mask), checked=False),
    }
    what = "update of 1/4 by a whole-tensor mask ÷ fused Adam on that 1/4"
    times = track.race(what, contestants, repeat=9)
    return [
        ratio(what, times, "masked", "quarter alone", 1.10),
        ratio("the same with nonfinite='ignore'", times, "unchecked", "quarter alone"),
    ]


def eight_equal_layers() -> Training:
    """5.0 M parameters: two layers hold exactly a quarter."""
    return baselines.mlp(batch=32, width=790, depth=8, classes=790)
