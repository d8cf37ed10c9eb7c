"""x_{t+1}: the masked step of any torch optimizer. Nothing outside the mask moves, bit for bit.

A tensor wholly outside gets `grad = None`, which every torch optimizer skips. Of a tensor partly outside,
the coordinates outside are saved before `optimizer.step()` and put back after it: the parameter, and
under `outside="hold"` every entry of the optimizer's state that has one number for each coordinate.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from partialsgd import masks, probes
from partialsgd.fused import Piecewise, is_piecewise
from partialsgd.masks import Entry, Mask
from partialsgd.names import Parameters

Outside = Literal["hold", "decay", "reset"]


class _Place(NamedTuple):
    optimizer: Optimizer
    number: int

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizer.param_groups[self.number]  # looked up: load_state_dict makes new ones


@final
class MaskedUpdate:
    """Line 6 of Algorithm 1, for one optimizer or several that share the parameters out among them."""

    def __init__(self, parameters: Parameters, optimizers: Sequence[Optimizer], outside: Outside) -> None:
        if outside not in get_args(Outside):
            raise ValueError(f"outside must be one of {', '.join(get_args(Outside))}; got {outside!r}")
        self.optimizers = [probes.unwrapped(optimizer) for optimizer in optimizers]
        self._parameters = parameters
        self.outside: Outside = outside
        self._steps = [_step_of(given) for given in optimizers]
        self._places = _places(parameters, self.optimizers)
        self._previous = masks.everything(parameters)
        self._verdicts: dict[tuple[_Place, str], str | None] = {}
        self._unverified = [o for o in self.optimizers if not probes.is_from_torch(o)]

    @property
    def wants_closure(self) -> bool:
        """LBFGS evaluates the closure itself, as often as it likes."""
        return any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in self.optimizers)

    def refuse(self, mask: Mask) -> None:
        """Raise before anything has moved if this mask cannot be held to the bit."""
        for name in mask.partial:
            if name not in self._places:
                continue
            place = self._places[name]
            kind = type(place.optimizer).__name__
            if reason := self._verdict(place, "element"):
                raise NotImplementedError(
                    f"{kind} cannot take an element mask, and {name!r} has one: {reason}; "
                    "mask whole tensors or use a coordinate-wise optimizer"
                )
            if self.outside == "reset" and (reason := self._verdict(place, "reset")):
                raise NotImplementedError(
                    f"outside='reset' cannot clear part of {name!r} under {kind}: {reason}; "
                    "use outside='hold' or mask whole tensors"
                )

    @torch.no_grad()
    def apply(self, mask: Mask, scale: float) -> None:
        """x ← x − γ p ⊙ g. The gradients are already masked; `scale` is α, γ = α γ_base."""
        if self.outside == "reset":
            self._forget_entering(mask)
        with ExitStack() as held:
            if self._unverified and not mask.is_everything:
                held.enter_context(self._verified(mask))
            held.enter_context(self._decayed(mask) if self.outside == "decay" else self._held(mask))
            held.enter_context(scaled(self.optimizers, scale))
            for optimizer, step in zip(self.optimizers, self._steps, strict=True):
                _step_newcomers(optimizer)
                step()
        mask.release()

    def state_dict(self) -> dict[str, Entry]:
        """What `outside="reset"` must know: where the mask of the last step was not everything."""
        return {name: entry for name, entry in self._previous.items() if entry is not True}

    def load_state_dict(self, state: Mapping[str, Entry]) -> None:
        self._previous = masks.from_tensors(self._parameters, state, rest=True)

    @contextmanager
    def _held(self, mask: Mask) -> Iterator[None]:
        saved: list[tuple[str, Tensor, dict[str, Tensor]]] = []
        pieces: dict[Tensor, Tensor] = {}
        for name, entry in mask.partial.items():
            parameter, place = self._parameters[name], self._places.get(name)
            if parameter.grad is None or place is None:
                continue
            if entry.is_contiguous() and is_piecewise(place.optimizer, place.group, parameter):
                pieces[parameter] = entry
            else:
                tensors = self._coordinates(name)
                copies = {key: self._parameters.scratch.borrow(tensor) for key, tensor in tensors.items()}
                mask.selection(name).save_outside(list(tensors.values()), list(copies.values()))
                saved.append((name, entry, copies))
        try:
            with Piecewise(pieces) if pieces else nullcontext():
                yield
        finally:
            for name, entry, copies in saved:
                tensors = self._coordinates(name)
                known = [key for key in tensors if key in copies]
                selection = mask.selection(name)
                selection.restore_outside([tensors[k] for k in known], [copies[k] for k in known])
                for key in tensors.keys() - copies.keys():  # state that this step has created
                    tensors[key].masked_fill_(~entry, self._initial(name, key))
                for copy_ in copies.values():
                    self._parameters.scratch.give_back(copy_)

    @contextmanager
    def _decayed(self, mask: Mask) -> Iterator[None]:
        saved: list[tuple[nn.Parameter, Entry, Tensor]] = []
        for name, entry in mask.items():
            parameter = self._parameters[name]
            if entry is True or name not in self._places or not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            saved.append((parameter, entry, parameter.detach().clone()))
        try:
            yield
        finally:
            for parameter, entry, old in saved:
                parameter.copy_(torch.where(entry, parameter, old) if isinstance(entry, Tensor) else old)

    @contextmanager
    def _verified(self, mask: Mask) -> Iterator[None]:
        """On the first masked step of an optimizer from outside torch: does it leave the rest alone?"""
        rest = [self._parameters[name] for name, entry in mask.items() if entry is False and name in self._places]
        values = {p: p.detach().clone() for p in self._parameters.values()}
        states = [_snapshot(optimizer) for optimizer in self.optimizers]
        before = {p: entries for state, _ in states for p, entries in state.items()}
        yield
        moved = [p for p in rest if not torch.equal(p, values[p])]
        moved += [p for p in rest if p in before and not _equal_state(before[p], self._state_now(p))]
        if moved:
            for parameter, value in values.items():
                parameter.copy_(value)
            for optimizer, (state, groups) in zip(self.optimizers, states, strict=True):
                _roll_back(optimizer, state, groups)
            name = next(name for name, p in self._parameters.items() if p is moved[0])
            kinds = ", ".join(type(optimizer).__name__ for optimizer in self._unverified)
            raise RuntimeError(
                f"{kinds} changed {name!r} although it had no gradient, so a mask cannot be held with it; "
                "the step was undone. Use an optimizer that skips parameters whose grad is None"
            )
        self._unverified = []

    def _forget_entering(self, mask: Mask) -> None:
        for name, entry in (mask & ~self._previous).simplified().items():
            if entry is False or name not in self._places:
                continue
            optimizer = self._places[name].optimizer
            if entry is True and not isinstance(optimizer, torch.optim.Adagrad):
                optimizer.state.pop(self._parameters[name], None)
                continue
            for key, tensor in self._state_coordinates(name).items():
                tensor.masked_fill_(torch.as_tensor(entry, device=tensor.device), self._initial(name, key))
            if entry is True:
                optimizer.state[self._parameters[name]]["step"].zero_()
        self._previous = mask

    def _verdict(self, place: _Place, question: Literal["element", "reset"]) -> str | None:
        if (place, question) not in self._verdicts:
            probe = probes.why_not_coordinate_wise if question == "element" else probes.why_not_forgetful
            with torch.enable_grad():
                self._verdicts[place, question] = probe(place.optimizer, place.group)
        return self._verdicts[place, question]

    def _initial(self, name: str, key: str) -> float:
        place = self._places[name]
        return probes.initial_state(place.optimizer, place.group, key)

    def _coordinates(self, name: str) -> dict[str, Tensor]:
        return {"": self._parameters[name].detach(), **self._state_coordinates(name)}

    def _state_coordinates(self, name: str) -> dict[str, Tensor]:
        parameter = self._parameters[name]
        return probes.per_coordinate(self._state_now(parameter) or {}, parameter)

    def _state_now(self, parameter: nn.Parameter) -> dict[str, Any] | None:
        return next((o.state[parameter] for o in self.optimizers if parameter in o.state), None)


@contextmanager
def scaled(optimizers: Sequence[Optimizer], factor: float) -> Iterator[None]:
    """γ_t = α_t γ_base for as long as the step takes. Scaling gradients would do nothing under Adam."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups] if factor != 1 else []
    rates = [group["lr"] for group in groups]
    try:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        yield
    finally:
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate


def _step_of(optimizer: Optimizer) -> Callable[[], object]:
    # accelerate's wrapper steps only on the last micro-batch it counted; here update() decides that.
    if type(optimizer).__module__.startswith("accelerate"):
        return lambda: probes.unwrapped(optimizer).step()
    return lambda: optimizer.step()


def _step_newcomers(optimizer: Optimizer) -> None:
    """torch's fused SGD fails when only some tensors have a momentum buffer yet: the others step alone, first."""
    groups = [g for g in optimizer.param_groups if g.get("fused") and g.get("momentum")]
    if not groups or not isinstance(optimizer, torch.optim.SGD):
        return
    moving = [p for group in groups for p in group["params"] if p.grad is not None]
    old = {p: p.grad for p in moving if optimizer.state.get(p, {}).get("momentum_buffer") is not None}
    if not 0 < len(old) < len(moving):
        return
    for p in old:
        p.grad = None
    optimizer.step()
    for p in moving:
        p.grad = old.get(p)


def _places(parameters: Parameters, optimizers: Sequence[Optimizer]) -> dict[str, _Place]:
    names = {parameter: name for name, parameter in parameters.items()}
    places: dict[str, _Place] = {}
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise NotImplementedError("SparseAdam needs sparse gradients, which are refused here; use Adam")
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                name = names.get(parameter)
                if name is None:
                    raise ValueError(
                        f"the optimizer holds a parameter of shape {tuple(parameter.shape)} that is not the "
                        "model's; build the optimizer after nest (or any other change of the model)"
                    )
                if name in places:
                    raise ValueError(f"{name!r} is in two optimizers or groups; each parameter needs exactly one")
                places[name] = _Place(optimizer, index)
    missing = [name for name, p in parameters.items() if p.requires_grad and name not in places]
    if missing:
        raise ValueError(
            f"{len(missing)} trainable parameters are in no optimizer, {missing[0]!r} first; "
            "build the optimizer after nest, from model.parameters(), or freeze what should not be trained"
        )
    return places


def _snapshot(optimizer: Optimizer) -> tuple[dict[Tensor, dict[str, Any]], list[dict[str, Any]]]:
    state = {p: copy.deepcopy(dict(entries)) for p, entries in optimizer.state.items()}
    groups = [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return state, groups


def _roll_back(optimizer: Optimizer, state: dict[Tensor, dict[str, Any]], groups: list[dict[str, Any]]) -> None:
    optimizer.state.clear()
    optimizer.state.update(state)
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update(saved)


def _equal_state(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> bool:
    if not a or not b:
        return not a and not b
    return a.keys() == b.keys() and all(
        torch.equal(a[k], b[k]) if isinstance(a[k], Tensor) else a[k] == b[k] for k in a
    )
