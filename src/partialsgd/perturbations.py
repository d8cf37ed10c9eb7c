"""Perturbations: where the gradient is taken (δx_t). x is saved before, and copied back exactly after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias, final

import torch
from torch import Tensor

from partialsgd._util import shards
from partialsgd._util.undo import UndoStack
from partialsgd.masks import Mask
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector, inner, total

Displacement: TypeAlias = Mapping[str, tuple[Tensor, Tensor]]
"""x̃ and x of each parameter that a perturbation touches; x is this rank's part if the parameter is sharded."""


def _stay(parameters: Parameters) -> None:
    pass


@final
@dataclass(frozen=True)
class Perturbation:
    """`move` turns x into x̃ in place, on the names it `touches`; `at` switches structure instead of numbers."""

    touches: tuple[str, ...] = ()
    move: Callable[[Parameters], None] = _stay
    at: Callable[[], AbstractContextManager[object]] = nullcontext
    inside: Callable[[Parameters], Mask] | None = None
    """Gives the mask of the parameters that the network inside `at()` uses; None if it is not known."""

    @cached_property
    def is_nowhere(self) -> bool:
        """δx = 0: the gradient at x̃ is the gradient at x."""
        return not self.touches and not self.is_structural

    @cached_property
    def is_structural(self) -> bool:
        """Another part of the network runs, so parameters may be left out of the pass."""
        return self.at is not nullcontext


def nowhere() -> Perturbation:
    """δx = 0."""
    return NOWHERE


NOWHERE = Perturbation()


def add(deltas: Mapping[str, Tensor]) -> Perturbation:
    """δx by parameter name."""

    def move(parameters: Parameters) -> None:
        for name, delta in deltas.items():
            if delta.shape != parameters[name].shape:
                shapes = f"{tuple(delta.shape)}, the parameter {tuple(parameters[name].shape)}"
                raise ValueError(f"the perturbation of {name!r} has shape {shapes}")
            shards.local(parameters[name]).add_(shards.part_of(delta, parameters[name]))

    return Perturbation(tuple(deltas), move)


def drop_outside(mask: Mask) -> Perturbation:
    """δx = −(1 − p) ⊙ x: the gradient of the sub-network that the mask induces."""
    dropped = {name: entry for name, entry in mask.entries.items() if entry is not True}

    def move(parameters: Parameters) -> None:
        for name, entry in dropped.items():
            if isinstance(entry, Tensor):
                x = parameters[name].detach()
                mask.selection(name).keep_inside(shards.local(x) if parameters.is_sharded else x)
            else:
                parameters[name].zero_()

    return Perturbation(tuple(dropped), move)


def along_gradient(gradient: Vector, factor: float | Tensor) -> Perturbation:
    """δx = factor · g; a negative factor goes downhill. A factor that is a tensor is not read by the host."""
    if not gradient or (not isinstance(factor, Tensor) and factor == 0):
        return NOWHERE

    def move(parameters: Parameters) -> None:
        if isinstance(factor, Tensor):
            for name, g in gradient.items():
                parameters[name].addcmul_(g, factor.to(g.device, g.dtype))
        else:
            x = shards.locals_of(parameters[name] for name in gradient)
            torch._foreach_add_(x, shards.locals_of(gradient.values()), alpha=factor)

    return Perturbation(tuple(gradient), move)


def along_unit_gradient(gradient: Vector, distance: float) -> Perturbation:
    """δx = distance · g / ‖g‖; a zero gradient has no direction and perturbs nothing."""
    if all(g.device.type == "cpu" or shards.is_sharded(g) for g in gradient.values()):
        norm = gradient.norm()
        return along_gradient(gradient, distance / norm if norm > 0 else 0.0)
    total = torch.nn.utils.get_total_norm(gradient.values())
    return along_gradient(gradient, torch.where(total > 0, distance / total, 0.0))


def function(names: Sequence[str], move: Callable[[Parameters], None]) -> Perturbation:
    """Any change of the named parameters, made in place by `move`."""
    return Perturbation(tuple(names), move)


def switch(
    at: Callable[[], AbstractContextManager[object]], inside: Callable[[Parameters], Mask] | None = None
) -> Perturbation:
    """The structural kind: the pass runs inside `at()`, which runs a smaller network; no number is touched."""
    return Perturbation(at=at, inside=inside)


def displace(
    parameters: Parameters,
    perturbation: Perturbation,
    undo: UndoStack,
    within: AbstractContextManager[object] | None = None,
    on_move: Callable[[Displacement], None] | None = None,
) -> None:
    """Set x to x̃ and run what follows in its contexts. `undo` leaves them, and makes x exactly x again.

    `on_move` is called once, when x has become x̃, with the displacement of each touched parameter.
    """
    touched: dict[str, Tensor] = {name: parameters[name].detach() for name in perturbation.touches}
    if touched and parameters.is_sharded:
        parameters.reshard()
        touched = shards.local_values(touched)
    at, move = perturbation.at, perturbation.move
    del perturbation
    if touched:
        saved = parameters.scratch.borrow_all(touched.values())
        torch._foreach_copy_(saved, list(touched.values()))
        undo.append(partial(_restore, parameters, touched, saved))
        apply(parameters, move)
        if on_move is not None:
            pairs = zip(touched, saved, strict=True)
            on_move({name: (parameters[name].detach(), old) for name, old in pairs})
    del move  # it may hold the gradient at x, whose memory the pass at x̃ needs
    if at is not nullcontext:
        undo.append(torch.clear_autocast_cache)  # it may hold low-precision copies of the other structure's weights
        torch.clear_autocast_cache()
        undo.enter(at())
    if within is not None:
        undo.enter(within)


def _restore(parameters: Parameters, touched: Mapping[str, Tensor], saved: list[Tensor]) -> None:
    """Copy x back, exactly. Repeatable: the copies are given back once."""
    if saved:
        if parameters.is_sharded:
            parameters.reshard()
        torch._foreach_copy_(list(touched.values()), saved)
        copies = saved[:]
        saved.clear()
        parameters.scratch.give_back(*copies)
    # Autocast caches low-precision copies of weights; they are now copies of other numbers.
    torch.clear_autocast_cache()


@contextmanager
def perturbed(
    parameters: Parameters,
    perturbation: Perturbation,
    within: AbstractContextManager[object] | None = None,
    on_move: Callable[[Displacement], None] | None = None,
) -> Iterator[None]:
    """Set x to x̃ inside the block and to exactly x again after it, whatever happens inside; see `displace`."""
    undo = UndoStack()
    try:
        try:
            displace(parameters, perturbation, undo, within, on_move)
            del perturbation
            yield
        finally:
            undo.run()
    finally:  # again, if an interrupt came on the line above
        undo.run()


def squared_norm(displacement: Displacement, inside: Mask | None = None) -> float | Tensor:
    """‖x̃ − x‖² of the parameters that were moved, or of their coordinates inside a mask; left on the device."""
    deltas = {name: shards.local(moved) - old for name, (moved, old) in displacement.items()}
    if inside is not None:
        entries = {name: inside[name] for name in deltas}
        parts = {name: shards.local(e) if isinstance(e, Tensor) else e for name, e in entries.items()}
        deltas = {name: delta * parts[name] for name, delta in deltas.items()}
    return total([inner(delta, delta) for delta in deltas.values()], [moved for moved, _ in displacement.values()])


@torch.no_grad()
def apply(parameters: Parameters, move: Callable[[Parameters], None]) -> None:
    """x ← x̃ for good; `perturbed` undoes it, a projection does not."""
    move(parameters)
    torch.clear_autocast_cache()
