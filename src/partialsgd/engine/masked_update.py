"""The masked step of any torch optimizer (x_{t+1}). Nothing outside the mask moves, bit for bit.

A tensor wholly outside gets `grad = None`, which every torch optimizer skips. Of a tensor partly outside,
the coordinates outside are saved before `optimizer.step()` and put back after it: the parameter, and
under `outside="hold"` and `"reset"` every entry of the optimizer's state that has one number for each coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from partialsgd import masks
from partialsgd.masks import Entry, Mask
from partialsgd.optimizers import capabilities, param_groups
from partialsgd.optimizers.fused_adam import Piecewise, is_piecewise
from partialsgd.optimizers.param_groups import GroupOf, ParamGroups
from partialsgd.optimizers.third_party import Verification
from partialsgd.parameters import Parameters

Outside = Literal["hold", "decay", "reset"]


@final
class MaskedUpdate:
    """Line 6 of Algorithm 1, for one optimizer or several that share the parameters out among them."""

    def __init__(self, parameters: Parameters, optimizers: Sequence[Optimizer], outside: Outside) -> None:
        if outside not in get_args(Outside):
            raise ValueError(f"outside must be one of {', '.join(get_args(Outside))}; got {outside!r}")
        self.optimizers = [param_groups.unwrapped(optimizer) for optimizer in optimizers]
        self.outside: Outside = outside
        self.groups = ParamGroups(parameters, self.optimizers)
        self._wrapped = optimizers
        self._parameters = parameters
        self._previous = masks.everything(parameters)
        self._reasons: dict[tuple[GroupOf, capabilities.Probe], str | None] = {}
        self._verification = Verification(parameters, self.groups, self.optimizers)

    @property
    def lr(self) -> float:
        """The learning rate of the first group."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    @property
    def sgd_step_size(self) -> float | None:
        """The largest γ (1 − dampening) / (1 − momentum), how far a gradient moves x in the end; None unless SGD."""
        if not all(type(optimizer) is torch.optim.SGD for optimizer in self.optimizers):
            return None
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return float(max(float(g["lr"]) * (1 - g["dampening"]) / max(1 - g["momentum"], 1e-12) for g in groups))

    def check(self, mask: Mask, scale: float) -> None:
        """Raise before anything has moved if an optimizer cannot apply this mask, or this α, exactly."""
        if not (math.isfinite(scale) and scale >= 0):
            raise ValueError(f"the rule 'scale' returned {scale}; α must be finite and not negative")
        if mask.is_everything and scale == 1:
            return
        for name, entry in mask.entries.items():
            if isinstance(entry, Tensor):
                self._refuse(name, capabilities.why_not_coordinate_wise, "take an element mask", "mask whole tensors")
                if self.outside == "reset":
                    self._refuse(name, capabilities.why_not_forgetful, "reset part of a tensor", "use outside='hold'")
            elif entry is False and self.outside == "reset":
                self._refuse(name, capabilities.why_not_restartable, "reset a tensor", "use outside='hold'")
            if scale != 1 and entry is not False:
                self._refuse(name, capabilities.why_not_scalable, f"step by α = {scale}", "leave `scale` out")

    def check_forget(self, forgotten: Mask) -> None:
        """Raise before anything has moved if an optimizer's state cannot be reset there."""
        if self.outside == "decay" and any(entry is not False for entry in forgotten.values()):
            raise ValueError("outside='decay' updates state that the method resets; use outside='hold'")
        for name, entry in forgotten.items():
            if isinstance(entry, Tensor):
                self._refuse(name, capabilities.why_not_forgetful, "reset part of a tensor", "forget whole tensors")
            elif entry:
                self._refuse(name, capabilities.why_not_restartable, "reset a tensor", "forget nothing")

    @torch.no_grad()
    def apply(self, mask: Mask, scale: float, forgotten: Mask | None = None) -> None:
        """x ← x − γ p ⊙ g, with γ = α γ_base and α = `scale`. A tensor wholly outside has `grad = None`;
        elements outside may still have a gradient, and are held here."""
        if forgotten is not None:
            self._forget(forgotten)
        if self.outside == "reset":
            self._forget((mask & ~self._previous).simplified())
            self._previous = mask
        with ExitStack() as held:
            if self._verification.unverified and not mask.is_everything:
                held.enter_context(self._verification.verify(mask, with_state=self.outside != "decay"))
            if self.outside == "decay":
                held.enter_context(self._decayed(mask))
            elif mask.partial:
                held.enter_context(self._held(mask))
            if scale != 1:
                held.enter_context(scaled(self.optimizers, scale))
            for optimizer, wrapped in zip(self.optimizers, self._wrapped, strict=True):
                _step_newcomers(optimizer)
                param_groups.step(wrapped)
        if mask.partial:
            mask.release()

    def state_dict(self) -> dict[str, Entry]:
        """The mask of the last step where it is not True, for `outside="reset"`."""
        return {name: entry for name, entry in self._previous.items() if entry is not True}

    def load_state_dict(self, state: Mapping[str, Entry]) -> None:
        self._previous = masks.from_tensors(self._parameters, state, rest=True)

    @contextmanager
    def _held(self, mask: Mask) -> Iterator[None]:
        pieces: dict[Tensor, Tensor] = {}
        saved: dict[str, dict[str, Tensor]] = {}
        for name, entry in mask.partial.items():
            parameter = self._parameters[name]
            if parameter.grad is None or name not in self.groups:
                continue
            optimizer, number = self.groups[name]
            options = optimizer.param_groups[number]
            if options.get("fused") and is_piecewise(optimizer, options, parameter):
                pieces[parameter] = entry
            else:
                tensors = self._coordinates(name)
                saved[name] = dict(zip(tensors, self._parameters.scratch.borrow_all(tensors.values()), strict=True))
                mask.selection(name).save_outside(list(tensors.values()), list(saved[name].values()))
        try:
            with Piecewise(pieces) if pieces else nullcontext():
                yield
        finally:
            for name, copies in saved.items():
                tensors = self._coordinates(name)
                old = [key for key in tensors if key in copies]
                mask.selection(name).restore_outside([tensors[k] for k in old], [copies[k] for k in old])
                for key in tensors.keys() - copies.keys():  # state that this step has created
                    tensors[key].masked_fill_(~mask.partial[name], self._initial(name, key))
                self._parameters.scratch.give_back(*copies.values())

    @contextmanager
    def _decayed(self, mask: Mask) -> Iterator[None]:
        saved: list[tuple[nn.Parameter, Entry, Tensor]] = []
        for name, entry in mask.items():
            parameter = self._parameters[name]
            if entry is True or name not in self.groups or not parameter.requires_grad:
                continue
            if entry is False:
                parameter.grad = torch.zeros_like(parameter)
            saved.append((parameter, entry, parameter.detach().clone()))
        try:
            yield
        finally:
            for parameter, entry, old in saved:
                parameter.copy_(torch.where(entry, parameter, old) if isinstance(entry, Tensor) else old)

    def _forget(self, forgotten: Mask) -> None:
        for name, entry in forgotten.items():
            if entry is False or name not in self.groups:
                continue
            if entry is True:
                group = self.groups[name]
                capabilities.restart(group.optimizer, group.options, self._parameters[name])
            else:
                for key, tensor in self._state(name).items():
                    tensor.masked_fill_(entry, self._initial(name, key))

    def _refuse(self, name: str, probe: capabilities.Probe, what: str, instead: str) -> None:
        """Raise if the probe, which runs once for each param group, finds that its optimizer cannot do a thing."""
        if name not in self.groups:
            return
        group = self.groups[name]
        if (group, probe) not in self._reasons:
            self._reasons[group, probe] = capabilities.reason(probe, group.optimizer, group.options)
        if reason := self._reasons[group, probe]:
            kind = type(group.optimizer).__name__
            raise NotImplementedError(f"{kind} cannot {what}, as {name!r} asks for: {reason}; {instead}")

    def _initial(self, name: str, key: str) -> float:
        return capabilities.initial_state(self.groups[name].optimizer, self.groups[name].options, key)

    def _coordinates(self, name: str) -> dict[str, Tensor]:
        return {"": self._parameters[name].detach(), **self._state(name)}

    def _state(self, name: str) -> dict[str, Tensor]:
        parameter = self._parameters[name]
        state: Mapping[str, Any] = self.groups[name].optimizer.state.get(parameter, {})
        return capabilities.per_coordinate(state, parameter) if state else {}


@contextmanager
def scaled(optimizers: Sequence[Optimizer], factor: float) -> Iterator[None]:
    """γ_t = α_t γ_base for as long as the step takes. Scaling gradients would do nothing under Adam."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [group["lr"] for group in groups]
    try:
        for group in groups:
            group["lr"] = group["lr"] * factor  # not in place: it may be a tensor that others hold
        yield
    finally:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate


def _step_newcomers(optimizer: Optimizer) -> None:
    """torch's fused SGD fails when only some tensors have a momentum buffer yet: the others step alone, first."""
    groups = [g for g in optimizer.param_groups if g.get("fused") and g.get("momentum")]
    if not groups or not isinstance(optimizer, torch.optim.SGD):
        return
    moving = [p for group in groups for p in group["params"] if p.grad is not None]
    new = {p for p in moving if optimizer.state.get(p, {}).get("momentum_buffer") is None}
    if not 0 < len(new) < len(moving):
        return
    gradients = {p: p.grad for group in optimizer.param_groups for p in group["params"]}
    try:
        for p in gradients:
            p.grad = gradients[p] if p in new else None
        optimizer.step()
    finally:
        for p, gradient in gradients.items():
            p.grad = None if p in new else gradient
