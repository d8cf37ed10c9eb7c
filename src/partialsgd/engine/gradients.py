"""The gradient oracle (g_t): which passes a step needs, in which order, and what is done with each gradient."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from partialsgd import vectors
from partialsgd._util import shards
from partialsgd._util.snapshots import Buffers, Snapshot
from partialsgd.engine import cached_outputs
from partialsgd.engine.cached_outputs import CachedOutputs
from partialsgd.engine.data_parallel import (
    GradientsToSend,
    SendsActivePart,
    require_all_used,
    require_unused_search,
)
from partialsgd.engine.gradient_pass import GradientPass, MakeContext
from partialsgd.engine.nonfinite import NonfinitePolicy, are_finite
from partialsgd.engine.rules import BranchPlan, choose, correct, narrow
from partialsgd.engine.step import StepInProgress
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, everything, uncorrected
from partialsgd.optimizers.grad_scaler import Scaler
from partialsgd.parameters import Parameters, require_strided
from partialsgd.perturbations import NOWHERE, Displacement, Perturbation
from partialsgd.vectors import Vector


@final
@dataclass(frozen=True)
class GradientOracle:
    """Asks the user's code for as many gradients as a step needs, and leaves the gradient of the update in `.grad`."""

    model: nn.Module
    """The model as the user passed it, with its wrappers."""
    parameters: Parameters
    scaler: Scaler | None
    policy: NonfinitePolicy
    check_update: Callable[[Mask, float], None]
    """Raises if an optimizer cannot apply this mask and this α exactly."""
    ddp: DistributedDataParallel | SendsActivePart | None
    all_ones: Mask
    masks_elements: bool
    """The gradient must be zero outside the mask even if the user does not see it, for clipping or for decay."""

    @property
    def clones(self) -> bool:
        """True if `.grad` is a view into a buffer of DistributedDataParallel that the next backward overwrites."""
        return self.ddp is not None and bool(self.ddp.gradient_as_bucket_view)

    def passes(self, step: StepInProgress) -> Generator[GradientPass, None, None]:
        """Lines 2 to 5 of Algorithm 1: one pass for each gradient that the step needs."""
        try:
            for number in range(len(step.branches)):
                yield from self._branch(step, number)
                if step.overflow:
                    break
            self._finish(step)
        except BaseException:  # also when the user's loop ends early, which closes this generator
            step.drop()
            raise

    def _branch(self, step: StepInProgress, number: int) -> Generator[GradientPass, None, None]:
        """The pass at x̃_t, and before it the passes that rules and meters need."""
        branch, model, measurement = step.branches[number], self.parameters.model, step.measurement
        last = number + 1 == len(step.branches)
        if step.buffers is None and not last:
            step.buffers = Buffers(model)
        plan = self._choose(step, number)  # lines 2 and 3: p_t and δx_t
        waits, pairs, at_x = plan.needs_gradient, [], None
        requests = [] if measurement is None else measurement.ask(step, plan)
        if isinstance(self.ddp, SendsActivePart):
            is_read = self._reads_trained(step) or (waits and not plan.leaves_base)
            self.ddp.check_trained([step.weight(branch) for branch in step.branches], is_read=is_read)
        start = begin = None
        if waits or (measurement is not None and measurement.takes_passes(number)):
            start = begin = Snapshot(model)
            step.buffers = step.buffers or start.buffers
        if waits and start is not None and plan.leaves_base:
            g = self.start_pass(step, branch, branch.base, keeps_parts=plan.reads_parts)
            yield g
            at_x = self.take(step, g, branch)
            parts = self._unscaled_parts(g)
            if self.policy.is_overflow(step, at_x):
                self._note_overflow(step, at_x)
                return
            start.noise.restore()  # both gradients are of one function: same batch, same noise
            plan, begin, waits = self._choose(step, number, at_x, parts), Snapshot(model), False
        if requests and measurement is not None and begin is not None:
            at_x = at_x if branch.base.is_nowhere else None
            pairs = yield from measurement.passes(self, step, plan, begin, at_x)
        at_x = None
        is_last = last and (measurement is None or measurement.guard is None)
        on_move = next((pair.record_move for pair in pairs if pair.moves), None)  # it takes that pair's gradient at x̃
        perturbation = plan.perturbation or NOWHERE
        g = self.start_pass(
            step,
            branch,
            perturbation,
            last=is_last,
            within=plan.within,
            on_move=on_move,
            keeps_parts=waits and plan.reads_parts,
            sends=self._sends(step, plan),
        )
        del perturbation  # it may hold the gradient at x_t, whose memory the trained pass needs
        plan.release_gradient()
        yield g  # lines 4 and 5: g_t at x̃_t = x_t + δx_t
        self.end_pass(step, g, branch)
        if self.scaler is not None and self._overflowed(step, self.scaler, last):
            return
        if begin is not start and begin is not None:
            begin.buffers.restore()  # BatchNorm keeps the statistics of the pass at x_t
        elif waits:
            plan = self._choose(step, number, vectors.current(self.parameters), self._unscaled_parts(g))
        if measurement is not None:
            if number == 0 and start is not None and plan.is_at_x and measurement.takes_passes(1):
                measurement.keep_at_x(start.noise, vectors.current(self.parameters))
            if requests and measurement.show(self, step, plan, pairs):
                assert start is not None  # a guard takes passes
                yield from self._fallback(step, start)
                return
        self._include(step, plan)

    def start_pass(
        self,
        step: StepInProgress,
        branch: Branch,
        perturbation: Perturbation,
        *,
        last: bool = False,
        within: MakeContext | None = None,
        on_move: Callable[[Displacement], None] | None = None,
        keeps_parts: bool = False,
        sends: GradientsToSend = GradientsToSend(),  # noqa: B008  # frozen
    ) -> GradientPass:
        if step.dropped:
            step.refuse_dropped()
        if step.once and not last:
            raise RuntimeError(
                f"{step.method.name} (or its meter) needs more than one gradient at t = {step.context.t}: keep the "
                "micro-batches and use sgd.gradients() without once=True, or sgd.step(closure)"
            )
        outputs = step.teacher if step.branches_done else None
        repeated = self._cached_outputs(step) if branch.repeats else None
        step.current = GradientPass(
            self.parameters,
            perturbation,
            step,
            level=branch.level,
            last=last,
            clones=self.clones,
            keeps_parts=keeps_parts,
            teacher=branch.teacher or (lambda: outputs),
            caches=branch.caches,
            repeated=repeated,
            within=within,
            on_move=on_move,
            sender=self.ddp if isinstance(self.ddp, SendsActivePart) else None,
            sends=sends,
        )
        return step.current

    def _cached_outputs(self, step: StepInProgress) -> list[CachedOutputs]:
        return cached_outputs.read(step.context.memory, next(iter(self.parameters.values())).device)

    def sending_all(self) -> AbstractContextManager[None]:
        """A context for passes of a meter that do not run the user's closure: it exchanges all their gradients."""
        return self.ddp.sending(GradientsToSend()) if isinstance(self.ddp, SendsActivePart) else nullcontext()

    def _sends(self, step: StepInProgress, plan: BranchPlan) -> GradientsToSend:
        """Return what to exchange of the trained gradient: the part in the mask, or all if a rule or meter reads it."""
        if not isinstance(self.ddp, SendsActivePart):
            return GradientsToSend()
        reads_all = plan.needs_gradient or self._reads_trained(step)
        return GradientsToSend(None if reads_all else plan.mask, plan.context.with_gradient(None), self.scaler)

    def _reads_trained(self, step: StepInProgress) -> bool:
        """True if a meter, a guard or the rule `correct` reads the gradient that the step trains with."""
        is_measured = step.measurement is not None and step.measurement.is_due
        return is_measured or step.method.correct is not uncorrected

    def end_pass(self, step: StepInProgress, g: GradientPass, branch: Branch | None = None) -> None:
        """Count a pass; one that a branch needs itself, and not a measurement, gives its loss too."""
        losses, outputs = g.finish()
        step.current = None  # it refers to the step: a cycle would keep its gradients
        if isinstance(self.ddp, DistributedDataParallel):
            require_all_used(self.ddp, self.parameters)
        step.backwards += len(losses)
        if branch is not None:
            step.record(branch, losses, outputs)
            if branch.caches or branch.repeats:
                step.cached = g.cached()

    def take(self, step: StepInProgress, g: GradientPass, branch: Branch | None = None) -> Vector:
        """Count a pass, and move its gradient out of `.grad`, unscaled."""
        self.end_pass(step, g, branch)
        gradient = vectors.take(self.parameters, clone=self.clones)
        if self.scaler is not None:
            self.scaler.unscale(gradient)
        return gradient

    def check(self, step: StepInProgress, plan: BranchPlan) -> None:
        """Raise if the plan cannot be carried out exactly; passes that came before leave no trace."""
        try:
            if plan.mask is not None:
                self.check_update(plan.mask, 1.0 if plan.scale is None else plan.scale)
            self.require_unused_search(plan)
        except (NotImplementedError, ValueError):
            if step.buffers is not None:
                step.buffers.restore()
            raise

    def require_unused_search(self, plan: BranchPlan) -> None:
        """Raise if the pass leaves parameters out and DistributedDataParallel does not search for unused ones."""
        if self.ddp is not None and any(p and p.is_structural for p in (plan.branch.base, plan.perturbation)):
            require_unused_search(self.model)

    def _unscaled_parts(self, g: GradientPass) -> Sequence[Vector]:
        if self.scaler is not None:
            for part in g.parts or ():
                self.scaler.unscale(part)
        return g.parts or ()

    def _choose(
        self, step: StepInProgress, number: int, at_x: Vector | None = None, parts: Sequence[Vector] = ()
    ) -> BranchPlan:
        branch, before = step.branches[number], step.context
        context = Context(before.t, before.seed, self.parameters, before.memory, number, branch.level, before.measured)
        if at_x is not None:
            context = context.with_gradient(at_x)
        plan = choose(step.method, branch, context.with_gradients(parts) if parts else context, self.all_ones)
        self.check(step, plan)
        return plan

    def _fallback(self, step: StepInProgress, start: Snapshot) -> Generator[GradientPass, None, None]:
        """The guard has refused: drop the gradient, and take that of the fallback from where the step began."""
        assert step.measurement is not None and step.measurement.guard is not None  # it has refused
        vectors.put(self.parameters, {})
        start.restore()
        step.method = step.measurement.guard.fallback
        step.branches = step.method.branches_at(step.context)
        step.losses.clear()
        step.measurement.follow_fallback(step)
        for number in range(len(step.branches)):
            yield from self._branch(step, number)

    def _include(self, step: StepInProgress, plan: BranchPlan) -> None:
        """The branch is done; if there are several, its masked gradient is added to the sum."""
        assert plan.mask is not None and plan.scale is not None  # nothing waits for a gradient any more
        step.include(plan.mask, plan.scale, plan.context)
        if len(step.branches) > 1 or plan.branch.weight != 1:
            mask_gradients(self.parameters, plan.mask)
            if step.method.mask is not everything:  # it may compare the branches' gradients
                gradient = vectors.current(self.parameters)
                step.gradients.append(Vector({name: g.clone() for name, g in gradient.items()}))
            vectors.add(step.total, vectors.take(self.parameters, clone=self.clones), step.weight(plan.branch))

    def _finish(self, step: StepInProgress) -> None:
        """Leave g ← p ⊙ g in `.grad`, after `correct`. Elements outside the mask are zeroed only if something reads
        them before the update, which holds everything outside the mask anyway."""
        if step.total and not step.overflow:
            vectors.put(self.parameters, step.total)
        step.context = step.context.for_update(step.branches[0].level, step.mask)
        if step.method.branches is not None and step.method.mask is not everything and not step.overflow:
            self._narrow(step)
        if step.cached or (step.context.memory and cached_outputs.cached_level(step.context.memory) is not None):
            cached_outputs.write(step.context.memory, step.level, step.cached)
        if step.method.correct is not uncorrected and not step.overflow:
            vectors.put(self.parameters, correct(step.method, step.context, vectors.current(self.parameters)))
        if not step.mask.is_everything:
            # On an accelerator the check for NaN reads all elements, so those outside must be zero.
            is_elsewhere = any(m.device.type != "cpu" for m in step.mask.partial.values())
            elements = self.masks_elements or is_elsewhere or not step.by_closure
            mask_gradients(self.parameters, step.mask, elements=elements)
        step.has_gradient = any(p.grad is not None for p in self.parameters.values())
        step.complete = True

    def _narrow(self, step: StepInProgress) -> None:
        """Narrow the union of the branches' masks by the method's rule `mask`, which may read their gradients."""
        narrowed = narrow(step.method, step.context, step.gradients or [vectors.current(self.parameters)])
        step.gradients.clear()
        if narrowed is not step.mask:
            self.check_update(narrowed, step.scale)
            step.mask, step.context = narrowed, step.context.with_mask(narrowed)

    def _overflowed(self, step: StepInProgress, scaler: Scaler, last: bool) -> bool:
        """Unscale the gradients in `.grad`. For the last branch the scaler itself does it, and records overflows."""
        gradient = vectors.current(self.parameters)
        if last:
            step.overflow = scaler.unscale_in_place(gradient)
        else:
            scaler.unscale(gradient)
            if not are_finite(self.parameters):
                self._note_overflow(step, gradient)
        return step.overflow

    def _note_overflow(self, step: StepInProgress, gradient: Vector) -> None:
        vectors.put(self.parameters, gradient)
        if self.scaler is not None:
            self.scaler.unscale_in_place(gradient)  # it records an overflow only from `.grad`
        step.overflow = True


@torch.no_grad()
def mask_gradients(parameters: Parameters, mask: Mask, *, elements: bool = True) -> None:
    """g ← p ⊙ g in `.grad`; a tensor wholly outside gets None, because a zero gradient is not a mask."""
    for name, entry in mask.entries.items():
        if entry is True:
            continue
        parameter = parameters[name]
        if entry is False:
            parameter.grad = None
        elif elements and parameter.grad is not None:
            require_strided(name, parameter.grad)
            mask.selection(name).keep_inside(shards.local(parameter.grad) if parameters.is_sharded else parameter.grad)
