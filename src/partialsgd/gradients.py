"""g_t: the gradient oracle. It asks the user's loop for as many passes as a step needs, and no more."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import final

from torch import nn

from partialsgd import perturbations, vectors
from partialsgd.finite import Watch
from partialsgd.names import Parameters
from partialsgd.passes import Pass
from partialsgd.perturbations import Perturbation
from partialsgd.replay import Buffers, RandomState
from partialsgd.rules import Branch, Choice, Context, Meter, choose, correct, uncorrected
from partialsgd.scaling import Scaler
from partialsgd.steps import Pending
from partialsgd.updates import MaskedUpdate
from partialsgd.vectors import Vector
from partialsgd.wrappers import gradients_are_views, require_unused_search


@final
@dataclass(frozen=True)
class Oracle:
    """Leaves p_t ⊙ g_t in `.grad`."""

    given: nn.Module
    parameters: Parameters
    update: MaskedUpdate
    scaler: Scaler
    watch: Watch
    meter: Meter | None

    def branch(self, step: Pending, number: int, branch: Branch) -> Generator[Pass, None, None]:
        """Lines 2 to 5 of Algorithm 1 for one branch: the pass at x̃_t, and before it one at x_t if asked for."""
        model, last = self.parameters.model, number + 1 == len(step.branches)
        choice = self._choose(step, number, branch)  # lines 2 and 3: p_t and δx_t …
        measured = self.meter is not None and self.meter.due(choice.context)
        by_gradient, moves = choice.needs_gradient, choice.moves
        at_x: Vector | None = None
        before = Buffers(model) if by_gradient or measured else None
        if moves and before is not None:
            noise = RandomState(model)
            yield from self._pass(step, branch, branch.at_x, last=False, counts=by_gradient)
            at_x = vectors.take(self.parameters, clone=gradients_are_views(self.given))
            self.scaler.unscale(at_x)
            if by_gradient and self.watch.stops_early(at_x):
                self._overflow(step, at_x)
                return
            noise.restore()  # both gradients are of one function: same batch, same noise
            if by_gradient:
                choice = self._choose(step, number, branch, at_x, before)  # … which may depend on the gradient at x_t
                before = Buffers(model)  # this pass has moved the statistics: the one at x̃_t must not
            else:
                before.restore()
        if not measured:
            at_x = None
        perturbation = choice.perturbation or perturbations.nowhere()
        trained = self._pass(step, branch, perturbation, last=last, counts=True)
        choice, perturbation = choice.without_gradient(), perturbations.nowhere()  # backward needs their memory
        yield from trained  # lines 4 and 5: g_t at x̃_t = x_t + δx_t
        if self._overflowed(step, last):
            return
        if by_gradient and before is not None:
            if moves:
                before.restore()
            else:
                choice = self._choose(step, number, branch, self._here(), before)
        if measured and self.meter is not None:
            noise, here = RandomState(model), self._here()
            step.criteria = self.meter.measure(choice.context, at_x or here, here)
            noise.restore()
        self._include(step, branch, choice)

    def finish(self, step: Pending, *, is_seen: bool) -> None:
        """g ← p ⊙ g, corrected before that if the method remembers something.

        A gradient that nobody sees need not be zero where an update that holds puts everything back.
        """
        if step.total and not step.overflow:
            vectors.put(self.parameters, step.total)
        step.context = replace(step.context, level=step.level, _mask=step.mask)
        if step.method.correct is not uncorrected and not step.overflow:
            vectors.put(self.parameters, correct(step.method, step.context, self._here()))
        step.is_masked = is_seen or not step.mask.partial
        if not step.mask.is_everything:
            vectors.mask_(self.parameters, step.mask, elements=step.is_masked)
        step.has_gradient = any(p.grad is not None for p in self.parameters.values())
        step.complete = True

    def _choose(
        self, step: Pending, number: int, branch: Branch, at_x: Vector | None = None, undo: Buffers | None = None
    ) -> Choice:
        t, seed, memory = step.context.t, step.context.seed, step.context.memory
        context = Context(t, seed, self.parameters, memory, number, branch.level, _gradient=at_x)
        choice = choose(step.method, branch, context)
        try:
            if choice.mask is not None:
                self.update.refuse(choice.mask, choice.scale if choice.scale is not None else 1.0)
            if choice.perturbation is not None and choice.perturbation.is_structural:
                require_unused_search(self.given)
        except (NotImplementedError, ValueError):
            if undo is not None:
                undo.restore()  # a refusal leaves no trace, though a pass came before it
            raise
        step.by_gradient |= choice.needs_gradient
        return choice

    def _pass(
        self, step: Pending, branch: Branch, perturbation: Perturbation, *, last: bool, counts: bool
    ) -> Generator[Pass, None, None]:
        teacher = branch.teacher or (lambda: step.teacher)
        g = Pass(self.parameters, perturbation, step.abort, level=branch.level, last=last, teacher=teacher)
        step.current = g
        del perturbation  # see `branch`: the gradient in it must not outlive its use
        yield g
        if not g.ran:
            raise RuntimeError("a gradient was left out: run forward and backward inside `with g:` for each g")
        step.backwards += 1
        if counts:
            step.note(branch, g)

    def _here(self) -> Vector:
        return Vector(vectors.current(self.parameters))

    def _overflowed(self, step: Pending, last: bool) -> bool:
        """Unscale what lies in `.grad`. Of the last branch the scaler itself does it, and learns of overflows."""
        if self.scaler.enabled and last:
            step.overflow = self.scaler.unscale_in_place(self._here())
        elif self.scaler.enabled:
            here = self._here()
            self.scaler.unscale(here)
            if not vectors.are_finite(self.parameters):
                self._overflow(step, here)
        return step.overflow

    def _include(self, step: Pending, branch: Branch, choice: Choice) -> None:
        assert choice.mask is not None and choice.scale is not None  # nothing waits for a gradient any more
        step.include(choice.mask, choice.scale, choice.context)
        if len(step.branches) > 1 or branch.weight != 1:
            vectors.mask_(self.parameters, choice.mask)
            gradient = vectors.take(self.parameters, clone=gradients_are_views(self.given))
            vectors.add(step.total, gradient, step.weight(branch))

    def _overflow(self, step: Pending, at_x: Vector) -> None:
        """The scaler learns of an overflow only from `.grad`."""
        vectors.put(self.parameters, at_x)
        self.scaler.unscale_in_place(at_x)
        step.overflow = True
