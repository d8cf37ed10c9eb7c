"""g_t: the gradient oracle. It asks the user's loop for as many passes as a step needs, and no more."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import final

from torch import nn

from partialsgd import perturbations, vectors
from partialsgd.choices import Choice, choose, correct
from partialsgd.finite import Watch
from partialsgd.names import Parameters
from partialsgd.passes import Pass
from partialsgd.perturbations import Perturbation
from partialsgd.replay import Buffers, Moment, RandomState
from partialsgd.rules import Branch, Context, Meter, Method, uncorrected
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
        """Lines 2 to 5 of Algorithm 1 for one branch: the pass at x̃_t, and before it those that are asked for."""
        model, last = self.parameters.model, number + 1 == len(step.branches)
        if step.undo is None and not last:
            step.undo = Buffers(model)
        choice = self._choose(step, number, branch)  # lines 2 and 3: p_t and δx_t …
        guard, meter = step.guard, self.meter if self.meter and self.meter.due(choice.context) else None
        measured, by_gradient, leaves = guard or meter, choice.needs_gradient, choice.leaves(branch.base)
        start = Moment(model) if by_gradient or measured else None
        step.undo = step.undo or (start.buffers if start is not None else None)
        at_x: Vector | None = None
        kept: Buffers | None = None
        if start is not None and by_gradient and leaves:
            at_x = yield from self._look(step, branch, branch.base, counts=True)
            if self.watch.stops_early(at_x):
                self._overflow(step, at_x)
                return
            start.noise.restore()  # both gradients are of one function: same batch, same noise
            choice = self._choose(step, number, branch, at_x)  # … which may depend on the gradient at x_t
            kept = Buffers(model)  # this pass has moved the statistics: the one at x̃_t must not
        if not measured or not branch.base.is_nowhere:
            at_x = None
        if start is not None and measured and at_x is None and not choice.is_at_x:
            at_x = yield from self._look(step, branch, branch.at_x, counts=False)
            start.noise.restore()
            (kept or start.buffers).restore()
        perturbation, within = choice.perturbation or perturbations.nowhere(), choice.within
        trained = self._pass(step, branch, perturbation, last=last and guard is None, counts=True, within=within)
        choice, perturbation = choice.without_gradient(), perturbations.nowhere()  # backward needs their memory
        yield from trained  # lines 4 and 5: g_t at x̃_t = x_t + δx_t
        if self._overflowed(step, last):
            return
        if kept is not None:
            kept.restore()
        elif by_gradient:
            choice = self._choose(step, number, branch, self._here())
        if meter is not None:
            step.criteria = self._measure(meter, choice.context, at_x)
        if guard is not None and guard.judge(step.context, choice.context, at_x or self._here(), self._here()):
            assert start is not None  # a guard that is due is a reason for it
            yield from self._instead(step, guard.fallback, start)
        else:
            self._include(step, branch, choice)

    def finish(self, step: Pending, *, is_seen: bool) -> None:
        """g ← p ⊙ g, corrected before that if the method remembers something.

        A gradient that nobody sees need not be zero where an update that holds puts everything back.
        """
        if step.total and not step.overflow:
            vectors.put(self.parameters, step.total)
        # Without the gradient: the optimizer needs its memory, and nothing after this may look at it.
        step.context = replace(step.context, level=step.level, _mask=step.mask, _gradient=None)
        if step.method.correct is not uncorrected and not step.overflow:
            vectors.put(self.parameters, correct(step.method, step.context, self._here()))
        step.is_masked = is_seen or not step.mask.partial
        if not step.mask.is_everything:
            vectors.mask_(self.parameters, step.mask, elements=step.is_masked)
        step.has_gradient = any(p.grad is not None for p in self.parameters.values())
        step.complete = True

    def _choose(self, step: Pending, number: int, branch: Branch, at_x: Vector | None = None) -> Choice:
        t, seed, memory = step.context.t, step.context.seed, step.context.memory
        context = Context(t, seed, self.parameters, memory, number, branch.level, _gradient=at_x)
        choice = choose(step.method, branch, context)
        try:
            if choice.mask is not None:
                self.update.refuse(choice.mask, choice.scale if choice.scale is not None else 1.0)
            if branch.base.is_structural or (choice.perturbation is not None and choice.perturbation.is_structural):
                require_unused_search(self.given)
        except (NotImplementedError, ValueError):
            if step.undo is not None:
                step.undo.restore()  # a refusal leaves no trace, though a pass came before it
            raise
        step.by_gradient |= choice.needs_gradient
        return choice

    def _look(
        self, step: Pending, branch: Branch, perturbation: Perturbation, *, counts: bool
    ) -> Generator[Pass, None, Vector]:
        """A gradient to look at, not to apply."""
        yield from self._pass(step, branch, perturbation, last=False, counts=counts)
        gradient = vectors.take(self.parameters, clone=gradients_are_views(self.given))
        self.scaler.unscale(gradient)
        return gradient

    def _instead(self, step: Pending, method: Method, start: Moment) -> Generator[Pass, None, None]:
        """What was taken and remembered is dropped; another method's gradient is taken from where the step began."""
        vectors.clear(self.parameters.values())
        start.noise.restore()
        start.buffers.restore()
        step.turn_to(method, step.context)
        for number, branch in enumerate(step.branches):
            yield from self.branch(step, number, branch)

    def _pass(
        self,
        step: Pending,
        branch: Branch,
        perturbation: Perturbation,
        *,
        last: bool,
        counts: bool,
        within: AbstractContextManager[object] | None = None,
    ) -> Generator[Pass, None, None]:
        teacher = branch.teacher or (lambda: step.teacher)
        g = Pass(
            self.parameters, perturbation, step.abort, level=branch.level, last=last, within=within, teacher=teacher
        )
        step.current = g
        del perturbation  # see `branch`: the gradient in it must not outlive its use
        yield g
        if not g.ran:
            raise RuntimeError("a gradient was left out: run forward and backward inside `with g:` for each g")
        step.backwards += 1
        if counts:
            step.note(branch, g)

    def _measure(self, meter: Meter, context: Context, at_x: Vector | None) -> object:
        noise, here = RandomState(self.parameters.model), self._here()
        found = meter.measure(context, at_x or here, here)
        noise.restore()
        return found

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
