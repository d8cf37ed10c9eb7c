"""The same for convolutions: ResNet-18 at the shape of CIFAR, half as wide inside."""

from __future__ import annotations

import partialsgd as ps
from benchmarks import families
from benchmarks.figures import Figure, ratio, sum_ratio
from benchmarks.harness import Track, ready

SUMMARY = "nested ResNet-18 (CIFAR shape, width 1/2): full and core step ÷ ordinary networks of those sizes"
IMAGES = 32


def measure(track: Track) -> list[Figure]:
    batch = families.pictures(IMAGES)
    training = families.classification(ps.nest(families.large_resnet(), ps.Width(1 / 2)), batch)
    contestants = {
        "plain": families.classification(families.large_resnet(), batch).step,
        "small": families.classification(families.small_resnet(), batch).step,
        "full": families.at(training, "full"),
        "core": families.at(training, "core"),
        "pair": families.steps(training, ps.methods.alternating(), 2),
        "slimmable": families.steps(training, ps.methods.slimmable(), 2),
    }
    times = track.race(f"ResNet-18, {IMAGES} images", {name: ready(run) for name, run in contestants.items()}, repeat=1)
    said = f"{IMAGES} images"
    return [
        ratio(f"Width(1/2), full ÷ plain ResNet-18, {said}", times, "full", "plain"),
        ratio(f"Width(1/2), core ÷ plain of that size, {said}", times, "core", "small"),
        sum_ratio(f"alternating pair ÷ (plain + small), ResNet-18, {said}", times, "pair", ("plain", "small")),
        ratio(f"alternating ÷ slimmable, two batches, ResNet-18, {said}", times, "pair", "slimmable"),
    ]
