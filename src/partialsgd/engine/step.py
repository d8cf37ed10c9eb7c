"""`Step`, the result of one iteration, and `StepInProgress`, its state between the first pass and the update."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, final

import torch
import torch.distributed as dist
from torch import Tensor

from partialsgd._util.snapshots import Buffers
from partialsgd._util.undo import UndoStack
from partialsgd.engine.cached_outputs import CachedOutputs
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, Method
from partialsgd.vectors import Vector

if TYPE_CHECKING:
    from partialsgd.engine.measurement import Measurement
    from partialsgd.meters.criteria import Criteria

_log = logging.getLogger("partialsgd")


@final
@dataclass(frozen=True)
class Step:
    """The result of one iteration."""

    t: int
    loss: Tensor | None
    """Detached. The losses of several branches are combined as their gradients were; `losses` has each one."""
    mask: Mask
    level: str | None
    """The level of the first (largest) branch, or None without levels."""
    backwards: int
    """The number of backward passes, measurements included."""
    losses: tuple[tuple[str | None, Tensor], ...] = ()
    skipped: bool = False
    """True if a NaN or an infinity appeared: nothing moved, and t did not advance."""
    measurements: tuple[Any, ...] = ()
    """The meter's results for each branch or probe, the largest level first; if you pass none, the method's own."""
    lr: float = 0.0
    """The learning rate of the optimizer's first group as the step used it: α γ."""
    passes: tuple[str | None, ...] = ()
    """The levels of the backward passes that the method itself took, without those of measurements."""

    @property
    def criteria(self) -> Criteria | None:
        """The last measurement, that of the smallest level, or None; a meter of your own may have another type."""
        return self.measurements[-1] if self.measurements else None

    def log_alerts(self) -> None:
        """Log the warnings of the meter, on the first rank only."""
        if self.measurements and not (dist.is_available() and dist.is_initialized() and dist.get_rank() != 0):
            for measured in self.measurements:
                for text in getattr(measured, "alerts", ()):
                    _log.warning(text)


@final
@dataclass
class StepInProgress:
    """A step between its first pass and its update."""

    method: Method
    branches: Sequence[Branch]
    context: Context
    undo: UndoStack
    """Takes back what a pass, or the update, changes for a while."""
    on_drop: Callable[[StepInProgress], None]
    mask: Mask
    """The union of the masks of the branches that are done."""
    measurement: Measurement | None = None
    by_closure: bool = False
    """The step runs by `step(closure)`: each pass is entered once, and `.grad` is not seen before the update."""
    once: bool = False
    """The user's code can run only once, so a step that needs a second gradient raises before its first pass."""
    scale: float = 1.0
    total: dict[str, Tensor] = field(default_factory=dict)
    """The sum of the gradients of the branches that are done, if there are several."""
    gradients: list[Vector] = field(default_factory=list)
    """The masked gradient of each branch that is done, if the rule `mask` of the method may compare them."""
    passes: list[tuple[str | None, Tensor | None]] = field(default_factory=list)
    """Level and loss of each pass that the method itself took."""
    losses: list[tuple[str | None, Tensor]] = field(default_factory=list)
    """Level and loss of each branch."""
    largest: list[tuple[str, Tensor]] = field(default_factory=list)
    """The largest magnitude of each gradient at x_t, on an accelerator, to be checked with the trained gradient."""
    backwards: int = 0
    current: GradientPass | None = None
    teacher: Any = None
    cached: Sequence[CachedOutputs] = ()
    """The outputs of this step that the next one may use."""
    buffers: Buffers | None = None
    """The buffers before the first pass, for a refusal after it."""
    branches_done: int = 0
    overflow: bool = False
    has_gradient: bool = False
    complete: bool = False
    dropped: bool = False

    def drop(self) -> None:
        """Forget the step and its gradients, and make x x again: a pass raised, or the loop over them ended early."""
        self.current = None
        if not self.dropped:
            self.on_drop(self)

    def require_droppable(self) -> None:
        """Raise if another step must not begin yet: a gradient is being taken, or was taken and not applied."""
        if self.current is not None and self.current.running:
            raise RuntimeError("a gradient is being taken already: leave its `with` block first")
        if self.complete:
            raise RuntimeError("the last gradient was not applied: call update() first, or zero_grad() to drop it")

    def refuse_dropped(self) -> NoReturn:
        """This step was dropped: its gradient would be added to that of another step."""
        raise RuntimeError(
            "this step was dropped: another one was begun, zero_grad() was called, or its loop over "
            "sgd.gradients() ended before its last pass; begin again with sgd.gradients()"
        )

    @property
    def level(self) -> str | None:
        return self.branches[0].level

    def weight(self, branch: Branch) -> float:
        """The factor of a branch's gradient in the update: w, or w / Σ w."""
        if self.method.combine == "mean":
            return branch.weight / sum(b.weight for b in self.branches)
        return branch.weight

    def record(self, branch: Branch, losses: Sequence[Tensor | None], outputs: Any) -> None:
        """The first pass of a branch gives its loss, the first branch the teacher of the others."""
        self.passes += [(branch.level, loss) for loss in losses]
        assigned = [loss for loss in losses if loss is not None]
        if assigned and len(self.losses) == self.branches_done:
            self.losses.append((branch.level, sum(assigned[1:], assigned[0])))
        if self.branches_done == 0:
            self.teacher = outputs

    def include(self, mask: Mask, scale: float, context: Context) -> None:
        """A branch is done."""
        if self.branches_done == 0:
            self.mask, self.scale = mask, scale
        else:
            self.mask = self.mask | mask
        self.context = context
        self.branches_done += 1

    def result(self, skipped: bool, lr: float) -> Step:
        loss = self.losses[0][1] if self.losses else None
        if len(self.losses) > 1:
            weighted = zip(self.branches, self.losses, strict=False)
            loss = torch.stack([self.weight(branch) * loss for branch, (_, loss) in weighted]).sum()
        return Step(
            self.context.t,
            loss,
            self.mask,
            self.level,
            self.backwards,
            tuple(self.losses),
            skipped,
            () if self.measurement is None else tuple(self.measurement.results),
            lr * self.scale,
            tuple(level for level, _ in self.passes),
        )
