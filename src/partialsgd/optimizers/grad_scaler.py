"""Loss scaling (`torch.amp.GradScaler`): unscale, mask, clip, step, in that order, once a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.optim import Optimizer

from partialsgd.parameters import Parameters


@final
class Scaler:
    """An enabled GradScaler for all optimizers of a step together: one overflow skips them all."""

    def __init__(self, scaler: torch.amp.GradScaler, optimizers: Sequence[Optimizer]) -> None:
        self._scaler = scaler
        self._optimizers = optimizers
        self._recorded = False

    @property
    def scale(self) -> float:
        """The factor of the gradients in `.grad` before they are unscaled."""
        return float(self._scaler.get_scale())

    @torch.no_grad()
    def unscale(self, gradient: Mapping[str, Tensor]) -> None:
        """Unscale a gradient that was moved out of `.grad`; the GradScaler itself does not see it."""
        if gradient:
            torch._foreach_mul_(list(gradient.values()), 1.0 / self.scale)

    def unscale_in_place(self, gradient: Mapping[str, Tensor]) -> bool:
        """Unscale the gradients in `.grad`, which `gradient` names. Records an overflow, and returns True for it."""
        if self._recorded:  # a second gradient of the step: GradScaler itself unscales only once
            self.unscale(gradient)
            if not all(bool(torch.isfinite(g).all()) for g in gradient.values()):
                for flag in self._flags():
                    flag.fill_(1.0)
        else:
            self._recorded = True
            for optimizer in self._optimizers:
                self._scaler.unscale_(optimizer)
        return any(bool(flag.item()) for flag in self._flags())

    def update(self) -> None:
        """Back off after an overflow, grow after enough steps without one."""
        recorded, self._recorded = self._recorded, False
        if recorded:
            self._scaler.update()

    def forget(self) -> None:
        """The step was dropped: an overflow in it must not decide about the next one."""
        if self._recorded:
            for optimizer in self._optimizers:
                self._scaler._per_optimizer_states.pop(id(optimizer), None)
        self._recorded = False

    def _flags(self) -> list[Tensor]:
        # GradScaler has no public access to its overflow flags before an optimizer steps.
        return [f for o in self._optimizers for f in self._scaler._found_inf_per_device(o).values()]


def scaler_of(
    scaler: torch.amp.GradScaler | None, optimizers: Sequence[Optimizer], parameters: Parameters
) -> Scaler | None:
    """Return the scaler of a step; None if loss scaling is off."""
    if scaler is None or not scaler.is_enabled():
        return None
    if parameters.is_sharded:
        raise NotImplementedError(
            "a gradient scaler looks for overflow in this rank's part of the gradients only, so ranks would skip "
            "different steps of a sharded model; use bf16, which needs no scaler"
        )
    return Scaler(scaler, optimizers)
