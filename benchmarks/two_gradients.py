"""Two gradients should cost two gradients: SAM and extragradient beside the plain step and another library's SAM."""

from __future__ import annotations

import partialsgd as ps
from benchmarks import baselines, ours
from benchmarks.figures import Figure, ratio
from benchmarks.harness import Track, ready

SUMMARY = "SAM and extragradient step ÷ raw loop, beside pytorch_optimizer's SAM"


def measure(track: Track) -> list[Figure]:
    training = baselines.mlp(batch=256)
    contestants = {
        "raw": ready(training.step),
        "sam": ours.step(training, ps.methods.sam(rho=0.05)),
        "extragradient": ours.step(training, ps.methods.extragradient(eta=0.01)),
        "pytorch_optimizer": ready(baselines.other_sam(training, rho=0.05)),
    }
    times = track.race("two gradients, batch 256", contestants, repeat=3)
    return [
        ratio("SAM step ÷ raw loop, batch 256", times, "sam", "raw", 2.08),
        ratio("extragradient step ÷ raw loop, batch 256", times, "extragradient", "raw"),
        ratio("pytorch_optimizer's SAM ÷ raw loop, batch 256", times, "pytorch_optimizer", "raw"),
        ratio("SAM ÷ pytorch_optimizer's SAM", times, "sam", "pytorch_optimizer"),
    ]
