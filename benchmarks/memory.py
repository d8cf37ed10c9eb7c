"""The peak memory of a step beyond that of the raw loop, in units of the parameters."""

from __future__ import annotations

import partialsgd as ps
from benchmarks import baselines, ours
from benchmarks.baselines import Training
from benchmarks.element_masks import random_mask
from benchmarks.figures import Figure
from benchmarks.harness import Estimate, Track
from benchmarks.live_bytes import peak_of
from benchmarks.whole_tensor import QUARTER, eight_equal_layers

SUMMARY = "memory at the peak of a step beyond the raw loop's: SAM, extragradient, whole-tensor mask"


def measure(track: Track) -> list[Figure]:
    """Counted, not timed: the track is not needed."""
    mlp = [baselines.mlp(batch=batch) for batch in (32, 256)]
    two_gradients = {"SAM": ps.methods.sam(), "extragradient": ps.methods.extragradient()}
    part = eight_equal_layers()
    core = ours.constant(ps.masks.only(part.model, QUARTER))
    return [
        *(_extra(name, training, method, 1.05) for name, method in two_gradients.items() for training in mlp),
        _extra("no mask", mlp[0], ps.methods.plain(), 0.0),
        _extra("whole-tensor mask of 1/4", part, core, 0.0),
        _extra("element mask of 50 %", mlp[0], ours.constant(random_mask(mlp[0], 50)), None),
    ]


def _extra(name: str, training: Training, method: ps.Method, limit: float | None) -> Figure:
    training.step()  # makes the optimizer's state, which both have
    raw, step = peak_of(training.step), peak_of(lambda: _some_steps(training, method))
    size = sum(p.numel() * p.element_size() for p in training.parameters)
    extra = (step - raw) / size
    what = f"memory of a step with {name} beyond the raw loop's ÷ parameters, batch {training.batch}"
    return Figure(what, Estimate(extra, extra, extra), limit, medians={"raw": raw, name: step, "parameters": size})


def _some_steps(training: Training, method: ps.Method) -> None:
    """From the making of it: what `PartialSGD` keeps from one step to the next counts too."""
    sgd = ours.with_method(training, method)
    for _ in range(3):
        sgd.step(training.closure)
