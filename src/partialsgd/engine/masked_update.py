"""The masked step of any torch optimizer (x_{t+1}). Nothing outside the mask moves, bit for bit.

A tensor wholly outside gets `grad = None`, which every torch optimizer skips. Of a tensor partly outside,
the coordinates outside are saved before `optimizer.step()` and put back after it: the parameter, and
under `outside="hold"` and `"reset"` every entry of the optimizer's state that has one number for each coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from partialsgd import masks
from partialsgd._util import shards
from partialsgd._util.undo import UndoStack
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
        self.stepped = 0
        """The number of optimizers that `apply` has stepped; with the last one, x has moved."""
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
    def apply(
        self, mask: Mask, scale: float, undo: UndoStack, forgotten: Mask | None = None, finite: Tensor | None = None
    ) -> None:
        """x ← x − γ p ⊙ g, with γ = α γ_base and α = `scale`, complete when `undo` has run.

        A tensor wholly outside has `grad = None`; elements outside may still have a gradient, and are held here.
        If `finite`, a number on an accelerator, is False, nothing moves, and the host does not wait to learn it.
        """
        self.stepped = 0
        if forgotten is not None:
            self._forget(forgotten)
        if self.outside == "reset":
            self._forget((mask & ~self._previous).simplified())
            self._previous = mask
        if mask.partial:
            undo.append(mask.release)
        if self._verification.unverified and not mask.is_everything:
            undo.append(partial(self._verify, self._verification.copy_of(mask, with_state=self.outside != "decay")))
        if self.outside == "decay":
            self._decay(mask, undo)
        elif finite is not None:
            self._hold_unless(finite, mask, undo)
        elif mask.partial:
            self._hold(mask, undo)
        if scale != 1:
            scale_rates(self.optimizers, scale, undo)
        undo.append(partial(param_groups.IS_STEPPING.set, False))
        param_groups.IS_STEPPING.set(True)
        for optimizer in self.optimizers:
            _step_newcomers(optimizer)
        steps = [param_groups.step_of(wrapped) for wrapped in self._wrapped]
        if len(steps) > 1:
            undo.append(partial(self._step_others, steps))
        # An interrupt may come between two lines: a step and its count are one.
        self.stepped += (steps[0](), 1)[1]

    @property
    def decides_on_device(self) -> bool:
        """True if a step that is not finite can be undone on an accelerator: nothing else sees or keeps it."""
        are_from_torch = all(map(capabilities.is_from_torch, self.optimizers))
        return are_from_torch and self.outside == "hold" and not any(map(capabilities.has_step_hooks, self.optimizers))

    def forget_step(self, mask: Mask) -> Callable[[], None]:
        """Return a function that restores the counters of a step that was not finite. Call it before `apply`."""
        kept: list[tuple[str, dict[str, Any]]] = []
        for name, entry in mask.items():
            if entry is not False and name in self.groups and not self._keeps_count(name):
                state = self.groups[name].optimizer.state.get(self._parameters[name], {})
                of_coordinates = capabilities.per_coordinate(state, self._parameters[name])
                counters = {
                    k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items() if k not in of_coordinates
                }
                kept.append((name, counters | dict.fromkeys(of_coordinates)))
        return partial(self._forget_step, kept)

    def _keeps_count(self, name: str) -> bool:
        """True if the optimizer itself restores the counters of a step that is not finite."""
        optimizer = self.groups[name].optimizer
        return capabilities.reads_found_inf(optimizer) and bool(optimizer.state.get(self._parameters[name]))

    @torch.no_grad()
    def _forget_step(self, kept: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        for name, old in kept:
            optimizer, parameter = self.groups[name].optimizer, self._parameters[name]
            if not old:
                optimizer.state.pop(parameter, None)
                continue
            state = optimizer.state[parameter]
            for key in [key for key in state if key not in old]:
                del state[key]
            state.update({key: value for key, value in old.items() if value is not None})

    def _step_others(self, steps: Sequence[Callable[[], object]]) -> None:
        """Step the other optimizers, once the first has stepped: all of them or none, unless one raises."""
        while 0 < self.stepped < len(steps):
            self.stepped += (steps[self.stepped](), 1)[1]

    def _verify(self, check: Callable[[], None]) -> None:
        """Check that an optimizer from outside torch moved nothing outside the mask; else undo the step and raise."""
        if self.stepped:
            try:
                check()
            except RuntimeError:
                self.stepped = 0
                raise

    def state_dict(self) -> dict[str, Entry]:
        """The mask of the last step where it is not True, for `outside="reset"`."""
        return {name: entry for name, entry in self._previous.items() if entry is not True}

    def load_state_dict(self, state: Mapping[str, Entry]) -> None:
        self._previous = masks.from_tensors(self._parameters, state, rest=True)

    def _hold(self, mask: Mask, undo: UndoStack) -> None:
        """Save what lies outside the mask; `undo` puts it back after the step."""
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
        undo.append(partial(self._put_back, mask, saved))
        if pieces:
            undo.enter(Piecewise(pieces))

    @torch.no_grad()
    def _put_back(self, mask: Mask, saved: dict[str, dict[str, Tensor]]) -> None:
        for name, copies in saved.items():
            tensors = self._coordinates(name)
            old = [key for key in tensors if key in copies]
            mask.selection(name).restore_outside([tensors[k] for k in old], [copies[k] for k in old])
            for key in tensors.keys() - copies.keys():  # state that this step has created
                outside = ~shards.local(mask.partial[name])
                tensors[key].masked_fill_(outside, self._initial(name, key))
        buffers = [tensor for copies in saved.values() for tensor in copies.values()]
        saved.clear()
        self._parameters.scratch.give_back(*buffers)

    def _hold_unless(self, finite: Tensor, mask: Mask, undo: UndoStack) -> None:
        """Save everything that the step may change, on the device; `undo` puts it back outside the mask, and
        everywhere if the step is not finite. A fused optimizer reads `finite` itself, so nothing is saved for it."""
        saved: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
        for name, entry in mask.items():
            parameter = self._parameters[name]
            if entry is False or parameter.grad is None or name not in self.groups:
                continue
            if not capabilities.reads_found_inf(self.groups[name].optimizer):
                inside = finite & entry
            elif isinstance(entry, Tensor):
                inside = entry
            else:
                continue
            saved[name] = inside, {key: tensor.clone() for key, tensor in self._coordinates(name).items()}
        undo.append(partial(self._choose_on_device, saved))
        for optimizer in self.optimizers:
            if capabilities.reads_found_inf(optimizer):
                undo.append(partial(optimizer.__dict__.pop, "found_inf", None))
                optimizer.__dict__["found_inf"] = (~finite).float()  # as torch.amp.GradScaler tells a fused step

    @torch.no_grad()
    def _choose_on_device(self, saved: Mapping[str, tuple[Tensor, Mapping[str, Tensor]]]) -> None:
        for name, (inside, old) in saved.items():
            for key, tensor in self._coordinates(name).items():
                if key in old:
                    torch.where(inside, tensor, old[key], out=tensor)
                else:  # state that this step has created
                    tensor.masked_fill_(~inside, self._initial(name, key))

    def _decay(self, mask: Mask, undo: UndoStack) -> None:
        """Give tensors outside a gradient of zero, so that their state decays, and save them."""
        saved: list[tuple[nn.Parameter, Entry, Tensor]] = []
        undo.append(partial(_put_back_decayed, saved))
        for name, entry in mask.items():
            parameter = self._parameters[name]
            if entry is True or name not in self.groups or not parameter.requires_grad:
                continue
            saved.append((parameter, entry, parameter.detach().clone()))
            if entry is False:
                parameter.grad = torch.zeros_like(parameter)

    def _forget(self, forgotten: Mask) -> None:
        for name, entry in forgotten.items():
            if entry is False or name not in self.groups:
                continue
            if entry is True:
                group = self.groups[name]
                capabilities.restart(group.optimizer, group.options, self._parameters[name])
            else:
                for key, tensor in self._state(name).items():
                    shards.local(tensor).masked_fill_(shards.local(entry), self._initial(name, key))

    def _refuse(self, name: str, probe: capabilities.Probe, what: str, instead: str) -> None:
        """Raise if the optimizer of a parameter cannot do `what`; the probe runs once for each param group."""
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
        """Return the parameter and its per-coordinate state; if the parameter is sharded, this rank's parts."""
        tensors = {"": self._parameters[name].detach(), **self._state(name)}
        return shards.local_values(tensors) if self._parameters.is_sharded else tensors

    def _state(self, name: str) -> dict[str, Tensor]:
        parameter = self._parameters[name]
        state: Mapping[str, Any] = self.groups[name].optimizer.state.get(parameter, {})
        return capabilities.per_coordinate(state, parameter) if state else {}


@torch.no_grad()
def _put_back_decayed(saved: Sequence[tuple[nn.Parameter, Entry, Tensor]]) -> None:
    for parameter, entry, old in saved:
        x, x_old = shards.local(parameter.detach()), shards.local(old)
        x.copy_(torch.where(shards.local(entry), x, x_old) if isinstance(entry, Tensor) else x_old)


def scale_rates(optimizers: Sequence[Optimizer], factor: float, undo: UndoStack) -> None:
    """γ_t = α_t γ_base until `undo` runs. Scaling gradients would do nothing under Adam."""
    rates = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]

    def restore() -> None:
        for group, rate in rates:
            group["lr"] = rate

    undo.append(restore)
    for group, rate in rates:
        group["lr"] = rate * factor  # not in place: it may be a tensor that others hold


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
