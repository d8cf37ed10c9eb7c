"""The cost of `PartialSGD.step` when nothing is masked and nothing perturbed."""

from __future__ import annotations

import partialsgd as ps
from benchmarks import baselines, ours
from benchmarks.figures import Figure, ratio
from benchmarks.harness import Estimate, Track, ready

SUMMARY = "plain step ÷ raw loop, on large and on many small tensors"


def measure(track: Track) -> list[Figure]:
    return [*_large(track, 32), *_large(track, 256), _small(track, tensors=300)]


def _large(track: Track, batch: int) -> list[Figure]:
    training = baselines.mlp(batch=batch)
    contestants = {
        "raw": ready(training.step),
        "plain": ours.step(training, ps.methods.plain()),
        "unchecked": ours.step(training, ps.methods.plain(), checked=False),
    }
    what = f"plain step ÷ raw loop, MLP of 5 M, batch {batch}"
    times = track.race(what, contestants, repeat=5)
    return [
        ratio(what, times, "plain", "raw", 1.02),
        ratio(f"the same with nonfinite='ignore', batch {batch}", times, "unchecked", "raw"),
    ]


def _small(track: Track, tensors: int) -> Figure:
    training = baselines.many_small_tensors(tensors)
    contestants = {"raw": ready(training.step), "plain": ours.step(training, ps.methods.plain())}
    what = f"plain step − raw loop, {tensors} small tensors"
    times = track.race(what, contestants, repeat=15)
    extra = times.difference("plain", "raw")
    microseconds = Estimate(extra.value * 1e6, extra.low * 1e6, extra.high * 1e6)
    return Figure(what, microseconds, 100 + 1.0 * tensors, "µs", times.medians())
