"""The cost of holding single coordinates to the bit, under an optimizer that knows nothing of masks."""

from __future__ import annotations

import torch

import partialsgd as ps
from benchmarks import baselines, ours
from benchmarks.baselines import Training, after_backward
from benchmarks.figures import Figure, ratio
from benchmarks.harness import Contestant, Times, Track, estimate, ready

SUMMARY = "element masks: the update alone and in a training step; dropout"
DENSITIES = (1, 10, 50, 90)


def measure(track: Track) -> list[Figure]:
    training = baselines.mlp(batch=256)
    methods = {f"{share} %": ours.constant(random_mask(training, share)) for share in DENSITIES}
    updates: dict[str, Contestant] = {"dense": lambda: after_backward(training)}
    updates |= {name: ours.update(training, method) for name, method in methods.items()}
    steps = {"raw": ready(training.step), "dropout": ours.step(training, ps.methods.dropout(keep=0.9))}
    steps |= {name: ours.step(training, method) for name, method in methods.items()}
    alone = track.race("update under element masks", updates, repeat=3)
    inside = track.race("training step under element masks, batch 256", steps, repeat=3)
    return [
        *(ratio(f"update, element mask of {name} ÷ dense fused update", alone, name, "dense", 6) for name in methods),
        *(_extra(inside, name) for name in methods),
        ratio("dropout(keep=0.9) step ÷ raw loop, batch 256", inside, "dropout", "raw", 1.6),
    ]


def _extra(times: Times, name: str) -> Figure:
    """Taken from whole steps: what a mask costs before backward counts too."""
    what = f"what an element mask of {name} adds ÷ raw training step, batch 256"
    extra = estimate([(masked - raw) / raw for masked, raw in times.of(name, "raw")])
    return Figure(what, extra, 0.25, medians=times.medians(name, "raw"))


def random_mask(training: Training, percent: int) -> ps.Mask:
    draw = torch.Generator().manual_seed(percent)
    named = training.model.named_parameters()
    entries = {n: torch.rand(p.shape, generator=draw, device="cpu") < percent / 100 for n, p in named}
    return ps.masks.from_tensors(training.model, entries)
