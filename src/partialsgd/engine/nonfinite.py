"""NaN and infinity in a step. The gradients are read once at most, and not at all if their norm is known."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from partialsgd import vectors
from partialsgd._util.bitwise_select import rows_of
from partialsgd.engine.step import StepInProgress
from partialsgd.masks import Mask
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector

Nonfinite = Literal["raise", "skip", "ignore"]
_SKIPS_ALLOWED = 20
_SMALL = 1 << 15


@final
class NonfinitePolicy:
    """Decides whether a step with a NaN or an infinity raises, is skipped, or is applied."""

    def __init__(self, nonfinite: Nonfinite, *, losses_are_local: bool) -> None:
        if nonfinite not in get_args(Nonfinite):
            raise ValueError(f"nonfinite must be one of {', '.join(get_args(Nonfinite))}; got {nonfinite!r}")
        self.skips = 0
        """The number of steps skipped in a row."""
        self._nonfinite = nonfinite
        # Ranks must skip together: they share the gradient, not the loss.
        self._reads_loss = nonfinite == "raise" or (nonfinite == "skip" and not losses_are_local)

    def is_overflow(self, gradient: Vector) -> bool:
        """True if the gradient at x_t is not finite, so that the one at x̃_t need not be taken."""
        if self._nonfinite == "ignore" or math.isfinite(gradient.norm()):
            return False
        return first_nonfinite(gradient) is not None

    def check(
        self, step: StepInProgress, parameters: Parameters, norm: Tensor | None, *, gradient_is_checked: bool
    ) -> bool:
        """Return True if the step must be skipped, or raise. `norm` is that of the gradient, if it is known anyway."""
        culprit = self._culprit(step, parameters, norm, gradient_is_checked)
        if culprit is None:
            self.skips = 0
            return False
        if self._nonfinite == "raise":
            raise FloatingPointError(_message(culprit, step))
        self.skips += 1
        if self.skips >= _SKIPS_ALLOWED:
            raise FloatingPointError(f"{self.skips} steps in a row were skipped. The last: " + _message(culprit, step))
        return True

    def _culprit(
        self, step: StepInProgress, parameters: Parameters, norm: Tensor | None, gradient_is_checked: bool
    ) -> str | None:
        if step.overflow:
            return f"the gradient of {first_nonfinite(vectors.current(parameters))!r}"
        if self._nonfinite == "ignore":
            return None
        if self._reads_loss:
            for level, loss in step.passes:
                if loss is not None and not math.isfinite(loss):
                    return "the loss" if level in (None, step.level) else f"the loss of level {level!r}"
        if gradient_is_checked or (math.isfinite(norm) if norm is not None else are_finite(parameters, step.mask)):
            return None
        # None: the gradient is not finite outside the mask only, or its norm is too large for its type.
        name = first_nonfinite(vectors.current(parameters), step.mask)
        return None if name is None else f"the gradient of {name!r}"


def require_gradients(step: StepInProgress, parameters: Parameters) -> list[Tensor]:
    """The gradients in `.grad`; raise if they were zeroed after the last pass, or are sparse."""
    gradients = [p.grad for p in parameters.values() if p.grad is not None]
    if not gradients and step.has_gradient:
        raise RuntimeError("update() found no gradient: something called zero_grad() after the last pass")
    # A layer's gradients are always sparse or never, so each set of layers is checked once.
    if ("strided", len(gradients)) not in parameters.cache:
        parameters.cache["strided", len(gradients)] = len(vectors.current(parameters))
    return gradients


def are_finite(parameters: Parameters, mask: Mask | None = None) -> bool:
    """True if no gradient in `.grad` holds a NaN or an infinity. With a mask of rows, only the rows inside count.

    A sum is finite only if all its terms are, so each gradient is read once; a finite gradient whose sum overflows
    is read again.
    """
    rows = {} if mask is None else {name: r for name, m in mask.partial.items() if (r := rows_of(m)) is not None}
    gradients = [p.grad if p.grad is None or name not in rows else p.grad[rows[name]] for name, p in parameters.items()]
    if "sums" not in parameters.cache:
        parameters.cache["sums"] = _by_size(parameters.values())
    large, groups = parameters.cache["sums"]
    sums = [g.sum() for k in large if (g := gradients[k]) is not None]
    for group in groups:
        if alike := [g for k in group if (g := gradients[k]) is not None]:
            sums.append(torch.cat(alike).sum() if len(alike) > 1 else alike[0].sum())
    if all(math.isfinite(s) for s in _to_floats(sums)):
        return True
    return first_nonfinite(vectors.current(parameters)) is None


def first_nonfinite(gradients: Mapping[str, Tensor], mask: Mask | None = None) -> str | None:
    """The name of the first gradient with a NaN or an infinity; with a mask, only coordinates inside count."""
    partial = {} if mask is None else mask.partial
    for name, gradient in gradients.items():
        if not bool(torch.isfinite(gradient[partial[name]] if name in partial else gradient).all()):
            return name
    return None


def _by_size(parameters: Collection[nn.Parameter]) -> tuple[list[int], list[list[int]]]:
    """Large parameters, and small ones in groups that are summed together without waking a second thread."""
    large: list[int] = []
    groups: dict[tuple[object, ...], list[list[int]]] = {}
    sizes = [p.numel() for p in parameters]
    for k, p in enumerate(parameters):
        if sizes[k] >= _SMALL or p.ndim == 0:
            large.append(k)
            continue
        alike = groups.setdefault((p.dtype, p.device, p.shape[1:]), [[]])
        if sum(sizes[other] for other in alike[-1]) + sizes[k] >= _SMALL:
            alike.append([])
        alike[-1].append(k)
    return large, [group for alike in groups.values() for group in alike]


def _to_floats(sums: Sequence[Tensor]) -> list[float]:
    if len(sums) < 2 or sums[0].device.type == "cpu":
        return [float(s.abs()) for s in sums]
    return [float(x) for x in torch.stack([s.abs().to(torch.float64) for s in sums]).tolist()]


def _message(culprit: str, step: StepInProgress) -> str:
    level = f", level {step.level!r}" if step.level is not None else ""
    return (
        f"{culprit} is NaN or infinite at step t = {step.context.t}{level}; no parameter and no optimizer "
        "state was changed. Check the batch and the learning rate, or pass nonfinite='skip' to leave such steps out"
    )
