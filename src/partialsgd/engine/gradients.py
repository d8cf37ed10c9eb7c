"""g_t: the gradient oracle. It asks the user's loop for as many passes as a step needs, and no more."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from partialsgd import perturbations, vectors
from partialsgd._util.snapshots import Buffers, RandomState, Snapshot
from partialsgd.distributed.wrappers import data_parallel, gradients_are_views, require_unused_search
from partialsgd.engine.gradient_pass import Pass
from partialsgd.engine.masked_update import MaskedUpdate
from partialsgd.engine.measurement import Pair, Pairs
from partialsgd.engine.nonfinite import NonfinitePolicy
from partialsgd.engine.passing import Passing
from partialsgd.engine.rules import Choice, choose, correct, rescaled
from partialsgd.engine.step import StepInProgress
from partialsgd.method import Branch, Context, GradientPair, GradientRequest, Meter, Method, uncorrected
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector

_GUARD = "guard"


def takes_passes(looks: Sequence[tuple[str, GradientRequest]]) -> bool:
    return any(not look.alone for _, look in looks)


@final
@dataclass
class BranchPlan:
    """What is known of a branch before its trained pass."""

    choice: Choice
    looks: list[tuple[str, GradientRequest]]
    """Who looks, and at what."""
    start: Snapshot | None
    begin: Snapshot | None
    """The same, or where the pass by which the rules have chosen has left the statistics."""
    at_x: Vector | None = None
    waits: bool = False
    """The trained gradient itself is what the rules wait for."""


@final
@dataclass(frozen=True)
class Oracle:
    """Leaves p_t ⊙ g_t in `.grad`."""

    passing: Passing
    update: MaskedUpdate
    watch: NonfinitePolicy
    meters: Mapping[str, Meter]

    @property
    def parameters(self) -> Parameters:
        return self.passing.parameters

    def branch(self, step: StepInProgress, number: int, branch: Branch) -> Generator[Pass, None, None]:
        """Lines 2 to 5 of Algorithm 1 for one branch: the pass at x̃_t, and before it those that are asked for."""
        last = number + 1 == len(step.branches)
        if step.undo is None and not last:
            step.undo = Buffers(self.parameters.model)
        decided = yield from self._decide(step, number, branch)  # lines 2 and 3: p_t and δx_t
        if step.overflow:
            return
        pairs = yield from self._pairs(step, branch, decided)
        yield from self._train(step, branch, decided, last)  # lines 4 and 5: g_t at x̃_t = x_t + δx_t
        if self._overflowed(step, last):
            return
        choice = decided.choice
        if decided.begin is not decided.start and decided.begin is not None:
            decided.begin.buffers.restore()  # the pass by which the rules have chosen has moved the statistics
        elif decided.waits:
            choice = self._choose(step, number, branch, self.passing.here())
        if number == 0 and any(map(takes_passes, step.looks[1:])) and choice.is_at_x and decided.start is not None:
            step.whole = (decided.start.noise, self.passing.copied())
        choice, refused = self._show(step, decided, pairs, choice)
        if refused and decided.start is not None and step.guard is not None:
            yield from self._instead(step, step.guard.fallback, decided.start)
        else:
            self._include(step, branch, choice)

    def finish(self, step: StepInProgress, *, is_seen: bool) -> None:
        """g ← p ⊙ g, corrected before that if the method remembers something.

        A gradient that nobody sees need not be zero where an update that holds puts everything back.
        """
        if step.total and not step.overflow:
            vectors.put(self.parameters, step.total)
        # Without the gradient: the optimizer needs its memory, and nothing after this may look at it.
        step.context = replace(step.context, level=step.level, _mask=step.mask, _gradient=None)
        if step.method.correct is not uncorrected and not step.overflow:
            vectors.put(self.parameters, correct(step.method, step.context, self.passing.here()))
        step.is_masked = is_seen or not step.mask.partial
        if not step.mask.is_everything:
            vectors.mask_(self.parameters, step.mask, elements=step.is_masked)
        step.has_gradient = any(p.grad is not None for p in self.parameters.values())
        step.complete = True

    def _decide(self, step: StepInProgress, number: int, branch: Branch) -> Generator[Pass, None, BranchPlan]:
        """A rule that waits for the gradient gets it: of a pass of its own, if the trained one is elsewhere."""
        model, choice = self.parameters.model, self._choose(step, number, branch)
        looks, by_gradient = self._looks(step, number, choice), choice.needs_gradient
        start = Snapshot(model) if by_gradient or any(map(takes_passes, step.looks[number:])) else None
        step.undo = step.undo or (start.buffers if start is not None else None)
        if start is None or not by_gradient or not choice.leaves(branch.base):
            return BranchPlan(choice, looks, start, start, waits=by_gradient)
        at_x = yield from self.passing.look(step, branch, branch.base, counts=True)
        if self.watch.stops_early(at_x):
            self._overflow(step, at_x)
            return BranchPlan(choice, looks, start, start)
        start.noise.restore()  # both gradients are of one function: same batch, same noise
        choice = self._choose(step, number, branch, at_x)
        return BranchPlan(choice, looks, start, Snapshot(model), at_x)

    def _looks(self, step: StepInProgress, number: int, choice: Choice) -> list[tuple[str, GradientRequest]]:
        """What the step's guard and the meters want to see. Of several branches all are asked before the first."""
        if not step.looks:
            noise = RandomState(self.parameters.model) if self.meters else None
            step.looks = [self._wanted(step, n, choice.context) for n in range(len(step.branches))]
            if noise is not None:
                noise.restore()  # what a meter draws, to find its batches, is not the run's
        return step.looks[number]

    def _wanted(self, step: StepInProgress, number: int, context: Context) -> list[tuple[str, GradientRequest]]:
        branch = step.branches[number]
        found = [] if step.guard is None else [(_GUARD, GradientRequest(branch))]
        for who, meter in self.meters.items():
            if who == "method" and meter is not step.method.meter:
                continue  # the step has become the fallback's
            mask = context._mask if len(step.branches) == 1 else None
            asked = replace(context, branch=number, level=branch.level, memory=step.measured[who], _mask=mask)
            found += [(who, look) for look in meter.looks(asked, branch)]
        return found

    def _pairs(self, step: StepInProgress, branch: Branch, decided: BranchPlan) -> Generator[Pass, None, list[Pair]]:
        at_x, decided.at_x = decided.at_x, None
        if decided.begin is None:
            return [Pair() for _ in decided.looks]
        known = at_x if branch.base.is_nowhere and at_x is not None else step.gradient_at_x()
        pairs = Pairs(self.passing, step, branch, decided.choice, decided.begin, known)
        return (yield from pairs.of([look for _, look in decided.looks]))

    def _train(
        self, step: StepInProgress, branch: Branch, decided: BranchPlan, last: bool
    ) -> Generator[Pass, None, None]:
        perturbation, within = decided.choice.perturbation or perturbations.nowhere(), decided.choice.within
        last = last and step.guard is None
        trained = self.passing.run(step, branch, perturbation, last=last, counts=True, within=within)
        decided.choice = decided.choice.without_gradient()  # backward needs its memory
        del perturbation
        return trained

    def _show(
        self, step: StepInProgress, decided: BranchPlan, pairs: list[Pair], choice: Choice
    ) -> tuple[Choice, bool]:
        """Meters and the guard see their pairs; α is asked for again if the method's own meter has measured."""
        if not decided.looks:
            return choice, False
        noise, here, refused = RandomState(self.parameters.model), self.passing.here(), False
        for (who, look), pair in zip(decided.looks, pairs, strict=True):
            sight = self._sight(step, look, pair, choice, here)
            if who == _GUARD and step.guard is not None:
                refused = step.guard.judge(step.context, sight)
            elif not (refused and look.alone):  # of the gradient that is refused nothing is kept
                shown = replace(sight, context=replace(sight.context, memory=step.measured[who]))
                step.note_measurement(who, self.meters[who].measure(shown))
            if who == "method":
                choice = rescaled(step.method, choice)
                self._refuse(step, choice)
        noise.restore()
        return choice, refused

    def _sight(
        self, step: StepInProgress, look: GradientRequest, pair: Pair, choice: Choice, here: Vector
    ) -> GradientPair:
        context, at_x = pair.context or choice.context, here if pair.at_x is None else pair.at_x
        at_perturbed = here if pair.at_perturbed is None else pair.at_perturbed
        ddp = data_parallel(self.passing.given)
        return GradientPair(
            look,
            context,
            at_x,
            at_perturbed,
            moved=pair.distance(context.mask, at_x),
            quiet=pair.quiet,
            loss=step.losses[-1][1] if step.losses else None,
            rate=None if self.update.rate is None else self.update.rate * (choice.scale or 0.0),
            group=None if ddp is None else ddp.process_group,
        )

    def _choose(self, step: StepInProgress, number: int, branch: Branch, at_x: Vector | None = None) -> Choice:
        t, seed, memory, measured = step.context.t, step.context.seed, step.context.memory, step.context.measured
        context = Context(t, seed, self.parameters, memory, number, branch.level, measured, _gradient=at_x)
        choice = choose(step.method, branch, context)
        self._refuse(step, choice, structural=branch.base.is_structural)
        step.by_gradient |= choice.needs_gradient
        return choice

    def _refuse(self, step: StepInProgress, choice: Choice, *, structural: bool = False) -> None:
        try:
            if choice.mask is not None:
                self.update.refuse(choice.mask, choice.scale if choice.scale is not None else 1.0)
            if structural or (choice.perturbation is not None and choice.perturbation.is_structural):
                require_unused_search(self.passing.given)
        except (NotImplementedError, ValueError):
            if step.undo is not None:
                step.undo.restore()  # a refusal leaves no trace, though a pass came before it
            raise

    def _instead(self, step: StepInProgress, method: Method, start: Snapshot) -> Generator[Pass, None, None]:
        """What was taken and remembered is dropped; another method's gradient is taken from where the step began."""
        vectors.clear(self.parameters.values())
        start.restore()
        step.turn_to(method, step.context)
        # What there was to see was seen; what is kept of a trained gradient is kept of the one that is applied.
        kept = [(who, look) for who, look in step.looks[0] if look.alone]
        step.looks = [[(who, replace(look, branch=b)) for who, look in kept] for b in step.branches]
        for number, branch in enumerate(step.branches):
            yield from self.branch(step, number, branch)

    def _overflowed(self, step: StepInProgress, last: bool) -> bool:
        """Unscale what lies in `.grad`. Of the last branch the scaler itself does it, and learns of overflows."""
        scaler = self.passing.scaler
        if scaler.enabled and last:
            step.overflow = scaler.unscale_in_place(self.passing.here())
        elif scaler.enabled:
            here = self.passing.here()
            scaler.unscale(here)
            if not vectors.are_finite(self.parameters):
                self._overflow(step, here)
        return step.overflow

    def _include(self, step: StepInProgress, branch: Branch, choice: Choice) -> None:
        assert choice.mask is not None and choice.scale is not None  # nothing waits for a gradient any more
        step.include(choice.mask, choice.scale, choice.context)
        if len(step.branches) > 1 or branch.weight != 1:
            vectors.mask_(self.parameters, choice.mask)
            gradient = vectors.take(self.parameters, clone=gradients_are_views(self.passing.given))
            vectors.add(step.total, gradient, step.weight(branch))

    def _overflow(self, step: StepInProgress, at_x: Vector) -> None:
        """The scaler learns of an overflow only from `.grad`."""
        vectors.put(self.parameters, at_x)
        self.passing.scaler.unscale_in_place(at_x)
        step.overflow = True
