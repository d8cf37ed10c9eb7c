"""A frozen half costs its forward pass only: no backward, no update, and nothing is kept for them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

import partialsgd as ps
from benchmarks import baselines, ours
from benchmarks.baselines import Training
from benchmarks.figures import Figure, ratio
from benchmarks.harness import Estimate, Track, ready
from benchmarks.live_bytes import LiveBytes

SUMMARY = "freezing half of a 12-layer MLP: step and activation memory ÷ the whole network's"
LAYERS = 12
LINEAR = tuple(str(2 * k) for k in range(LAYERS))  # every other module is a ReLU
HALVES = (LINEAR[: LAYERS // 2], LINEAR[LAYERS // 2 :])


def measure(track: Track) -> list[Figure]:
    training = baselines.mlp(batch=256, depth=LAYERS)
    method = ps.methods.freezing(start=0.0, stages=HALVES)  # the first half never moves
    contestants = {"raw": ready(training.step), "frozen": ours.step(training, method)}
    what = f"step with half of {LAYERS} layers frozen ÷ raw loop, batch {training.batch}"
    times = track.race(what, contestants)
    return [ratio(what, times, "frozen", "raw", 0.75), _activations(training, method)]


def _activations(training: Training, method: ps.Method) -> Figure:
    sgd = ours.with_method(training, method)
    sgd.step(training.closure)  # the first pass of a run is not cut: it looks whether the stages are in order
    whole = held_for_backward(training, lambda closure: closure())
    half = held_for_backward(training, sgd.step)
    training.optimizer.zero_grad()
    share = half / whole
    what = f"activation memory with half of {LAYERS} layers frozen ÷ raw loop's, batch {training.batch}"
    return Figure(what, Estimate(share, share, share), 0.65, medians={"raw": whole, "frozen": half})


def held_for_backward(training: Training, step: Callable[[Callable[[], Tensor]], object]) -> int:
    """The bytes that forward has made and backward will need; parameters and the batch existed before."""
    held: list[int] = []
    with LiveBytes() as counter:

        def closure() -> Tensor:
            loss = training.forward()
            held.append(counter.live)
            loss.backward()
            return loss

        step(closure)
    return max(held)
