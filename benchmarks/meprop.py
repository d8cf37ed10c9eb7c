"""meProp exists to make the backward pass cheaper: how much cheaper is it, and how much of the step is that?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import TypeAlias

from torch import Tensor

import partialsgd as ps
from benchmarks import baselines, ours
from benchmarks.baselines import Training
from benchmarks.figures import Figure, ratio
from benchmarks.harness import Run, Seconds, Track, ready, wait_for

SUMMARY = "meProp, MLP 784-1024-1024-1024-1024-10, k = 64: backward and whole step ÷ dense"
SIZES = (784, 1024, 1024, 1024, 1024, 10)
K = 64

Stepper: TypeAlias = Callable[[Callable[[], Tensor]], object]
"""Takes a step with the closure."""


def measure(track: Track) -> list[Figure]:
    return [*_batch(track, 256, {"backward": 0.30, "step": 0.60}), *_batch(track, 32, {"backward": None, "step": None})]


def _batch(track: Track, batch: int, limits: Mapping[str, float | None]) -> list[Figure]:
    training = baselines.layers(*SIZES, batch=batch)
    methods = {
        "unified": ps.methods.meprop(K),
        "unified, mask=False": ps.methods.meprop(K, mask=False),
    }
    steps: dict[str, Stepper] = {"dense": raw_loop(training)}
    steps |= {name: ours.with_method(training, method).step for name, method in methods.items()}
    contestants = {f"{name} step": ready(partial(step, training.closure)) for name, step in steps.items()}
    contestants |= {f"{name} backward": ready(backward(training, step)) for name, step in steps.items()}
    times = track.race(f"meProp, batch {batch}", contestants)

    def figure(name: str, part: str, limit: float | None = None) -> Figure:
        what = f"meProp {name}, {part} ÷ dense {part}, batch {batch}"
        return ratio(what, times, f"{name} {part}", f"dense {part}", limit)

    reported = [name for name in methods if name != "unified"]
    return [
        *(figure("unified", part, limit) for part, limit in limits.items()),
        *(figure(name, part) for name in reported for part in limits),
    ]


def raw_loop(training: Training) -> Stepper:
    def step(closure: Callable[[], Tensor]) -> None:
        closure()
        training.update()

    return step


def backward(training: Training, step: Stepper) -> Run:
    """A whole step of which only backward counts."""
    device = training.parameters[0].device

    def run() -> Seconds:
        spent = 0.0

        def closure() -> Tensor:
            nonlocal spent
            loss = training.forward()
            wait_for(device)
            start = perf_counter()
            loss.backward()
            wait_for(device)
            spent += perf_counter() - start
            return loss

        step(closure)
        return Seconds(spent)

    return run
