"""NaN and infinity: what they stop. One pass over the gradients at most, none when a norm is taken anyway."""

from __future__ import annotations

import math
from typing import Literal, final, get_args

import torch
from torch import Tensor

from partialsgd import vectors
from partialsgd.engine.step import StepInProgress
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector

Nonfinite = Literal["raise", "skip", "ignore"]
_SKIPS_ALLOWED = 20


@final
class NonfinitePolicy:
    """Clips the gradient and looks for what is not finite in it and in the loss."""

    def __init__(self, nonfinite: Nonfinite, clip_norm: float | None, *, losses_are_local: bool) -> None:
        if nonfinite not in get_args(Nonfinite):
            raise ValueError(f"nonfinite must be one of {', '.join(get_args(Nonfinite))}; got {nonfinite!r}")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm must be positive, got {clip_norm}; for no clipping use None")
        self.skips = 0
        self.clips = clip_norm is not None
        self._nonfinite = nonfinite
        self._clip_norm = clip_norm
        # Ranks must skip together: they share the gradient, not the loss.
        self._looks_at_loss = nonfinite == "raise" or (nonfinite == "skip" and not losses_are_local)

    def stops_early(self, gradient: Vector) -> bool:
        """Whether the gradient at x_t is not finite, so that the one at x̃_t need not be taken."""
        if self._nonfinite == "ignore" or math.isfinite(gradient.norm()):
            return False
        return vectors.first_nonfinite(gradient) is not None

    def stops(self, step: StepInProgress, parameters: Parameters, *, checked: bool) -> bool:
        """Whether the step must not be applied; if it may, its gradient is clipped."""
        there = [p.grad for p in parameters.values() if p.grad is not None]
        # A gradient is sparse by the make of its layer, so each set of layers is looked at once.
        parameters.once(("strided", len(there)), lambda: len(vectors.current(parameters)))
        if not there and step.has_gradient:
            raise RuntimeError("update() found no gradient: something called zero_grad() after the last pass")
        norm = torch.nn.utils.get_total_norm(there) if self._clip_norm is not None else None
        culprit = self._culprit(step, parameters, norm, checked)
        if culprit is None:
            if norm is not None and self._clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(parameters.values(), self._clip_norm, norm)
            self.skips = 0
            return False
        if self._nonfinite == "raise":
            raise FloatingPointError(_message(culprit, step))
        self.skips += 1
        if self.skips >= _SKIPS_ALLOWED:
            raise FloatingPointError(f"{self.skips} steps in a row were skipped. The last: " + _message(culprit, step))
        return True

    def _culprit(self, step: StepInProgress, parameters: Parameters, norm: Tensor | None, checked: bool) -> str | None:
        if step.overflow:
            return f"the gradient of {vectors.first_nonfinite(vectors.current(parameters))!r}"
        if self._nonfinite == "ignore":
            return None
        if self._looks_at_loss:
            for level, loss in step.all_losses:
                if not math.isfinite(loss):
                    return "the loss" if level in (None, step.level) else f"the loss of level {level!r}"
        if checked or (math.isfinite(norm) if norm is not None else vectors.are_finite(parameters, step.mask)):
            return None
        if not step.is_masked:  # it may have been outside
            vectors.mask_(parameters, step.mask)
            if vectors.are_finite(parameters):
                return None
        # None: finite numbers whose norm is too large for their type
        name = vectors.first_nonfinite(vectors.current(parameters))
        return None if name is None else f"the gradient of {name!r}"


def _message(culprit: str, step: StepInProgress) -> str:
    level = f", level {step.level!r}" if step.level is not None else ""
    return (
        f"{culprit} is NaN or infinite at step t = {step.context.t}{level}; no parameter and no optimizer "
        "state was changed. Look at the batch and the learning rate, or pass nonfinite='skip' to leave such steps out"
    )
