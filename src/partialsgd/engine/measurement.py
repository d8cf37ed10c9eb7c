"""(G, G̃): the passes that a look needs beside the trained one, and none that it does not need.

Both gradients of a pair are of one function: the same batch, and the same noise. Where x and x̃ do not draw the same
noise (a narrow level has smaller dropout masks), both are taken with dropout off.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from partialsgd import perturbations
from partialsgd._util.snapshots import RandomState, Snapshot, draws, dropout_off
from partialsgd.distributed.wrappers import require_unused_search
from partialsgd.engine.gradient_pass import Pass
from partialsgd.engine.passing import Passing
from partialsgd.engine.rules import Choice, choose
from partialsgd.engine.step import StepInProgress
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, GradientRequest, Losses, Method
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector, inner

_PLAIN = Method()


@final
@dataclass(frozen=True)
class Pair:
    """A gradient that is None is the one that the step trains with, which is still to be taken."""

    at_x: Vector | None = None
    at_perturbed: Vector | None = None
    context: Context | None = None
    """Of another branch than the trained one."""
    moved: float = 0.0
    """‖δx‖ of numbers; where the structure is another one too, inside of it."""
    structural: bool = False
    inside: Mask | None = None
    quiet: bool = False

    def distance(self, mask: Mask, at_x: Vector) -> float:
        """‖δx‖; what another structure leaves out is x outside of it, as far as the pass at x has used it."""
        return math.hypot(self.moved, outside(self.inside or mask, at_x)) if self.structural else self.moved


@final
@dataclass
class Pairs:
    """The pairs of one branch of one step."""

    passing: Passing
    step: StepInProgress
    branch: Branch
    choice: Choice
    begin: Snapshot
    at_x: Vector | None
    """G, where it is known already."""
    _ends: dict[bool, RandomState] = field(default_factory=dict)
    """Where the generator was after a pass at x (True) and after one at x̃."""

    def of(self, looks: Sequence[GradientRequest]) -> Generator[Pass, None, list[Pair]]:
        own: Pair | None = None
        found: list[Pair] = []
        for look in looks:
            if look.alone or (look.branch is self.branch and self._is_plain):
                found.append(Pair())
            elif look.branch is not self.branch:
                found.append((yield from self._other(look)))
            elif look.over is not None:
                found.append((yield from self._pair(look, self.choice)))
            else:
                own = own or (yield from self._pair(look, self.choice))
                found.append(own)
        return found

    @property
    def _is_plain(self) -> bool:
        """p = 1 and δx = 0: everything is 1 whatever it is measured on."""
        return self.choice.is_at_x and self.choice.mask is not None and self.choice.mask.is_everything

    def _other(self, look: GradientRequest) -> Generator[Pass, None, Pair]:
        """A branch that is not trained: its rules are asked as if it were, and remember nothing."""
        context = replace(self.choice.context, level=look.branch.level, memory={}, _mask=None, _gradient=None)
        choice = choose(_PLAIN, look.branch, context)
        if choice.needs_gradient:
            if self.at_x is None:
                self.at_x = yield from self._look(_whole(look.branch), perturbations.nowhere())
            choice = choose(_PLAIN, look.branch, replace(context, _gradient=self.at_x))
        if choice.perturbation is not None and choice.perturbation.is_structural:
            require_unused_search(self.passing.given)
        pair = yield from self._pair(look, choice)
        return replace(pair, context=replace(choice.context, _gradient=None))

    def _pair(self, look: GradientRequest, choice: Choice) -> Generator[Pass, None, Pair]:
        perturbation = choice.perturbation
        assert perturbation is not None  # a gradient that it waits for was taken before
        parameters = self.passing.parameters
        self._ends.pop(False, None)  # another look has another x̃
        inside = None if perturbation.inside is None else perturbation.inside(parameters)
        moved = perturbations.distance(parameters, perturbation, inside)
        pair = Pair(moved=moved, structural=perturbation.is_structural, inside=inside)
        differs = perturbation.is_structural and not look.branch.same_noise
        quiet = differs and draws(parameters.model)
        g, h = yield from self._gradients(look, perturbation, quiet=quiet)
        if differs and not quiet and not (yield from self._draws_alike(look, perturbation)):
            quiet = True
            g, h = yield from self._gradients(look, perturbation, quiet=True)
        return replace(pair, at_x=g, at_perturbed=h, quiet=quiet)

    def _draws_alike(self, look: GradientRequest, perturbation: Perturbation) -> Generator[Pass, None, bool]:
        """Whether both passes see the same noise though no module of dropout makes it. Most networks draw nothing;
        Hugging Face's layers draw one number each, which a narrow level does too."""
        if all(self.begin.noise.has_drawn_like(end, self.begin.noise) for end in self._ends.values()):
            return True
        for at_x, branch in ((True, _whole(look.branch)), (False, look.branch)):
            if at_x not in self._ends:  # a pass that was not needed so far
                yield from self._look(branch, perturbations.nowhere() if at_x else perturbation)
        return self._ends[True].has_drawn_like(self._ends[False], self.begin.noise)

    def _gradients(
        self, look: GradientRequest, perturbation: Perturbation, *, quiet: bool
    ) -> Generator[Pass, None, tuple[Vector | None, Vector | None]]:
        branch = look.branch
        if look.over is not None:
            g = self._over(look.over[0], perturbations.nowhere(), quiet)
            return g, g if perturbation.is_nowhere else self._over(look.over[1], perturbation, quiet)
        if quiet:
            g = yield from self._look(_whole(branch), perturbations.nowhere(), quiet=True)
            return g, (yield from self._look(branch, perturbation, quiet=True))
        if self.at_x is None and not self.choice.is_at_x:
            self.at_x = yield from self._look(_whole(branch), perturbations.nowhere())
        if branch is self.branch:
            return self.at_x, None
        if perturbation.is_nowhere:
            return self.at_x, self.at_x
        return self.at_x, (yield from self._look(branch, perturbation))

    def _look(
        self, branch: Branch, perturbation: Perturbation, *, quiet: bool = False
    ) -> Generator[Pass, None, Vector]:
        within = dropout_off(self.passing.parameters.model) if quiet else None
        gradient = yield from self.passing.look(self.step, branch, perturbation, within=within)
        self._begin_again(at_x=perturbation.is_nowhere)
        return gradient

    def _over(self, losses: Losses, perturbation: Perturbation, quiet: bool) -> Vector:
        within = dropout_off(self.passing.parameters.model) if quiet else nullcontext()
        gradient = self.passing.over(self.step, losses, perturbation, within)
        self._begin_again(at_x=perturbation.is_nowhere)
        return gradient

    def _begin_again(self, *, at_x: bool) -> None:
        self._ends[at_x] = RandomState(self.passing.parameters.model)
        self.begin.restore()


def _whole(branch: Branch) -> Branch:
    """The branch as a pass at x runs it: the whole network, which nobody teaches."""
    return replace(branch, level=branch.whole or branch.level, teacher=lambda: None)


@torch.no_grad()
def outside(mask: Mask, used: Vector) -> float:
    """‖(1 − p) ⊙ x‖ over the parameters that took part."""
    squares: list[Tensor] = []
    for name in used:
        entry, x = mask[name], mask.parameters[name]
        if entry is not True:
            left = x.masked_fill(entry, 0) if isinstance(entry, Tensor) else x
            squares.append(inner(left, left))
    return math.sqrt(float(torch.stack([s.to(squares[0].device) for s in squares]).sum())) if squares else 0.0
