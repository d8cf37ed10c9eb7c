"""Extra passes for meters and guards: the gradients at x and at x̃ that they ask for, and no pass that is not needed.

Both gradients of a pair are of one function: the same batch, and the same noise. Where x and x̃ do not draw the same
noise (a narrow level has smaller dropout masks), both are taken with dropout off.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

import torch
from torch import Tensor

from partialsgd import perturbations, vectors
from partialsgd._util import shards
from partialsgd._util.snapshots import RandomState, Snapshot, draws, dropout_off
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.engine.rules import BranchPlan, ask, choose
from partialsgd.engine.step import StepInProgress
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, GradientPair, GradientRequest, Guard, Losses, Meter, Method, Remembered
from partialsgd.perturbations import NOWHERE, Displacement, Perturbation
from partialsgd.vectors import Vector, inner

if TYPE_CHECKING:
    from partialsgd.engine.gradients import GradientOracle

T = TypeVar("T")
Passes: TypeAlias = Generator[GradientPass, None, T]
"""Yields the passes that the user's code must run, and returns what came of them."""

_GUARD = "guard"
_PLAIN = Method()


@final
@dataclass
class Measurement:
    """The requests of one step's meters and guard, and their results."""

    meters: Mapping[str, Meter]
    """"method" for the method's own meter, "meter" for the user's."""
    memories: dict[str, dict[str, Remembered]]
    step_size: float | None
    """γ of plain SGD with its momentum, without α."""
    guard: Guard | None = None
    """The guard that judges this step."""
    results: list[Any] = field(default_factory=list)
    _requests: list[list[tuple[str, GradientRequest]]] = field(default_factory=list)
    _at_x: tuple[RandomState, Vector] | None = None
    """The gradient at x of the first branch, and the noise that it began with, for the requests of the others."""

    def ask(self, step: StepInProgress, plan: BranchPlan) -> list[tuple[str, GradientRequest]]:
        """Ask guard and meters for their requests in this branch. All branches are asked for before the first one."""
        if not self._requests:
            noise = RandomState(plan.context.parameters.model) if self.meters else None
            self._requests = [self._ask(step, number, plan.context) for number in range(len(step.branches))]
            if noise is not None:
                noise.restore()  # a meter may draw to choose its batches
        return self._requests[plan.context.branch]

    @property
    def is_due(self) -> bool:
        """True if a branch of this step has a request."""
        return any(self._requests)

    def takes_passes(self, first: int) -> bool:
        """True if a branch from this one on has a request that needs a pass of its own."""
        return any(not request.trained_only for requests in self._requests[first:] for _, request in requests)

    def keep_at_x(self, noise: RandomState, gradient: Vector) -> None:
        self._at_x = (noise, Vector({name: g.clone() for name, g in gradient.items()}))

    def passes(
        self, oracle: GradientOracle, step: StepInProgress, plan: BranchPlan, begin: Snapshot, at_x: Vector | None
    ) -> Passes[list[_Pair]]:
        """The passes that the requests of this branch need beside the trained one."""
        if at_x is None and self._at_x is not None and self._at_x[0].is_now:
            at_x = self._at_x[1]  # a pass at x would begin with the same noise now
        taker = _PairTaker(oracle, step, plan, begin, at_x)
        return taker.pairs([request for _, request in self._requests[plan.context.branch]])

    def show(self, oracle: GradientOracle, step: StepInProgress, plan: BranchPlan, pairs: Sequence[_Pair]) -> bool:
        """Show the pairs to meters and guard, and return True if the guard refuses the step. α is asked for again
        when the method's own meter has measured. Without pairs, all requests are for the trained gradient."""
        noise, trained, refused = RandomState(oracle.parameters.model), vectors.current(oracle.parameters), False
        requests = self._requests[plan.context.branch]
        for (who, request), taken in zip(requests, pairs or [_Pair()] * len(requests), strict=True):
            context, at_x = taken.context or plan.context, trained if taken.at_x is None else taken.at_x
            pair = GradientPair(
                request,
                context,
                at_x,
                trained if taken.at_perturbed is None else taken.at_perturbed,
                perturbation_norm=taken.perturbation_norm(context.mask, at_x),
                dropout_was_off=taken.dropout_was_off,
                loss=step.losses[-1][1] if step.losses else None,
                step_size=None if self.step_size is None else self.step_size * (plan.scale or 0.0),
                process_group=None if oracle.ddp is None else oracle.ddp.process_group,
            )
            if who == _GUARD and self.guard is not None:
                refused = self.guard.judge(step.context, pair)
            elif not (refused and request.trained_only):  # nothing is remembered of a gradient that is refused
                self._measure(who, pair)
            if who == "method":
                plan.scale = ask(step.method.scale, plan.context, "scale", (int, float))
                if plan.scale is None:
                    raise RuntimeError(
                        f"the rule 'scale' of {step.method.name} reads context.gradient, which is gone when its meter "
                        "has measured; read context.measured"
                    )
                oracle.check(step, plan)
        noise.restore()
        return refused

    def follow_fallback(self, step: StepInProgress) -> None:
        """Continue with the fallback after a refusal: requests for the trained gradient now get the fallback's."""
        moved = [(who, request) for who, request in self._requests[0] if request.trained_only]
        self._requests = [[(who, replace(request, branch=b)) for who, request in moved] for b in step.branches]
        self.guard = None

    def _ask(self, step: StepInProgress, number: int, context: Context) -> list[tuple[str, GradientRequest]]:
        branch = step.branches[number]
        requests = [] if self.guard is None else [(_GUARD, GradientRequest(branch))]
        context = replace(context, branch=number, level=branch.level)
        if len(step.branches) > 1:
            context = context.with_mask(None)  # it is the first branch's
        for who, meter in self.meters.items():
            if who == "meter" or meter is step.method.meter:  # else the step has become the fallback's
                asked = replace(context, memory=self.memories[who])
                requests += [(who, request) for request in meter.requests(asked, branch)]
        return requests

    def _measure(self, who: str, pair: GradientPair) -> None:
        own = replace(pair, context=replace(pair.context, memory=self.memories[who]))
        result = self.meters[who].measure(own)
        if result is not None and (who == "meter" or "meter" not in self.meters):
            self.results.append(result)


@final
@dataclass
class _Pair:
    """The gradients taken for a request. One that is None is the trained gradient, which is taken last."""

    at_x: Vector | None = None
    at_perturbed: Vector | None = None
    context: Context | None = None
    """The context of a branch that is not trained; None for the trained one."""
    moves: bool = False
    """True if δx changes numbers of x; the pass at x̃ measures how far."""
    structural: bool = False
    inside: Mask | None = None
    dropout_was_off: bool = False
    moved: float | Tensor = 0.0
    """‖δx‖² of the changed numbers; if a smaller network runs, only of those inside it."""

    def record_move(self, displacement: Displacement) -> None:
        if self.moves:
            self.moves, self.moved = False, perturbations.squared_norm(displacement, self.inside)

    def perturbation_norm(self, mask: Mask, at_x: Vector) -> float | Tensor:
        """Return ‖δx‖. A smaller network runs as if the parameters outside it were zero: there δx is −x, for those that
        the pass at x has used."""
        outside = squared_norm_outside(self.inside or mask, at_x) if self.structural else 0.0
        on_cpu = all(not isinstance(number, Tensor) or number.device.type == "cpu" for number in (self.moved, outside))
        if on_cpu:
            return math.hypot(math.sqrt(self.moved), math.sqrt(outside))
        return torch.as_tensor(self.moved + outside).sqrt()


@final
@dataclass
class _PairTaker:
    """Takes the pairs of one branch of one step."""

    oracle: GradientOracle
    step: StepInProgress
    plan: BranchPlan
    begin: Snapshot
    at_x: Vector | None
    """The gradient at x, once it is known."""
    _noise_after: dict[bool, RandomState] = field(default_factory=dict)
    """The generator after a pass at x (True) and after one at x̃ (False)."""

    def pairs(self, requests: Sequence[GradientRequest]) -> Passes[list[_Pair]]:
        own: _Pair | None = None
        pairs: list[_Pair] = []
        for request in requests:
            is_own = request.branch is self.plan.branch
            if request.trained_only or (is_own and self.plan.is_plain):
                pairs.append(_Pair())
            elif not is_own:
                pairs.append((yield from self._other_branch(request)))
            elif request.losses is not None:
                pairs.append((yield from self._pair(request, self.plan)))
            else:
                own = own or (yield from self._pair(request, self.plan))
                pairs.append(own)
        return pairs

    def _other_branch(self, request: GradientRequest) -> Passes[_Pair]:
        """A branch that is not trained: its rules are asked as if it were, and remember nothing."""
        context = replace(self.plan.context, level=request.branch.level, memory={}).with_mask(None).with_gradient(None)
        plan = choose(_PLAIN, request.branch, context, self.oracle.all_ones)
        if plan.needs_gradient:
            if self.at_x is None:
                self.at_x = yield from self._take(_whole(request.branch), NOWHERE)
            plan = choose(_PLAIN, request.branch, context.with_gradient(self.at_x), self.oracle.all_ones)
        self.oracle.require_unused_search(plan)
        pair = yield from self._pair(request, plan)
        pair.context = plan.context.with_gradient(None)
        return pair

    def _pair(self, request: GradientRequest, plan: BranchPlan) -> Passes[_Pair]:
        perturbation, branch = plan.perturbation, request.branch
        assert perturbation is not None  # a gradient that it needs was taken before
        parameters = self.oracle.parameters
        self._noise_after.pop(False, None)  # another request has another x̃
        inside = None if perturbation.inside is None else perturbation.inside(parameters)
        pair = _Pair(moves=bool(perturbation.touches), structural=perturbation.is_structural, inside=inside)
        may_differ = perturbation.is_structural and not branch.same_noise
        pair.dropout_was_off = may_differ and draws(parameters.model)
        yield from self._gradients(request, perturbation, pair)
        if may_differ and not pair.dropout_was_off and not (yield from self._draws_alike(branch, perturbation, pair)):
            pair.dropout_was_off = True
            yield from self._gradients(request, perturbation, pair)
        return pair

    def _draws_alike(self, branch: Branch, perturbation: Perturbation, pair: _Pair) -> Passes[bool]:
        """True if both passes draw the same noise, though no dropout module does. Most networks draw nothing;
        Hugging Face's layers draw one number each, which a narrow level does too."""
        begin = self.begin.noise
        if all(begin.has_drawn_like(end, begin) for end in self._noise_after.values()):
            return True
        if True not in self._noise_after:  # a pass that was not needed so far
            yield from self._take(_whole(branch), NOWHERE)
        if False not in self._noise_after:
            yield from self._take(branch, perturbation, pair)
        return self._noise_after[True].has_drawn_like(self._noise_after[False], begin)

    def _gradients(self, request: GradientRequest, perturbation: Perturbation, pair: _Pair) -> Passes[None]:
        branch = request.branch
        if request.losses is not None:
            pair.at_x = pair.at_perturbed = self._over(request.losses[0], NOWHERE, pair)
            if not perturbation.is_nowhere:
                pair.at_perturbed = self._over(request.losses[1], perturbation, pair)
        elif pair.dropout_was_off:
            pair.at_x = yield from self._take(_whole(branch), NOWHERE, pair)
            pair.at_perturbed = yield from self._take(branch, perturbation, pair)
        else:
            if self.at_x is None and not self.plan.is_at_x:
                self.at_x = yield from self._take(_whole(branch), NOWHERE)
            pair.at_x = self.at_x
            if branch is not self.plan.branch:
                is_same = perturbation.is_nowhere
                pair.at_perturbed = self.at_x if is_same else (yield from self._take(branch, perturbation, pair))

    def _take(self, branch: Branch, perturbation: Perturbation, pair: _Pair | None = None) -> Passes[Vector]:
        """One pass by the user's code, which leaves no trace."""
        model, is_off = self.oracle.parameters.model, pair is not None and pair.dropout_was_off
        within = (lambda: dropout_off(model)) if is_off else None
        on_move = None if pair is None or not pair.moves else pair.record_move
        g = self.oracle.start_pass(self.step, branch, perturbation, within=within, on_move=on_move)
        yield g
        gradient = self.oracle.take(self.step, g)
        self._begin_again(at_x=perturbation.is_nowhere)
        return gradient

    def _over(self, losses: Losses, perturbation: Perturbation, pair: _Pair) -> Vector:
        """The mean gradient of the losses that a request brings along."""
        parameters = self.oracle.parameters
        within = dropout_off(parameters.model) if pair.dropout_was_off else None
        with perturbations.perturbed(parameters, perturbation, within, pair.record_move), self.oracle.sending_all():
            for loss in losses:
                torch.autograd.backward(_require_loss(loss()))
        self.step.backwards += len(losses)
        gradient = vectors.take(parameters, clone=self.oracle.clones)
        torch._foreach_div_(shards.locals_of(gradient.values()), len(losses))
        self._begin_again(at_x=perturbation.is_nowhere)
        return gradient

    def _begin_again(self, *, at_x: bool) -> None:
        self._noise_after[at_x] = RandomState(self.oracle.parameters.model)
        self.begin.restore()


def _whole(branch: Branch) -> Branch:
    """The branch as a pass at x runs it: the full level, without a teacher."""
    level = branch.whole or branch.level
    return replace(branch, level=level, teacher=lambda: None, caches=False, repeats=False)


def _require_loss(loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ValueError(
            f"loss(batch) must return the loss as one number that depends on the model, without backward; got {loss!r}"
        )
    return loss


@torch.no_grad()
def squared_norm_outside(mask: Mask, used: Vector) -> float | Tensor:
    """‖(1 − p) ⊙ x‖² over the parameters that took part."""
    squares: list[Tensor] = []
    outside = [name for name in used if mask[name] is not True]
    for name in outside:
        entry, x = mask[name], mask.parameters[name]
        left_out = shards.local(x)
        if isinstance(entry, Tensor):
            left_out = left_out.masked_fill(shards.local(entry), 0)
        squares.append(inner(left_out, left_out))
    return vectors.total(squares, [mask.parameters[name] for name in outside])
