"""Predicted seconds of a step: computation, and an all-reduce of its gradients over links of some rate and latency.

A ring all-reduce among n workers sends 2 (n − 1) / n of the bytes over each link in 2 (n − 1) rounds; a tree sends
twice the bytes in 2 log₂ n rounds. The faster of the two counts, as the libraries choose between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch


@final
@dataclass(frozen=True)
class Link:
    """A worker's link."""

    rate: float
    """Bits a second."""
    latency: float
    """Seconds that a round of an all-reduce takes besides its bytes."""
    efficiency: float
    """The share of the rate that gradients get."""


class Sample(NamedTuple):
    """A measured all-reduce."""

    rate: float
    workers: int
    bytes: float
    seconds: float


def all_reduce_seconds(link: Link, workers: int, size: float, *, messages: int = 1, tree: bool = True) -> float:
    """Seconds to sum `size` bytes over the workers, in so many messages one after the other."""
    if workers == 1:
        return 0.0
    transfer = 8 * size / (link.rate * link.efficiency)
    ring = 2 * (workers - 1) / workers * transfer + messages * 2 * (workers - 1) * link.latency
    by_tree = 2 * transfer + messages * 2 * math.ceil(math.log2(workers)) * link.latency
    return min(ring, by_tree) if tree else ring


def step_seconds(compute: float, communication: float, overlap: float) -> float:
    """Seconds of a step. The part `overlap` of the backward pass, which is 2/3 of the computation, hides as much of
    the communication."""
    return compute + communication - min(overlap * 2 / 3 * compute, communication)


def fit_link(samples: Sequence[Sample]) -> tuple[float, float]:
    """Efficiency and latency by least squares of relative errors over measured ring all-reduces."""
    rows, ones = [], []
    for rate, workers, size, seconds in samples:
        ideal = 2 * (workers - 1) / workers * 8 * size / rate
        rows.append([ideal / seconds, 2 * (workers - 1) / seconds])
        ones.append([1.0])
    slope, latency = torch.linalg.lstsq(torch.tensor(rows, dtype=torch.float64), torch.tensor(ones).double()).solution
    return 1 / float(slope), max(0.0, float(latency))


class MeasuredStep(NamedTuple):
    """A measured step, with what the prediction needs to know about it."""

    rate: float
    workers: int
    size: float
    """Bytes of its gradients."""
    compute: float
    """Seconds of the same step without communication, on as many workers at the same time."""
    seconds: float


def fit_overlap(steps: Sequence[MeasuredStep], efficiency: float, latency: float) -> float:
    """The overlap, of 0 to 1 in steps of 0.05, with the smallest mean relative error."""
    return min((i / 20 for i in range(21)), key=lambda overlap: mean_error(steps, efficiency, latency, overlap))


def predict(step: MeasuredStep, efficiency: float, latency: float, overlap: float) -> float:
    link = Link(step.rate, latency, efficiency)
    return step_seconds(step.compute, all_reduce_seconds(link, step.workers, step.size, tree=False), overlap)


def mean_error(steps: Sequence[MeasuredStep], efficiency: float, latency: float, overlap: float) -> float:
    errors = [abs(predict(step, efficiency, latency, overlap) / step.seconds - 1) for step in steps]
    return sum(errors) / len(errors)
