"""One iteration: what it was, and what it is while it is made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from partialsgd import masks, vectors
from partialsgd._util.snapshots import Buffers, RandomState
from partialsgd.engine.gradient_pass import Pass
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, GradientRequest, Guard, Method, Remembered
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector

_log = logging.getLogger("partialsgd")


@final
@dataclass(frozen=True)
class Step:
    """What one iteration did."""

    t: int
    loss: Tensor | None
    """Detached. Of several branches, combined as their gradients were; `losses` has each by itself."""
    mask: Mask
    level: str | None
    """The level of the first (largest) branch, or None where a network has no levels."""
    backwards: int
    """How many backward passes it took, measurements included."""
    losses: tuple[tuple[str | None, Tensor], ...] = ()
    skipped: bool = False
    """A NaN or an infinity appeared: nothing moved, and t did not advance."""
    measurements: tuple[Any, ...] = ()
    """What the meter found, when it was due, for each branch or probe, the largest level first; without a meter of
    the user's, what the method's own has found."""
    lr: float = 0.0
    """The learning rate of the optimizer's first group as the step used it: α γ."""
    passes: tuple[str | None, ...] = ()
    """The levels of the backward passes that the method itself took; measurements are left out."""

    @property
    def criteria(self) -> Any:
        """The last of the measurements, of several levels that of the smallest; None where nothing was measured."""
        return self.measurements[-1] if self.measurements else None


@final
@dataclass
class StepInProgress:
    """A step between its first pass and its update."""

    method: Method
    branches: Sequence[Branch]
    context: Context
    abort: Callable[[], None]
    mask: Mask
    scale: float = 1.0
    total: dict[str, Tensor] = field(default_factory=dict)
    losses: list[tuple[str | None, Tensor]] = field(default_factory=list)
    all_losses: list[tuple[str | None, Tensor]] = field(default_factory=list)
    backwards: int = 0
    passes: list[str | None] = field(default_factory=list)
    current: Pass | None = None
    outputs: Any = None
    teacher: Any = None
    measured: dict[str, dict[str, Remembered]] = field(default_factory=dict)
    """What each meter remembers, by who it belongs to."""
    found: dict[str, list[Any]] = field(default_factory=dict)
    """What each meter has found in this step."""
    looks: list[list[tuple[str, GradientRequest]]] = field(default_factory=list)
    whole: tuple[RandomState, Vector] | None = None
    """The gradient at x of the first branch, and the noise that it began with, for the looks of the others."""
    guard: Guard | None = None
    """The one that judges this step."""
    undo: Buffers | None = None
    """What a refusal goes back to when passes came before it."""
    included: int = 0
    by_gradient: bool = False
    overflow: bool = False
    has_gradient: bool = False
    is_masked: bool = False
    complete: bool = False

    @property
    def level(self) -> str | None:
        return self.branches[0].level

    def weight(self, branch: Branch) -> float:
        """The factor of a branch's gradient in the update: w, or w / Σ w."""
        if self.method.combine == "mean":
            return branch.weight / sum(b.weight for b in self.branches)
        return branch.weight

    def gradient_at_x(self) -> Vector | None:
        """That of the first branch, where a pass at x would begin with the same noise now."""
        return self.whole[1] if self.whole is not None and self.whole[0].is_now else None

    def turn_to(self, method: Method, context: Context) -> None:
        """The step becomes another method's, before anything was included in it."""
        self.method, self.context, self.guard = method, context, None
        self.branches = method.branches_at(context)
        self.losses.clear()

    def note(self, branch: Branch, g: Pass) -> None:
        """The first pass of a branch that belongs to its method gives the loss, the first branch the teacher."""
        if g.loss is not None:
            loss = torch.as_tensor(g.loss).detach()
            self.all_losses.append((branch.level, loss))
            if len(self.losses) == self.included:
                self.losses.append((branch.level, loss))
        self.outputs = g.for_pupils()

    def note_measurement(self, who: str, found: object | None) -> None:
        if found is not None:
            self.found.setdefault(who, []).append(found)

    def include(self, mask: Mask, scale: float, context: Context) -> None:
        if self.included == 0:
            self.mask, self.scale, self.teacher = mask, scale, self.outputs
        else:
            self.mask = self.mask | mask
        self.context = context
        self.included += 1

    def accumulate(self, before: StepInProgress, earlier: Vector, parameters: Parameters) -> None:
        """Add the micro-batches before this one: their losses, their passes and their gradients."""
        self.backwards += before.backwards
        self.passes = before.passes + self.passes
        self.all_losses += before.all_losses
        self.losses = [(level, a + b) for (level, a), (_, b) in zip(before.losses, self.losses, strict=False)]
        self.overflow |= before.overflow
        total = dict(earlier)
        vectors.add(total, vectors.current(parameters), 1.0)
        vectors.put(parameters, total)

    def done(self, skipped: bool, lr: float) -> Step:
        return Step(
            self.context.t,
            self._loss(),
            self.mask,
            self.level,
            self.backwards,
            tuple(self.losses),
            skipped,
            tuple(self.found.get("meter" if "meter" in self.measured else "method", ())),
            lr * self.scale,
            tuple(self.passes),
        )

    def _loss(self) -> Tensor | None:
        if len(self.losses) < 2:
            return self.losses[0][1] if self.losses else None
        weights = [self.weight(branch) for branch in self.branches]
        return torch.stack([w * loss for w, (_, loss) in zip(weights, self.losses, strict=False)]).sum()


def tell(step: Step) -> None:
    """Log what a meter warns of; a step that was skipped is not one to warn of."""
    if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        return
    for found in step.measurements:
        for text in getattr(found, "alerts", ()):
            _log.warning(text)


def begin(
    method: Method, context: Context, measured: dict[str, dict[str, Remembered]], abort: Callable[[], None]
) -> StepInProgress:
    branches = method.branches_at(context)
    step = StepInProgress(method, branches, context, abort, masks.everything(context.parameters), measured=measured)
    if method.guard is not None:
        if len(branches) > 1:
            raise ValueError(f"{method.name}: a guard judges one gradient, and this step takes {len(branches)}")
        of_level = replace(context, level=step.level)  # the same memory
        if method.guard.is_due(of_level):
            step.guard = method.guard
        elif method.guard.has_refused(of_level):
            step.turn_to(method.guard.fallback, context)
    return step
