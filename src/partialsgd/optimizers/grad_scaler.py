"""Loss scaling (`torch.amp.GradScaler`): unscale, mask, clip, step, in that order, once a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.optim import Optimizer


def require_handed_over(optimizers: Sequence[Optimizer], scaler: torch.amp.GradScaler | None) -> None:
    """accelerate hides a scaler in its optimizers; gradients would be masked and clipped while still scaled."""
    if scaler is None and any(getattr(optimizer, "scaler", None) is not None for optimizer in optimizers):
        raise ValueError("the optimizer was prepared with a gradient scaler: pass scaler=accelerator.scaler too")


@final
class Scaler:
    """A GradScaler for all optimizers of a step together: one overflow skips them all."""

    def __init__(self, scaler: torch.amp.GradScaler | None, optimizers: Sequence[Optimizer]) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._optimizers = optimizers
        self._recorded = False

    @property
    def enabled(self) -> bool:
        return self._scaler is not None

    @torch.no_grad()
    def unscale(self, gradient: Mapping[str, Tensor]) -> None:
        """A gradient that was moved out of `.grad`; the scaler itself does not see it."""
        if self._scaler is not None and gradient:
            torch._foreach_mul_(list(gradient.values()), 1.0 / self._scaler.get_scale())

    def unscale_in_place(self, gradient: Mapping[str, Tensor]) -> bool:
        """What lies in `.grad`, which `gradient` names; True if an overflow was found. The scaler notes it."""
        if self._scaler is None:
            return False
        if self._recorded:  # a second micro-batch: GradScaler itself unscales only once a step
            self.unscale(gradient)
            if not all(bool(torch.isfinite(g).all()) for g in gradient.values()):
                self._record_overflow()
        else:
            self._recorded = True
            for optimizer in self._optimizers:
                self._scaler.unscale_(optimizer)
        return self._overflowed()

    def update(self) -> None:
        """Back off after an overflow, grow after enough steps without one."""
        if self._scaler is not None and self._recorded:
            self._scaler.update()
        self._recorded = False

    def forget(self) -> None:
        """The step was dropped: what was found in it must not decide the next one."""
        if self._scaler is not None and self._recorded:
            for optimizer in self._optimizers:
                self._scaler._per_optimizer_states.pop(id(optimizer), None)
        self._recorded = False

    def _overflowed(self) -> bool:
        return any(bool(found.item()) for found in self._found())

    def _record_overflow(self) -> None:
        for found in self._found():
            found.fill_(1.0)

    def _found(self) -> list[Tensor]:
        # GradScaler keeps what it found to itself until it has let an optimizer step.
        assert self._scaler is not None
        return [f for o in self._optimizers for f in self._scaler._found_inf_per_device(o).values()]
