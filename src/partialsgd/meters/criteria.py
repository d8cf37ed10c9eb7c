"""c_norm, c_sim, c_align, α, q: Criteria 1 to 3 and the theorem's quantities, from the two gradients of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from torch import Tensor

from partialsgd.masks import Entry, Mask
from partialsgd.vectors import Vector


@final
@dataclass(frozen=True)
class Criteria:
    """G is the gradient at x, G̃ the one at x̃; a criterion is 1 where a step is one of plain training."""

    whole: float
    """‖G‖"""
    masked: float
    """‖p ⊙ G‖"""
    shared: float
    """‖p ⊙ G‖ over the coordinates that both passes used"""
    perturbed: float
    """‖p ⊙ G̃‖, over the same"""
    inner: float
    """⟨p ⊙ G, p ⊙ G̃⟩"""
    left_out: int = 0
    """How many coordinates inside the mask one of the passes did not use."""

    @property
    def c_norm(self) -> float:
        """Criterion 1: how much of the gradient the mask leaves."""
        return _ratio(self.whole, self.masked)

    @property
    def c_sim(self) -> float:
        """Criterion 2: how much shorter the perturbation makes it."""
        return _ratio(self.shared, self.perturbed)

    @property
    def c_align(self) -> float:
        """Criterion 3: one over the cosine of the two; negative where they point apart."""
        return _ratio(self.shared * self.perturbed, self.inner)

    @property
    def alpha(self) -> float:
        """The step size that the theorem allows, relative to plain training; clipped to [0, 1] (erratum E10)."""
        alpha = _ratio(self.inner, self.perturbed**2)
        return alpha if math.isnan(alpha) else min(1.0, max(0.0, alpha))

    @property
    def q(self) -> float:
        """c_norm · ‖p ⊙ G‖ / (α ‖p ⊙ G̃‖), which is ‖G‖ / (α ‖p ⊙ G̃‖) where both passes use the same."""
        return self.c_norm * _ratio(self.shared, self.alpha * self.perturbed)


def criteria(mask: Mask, at_x: Vector, at_perturbed: Vector) -> Criteria:
    """From gradients before the mask."""
    used = [name for name in mask if mask[name] is not False and (name in at_x or name in at_perturbed)]
    both = [name for name in used if name in at_x and name in at_perturbed]
    squares = {name: _inner(mask[name], at_x[name], at_x[name]) for name in used if name in at_x}
    return Criteria(
        whole=at_x.norm(),
        masked=math.sqrt(sum(squares.values())),
        shared=math.sqrt(sum(squares[name] for name in both)),
        perturbed=math.sqrt(sum(_inner(mask[name], at_perturbed[name], at_perturbed[name]) for name in both)),
        inner=sum(_inner(mask[name], at_x[name], at_perturbed[name]) for name in both),
        left_out=sum(_count(mask, name) for name in used if name not in both),
    )


def _count(mask: Mask, name: str) -> int:
    entry = mask[name]
    return int(entry.count_nonzero()) if isinstance(entry, Tensor) else mask.parameters[name].numel()


def _inner(entry: Entry, a: Tensor, b: Tensor) -> float:
    masked = a * entry if isinstance(entry, Tensor) else a
    return float((masked.double() * b.double()).sum())


def _ratio(a: float, b: float) -> float:
    """a / b, where a zero below gives an infinity and two zeros nothing."""
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
    return a / b
