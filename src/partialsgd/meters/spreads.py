"""ξ: how far the gradients of single batches lie from their mean, seen through masks.

Assumption 2 asks that E‖p ⊙ ξ‖² ≤ M ‖p ⊙ G‖² + σ² for all masks p in use; a `Pair` holds both sides' norms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from partialsgd.masks import Mask
from partialsgd.meters.objectives import Objective


class Pair(NamedTuple):
    """One (x, p) of Assumption 2, where it asks that noise ≤ M · signal + σ²."""

    signal: float
    """‖p ⊙ G‖². Unbiased, so it may be negative where the noise is far larger."""
    noise: float
    """E‖p ⊙ ξ‖², of the gradient of one batch. Unbiased."""


@final
@dataclass(frozen=True)
class Spread:
    """Of the gradients g_1 … g_n of independent batches at one x, seen through one mask p; ḡ is their mean."""

    mean: float
    """‖p ⊙ ḡ‖²"""
    deviations: tuple[float, ...]
    """‖p ⊙ (g_k − ḡ)‖²"""
    along: tuple[float, ...]
    """⟨p ⊙ (g_k − ḡ), p ⊙ ḡ⟩"""

    @property
    def pair(self) -> Pair:
        """ḡ holds a share 1/n of the noise, which is taken out of its norm."""
        n, squares = len(self.deviations), sum(self.deviations)
        return Pair(self.mean - squares / (n * (n - 1)), squares / (n - 1))

    def without(self, k: int) -> Pair:
        """The pair if batch k had not been drawn: its mean is ḡ − (g_k − ḡ) / (n − 1)."""
        m, gone = len(self.deviations) - 1, self.deviations[k]
        squares = max(0.0, sum(self.deviations) - gone * (m + 1) / m)  # rounding alone makes it negative
        mean = self.mean - 2 * self.along[k] / m + gone / m**2
        return Pair(mean - squares / (m * (m - 1)), squares / (m - 1))


@final
@dataclass(frozen=True)
class Point:
    """What was measured at one x: losses of n batches, and for each mask how their gradients differ."""

    losses: tuple[float, ...]
    spreads: Mapping[str, Spread]

    def __len__(self) -> int:
        return len(self.losses)

    def pairs(self, without: int | None = None) -> dict[str, Pair]:
        """For each mask, of all batches or of all but one."""
        return {mask: s.pair if without is None else s.without(without) for mask, s in self.spreads.items()}


def point(objective: Objective, masks: Mapping[str, Mask]) -> Point:
    """Every gradient is taken twice, for the mean and for what is left of it, so that only two are in memory."""
    n = len(objective)
    if n < 2:
        raise ValueError("one batch tells nothing about the noise of batches; give at least 2, better 8 or more")
    losses, mean = _means(objective)
    deviations: list[list[float]] = []
    along: list[list[float]] = []
    for k in range(n):
        gradient = objective.gradient(k)[1]
        apart = {name: gradient[name] - mean[name] for name in mean}
        deviations.append(_inner(masks.values(), apart, apart))
        along.append(_inner(masks.values(), apart, mean))
    squares = _inner(masks.values(), mean, mean)
    spreads = map(Spread, squares, zip(*deviations, strict=True), zip(*along, strict=True))
    return Point(losses, dict(zip(masks, spreads, strict=True)))


def _means(objective: Objective) -> tuple[tuple[float, ...], dict[str, Tensor]]:
    """The losses, and ḡ."""
    losses, mean = [], {name: torch.zeros_like(p, requires_grad=False) for name, p in objective.parameters.items()}
    for k in range(len(objective)):
        loss, gradient = objective.gradient(k)
        losses.append(loss)
        for name, total in mean.items():  # by differences: the mean of equal gradients is then exact
            total.add_(gradient[name] - total, alpha=1 / (k + 1))
    return tuple(losses), mean


def _inner(masks: Collection[Mask], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[float]:
    """⟨p ⊙ a, p ⊙ b⟩ for each mask; a tensor that moves as a whole is added up once for all of them."""
    totals = [0.0] * len(masks)
    for name in a:
        product = a[name].double() * b[name].double()
        whole = float(product.sum())
        for k, mask in enumerate(masks):
            entry = mask[name]
            totals[k] += float(product.masked_fill(~entry, 0).sum()) if isinstance(entry, Tensor) else whole * entry
    return totals
