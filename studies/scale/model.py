"""Predicted seconds of a step: computation, and an all-reduce of its gradients over links of some rate and latency.

A ring all-reduce among n workers sends 2 (n − 1) / n of the bytes over each link in 2 (n − 1) rounds; a tree sends
twice the bytes in 2 log₂ n rounds. The faster of the two counts, as the libraries choose between them. A processor is
busy with each byte that is sent; workers that share the processors of one machine take turns in that, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor


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
    handling: float = 0.0
    """Seconds that a processor is busy with each byte."""


class Communication(NamedTuple):
    """The seconds of an all-reduce."""

    waiting: float
    """For the link: a processor may compute meanwhile."""
    handling: float
    """By a processor, which computes nothing meanwhile."""

    @property
    def seconds(self) -> float:
        return self.waiting + self.handling


class Sample(NamedTuple):
    """A measured all-reduce."""

    rate: float
    workers: int
    crowding: float
    """The workers that share a processor; 1 if each has one of its own."""
    bytes: float
    seconds: float


class MeasuredStep(NamedTuple):
    """A measured step, with what the prediction needs to know about it."""

    rate: float
    workers: int
    crowding: float
    size: float
    """Bytes of its gradients."""
    compute: float
    """Seconds of the same step without communication, on as many workers at the same time."""
    seconds: float


class Fit(NamedTuple):
    """The numbers that are fitted to measurements: a link without its rate, and the overlap."""

    efficiency: float
    latency: float
    handling: float
    overlap: float = 0.0

    def link(self, rate: float) -> Link:
        return Link(rate, self.latency, self.efficiency, self.handling)


def all_reduce(
    link: Link, workers: int, size: float, *, messages: int = 1, crowding: float = 1.0, tree: bool = True
) -> Communication:
    """Sum `size` bytes over the workers, in so many messages one after the other."""
    if workers == 1:
        return Communication(0.0, 0.0)

    def of(sent: float, rounds: int) -> Communication:
        waiting = 8 * sent / (link.rate * link.efficiency) + messages * rounds * link.latency
        return Communication(waiting, sent * link.handling * crowding)

    ring = of(2 * (workers - 1) / workers * size, 2 * (workers - 1))
    by_tree = of(2 * size, 2 * math.ceil(math.log2(workers)))
    return by_tree if tree and by_tree.seconds < ring.seconds else ring


def step_seconds(compute: float, communication: Communication, overlap: float) -> float:
    """Seconds of a step. The part `overlap` of the backward pass, which is 2/3 of the computation, hides as much of
    the waiting."""
    return compute + communication.seconds - min(overlap * 2 / 3 * compute, communication.waiting)


def bucket_bytes(size: float) -> int:
    """The size of the messages in which `data_parallel` sends so many bytes of gradients."""
    return min(25, max(1, int(size) >> 24)) << 20


def messages_of(size: float) -> int:
    return math.ceil(size / bucket_bytes(size))


def fit_link(samples: Sequence[Sample]) -> Fit:
    """Efficiency, latency and handling by least squares of relative errors over measured ring all-reduces.

    None of them is negative: one that would be is left out. Nor is the efficiency above 1, which short messages within
    the burst that a shaped link allows would give.
    """
    rows = []
    for rate, workers, crowding, size, seconds in samples:
        sent = 2 * (workers - 1) / workers * size
        rows.append([8 * sent / rate / seconds, 2 * (workers - 1) / seconds, sent * crowding / seconds])
    matrix, ones = torch.tensor(rows, dtype=torch.float64), torch.ones(len(rows), dtype=torch.float64)
    slope, latency, handling = _least_squares(matrix, ones)
    if 0 < slope < 1:
        slope, (latency, handling) = 1.0, _least_squares(matrix[:, 1:], ones - matrix[:, 0])
    return Fit(1 / slope if slope else math.inf, latency, handling)


def _least_squares(matrix: Tensor, target: Tensor) -> list[float]:
    """Return the factors of the columns, none of them negative; one that would be is 0."""
    used = list(range(matrix.shape[1]))
    while used:
        scale = matrix[:, used].norm(dim=0)  # the columns differ by orders of magnitude
        factors = torch.linalg.lstsq(matrix[:, used] / scale, target[:, None], driver="gelsd").solution[:, 0] / scale
        by_column = dict(zip(used, factors.tolist(), strict=True))
        negative = [column for column, value in by_column.items() if value < 0]
        if not negative:
            return [by_column.get(column, 0.0) for column in range(matrix.shape[1])]
        used.remove(negative[-1])
    return [0.0] * matrix.shape[1]


def fit_overlap(steps: Sequence[MeasuredStep], fit: Fit) -> Fit:
    """The fit with the overlap, of 0 to 1 in steps of 0.05, that has the smallest mean relative error."""
    fits = [fit._replace(overlap=i / 20) for i in range(21)]
    return min(fits, key=lambda each: mean_error(steps, each))


def predict(step: MeasuredStep, fit: Fit) -> float:
    communication = all_reduce(
        fit.link(step.rate),
        step.workers,
        step.size,
        messages=messages_of(step.size),
        crowding=step.crowding,
        tree=False,
    )
    return step_seconds(step.compute, communication, fit.overlap)


def mean_error(steps: Sequence[MeasuredStep], fit: Fit) -> float:
    errors = [abs(predict(step, fit) / step.seconds - 1) for step in steps]
    return sum(errors) / len(errors)
