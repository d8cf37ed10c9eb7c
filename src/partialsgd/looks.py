"""G and G̃: the two gradients by which a step is judged, as meters and guards ask for them and are shown them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

import torch.distributed as dist
from torch import Tensor

from partialsgd.vectors import Vector

if TYPE_CHECKING:
    from partialsgd.rules import Branch, Context, Method

Losses: TypeAlias = Sequence[Callable[[], Tensor]]


@final
@dataclass(frozen=True)
class Look:
    """A pair of gradients that is wanted: at x, and at the x̃ of a branch, the one that is trained or any other."""

    branch: Branch
    over: tuple[Losses, Losses] | None = None
    """Losses to take the two gradients over, each a mean, instead of the step's own batch."""
    alone: bool = False
    """The trained gradient is all that is wanted, and no pass is made for it."""

    @property
    def is_of_two_samples(self) -> bool:
        """Whether the two gradients are of different data, so that their difference is noise too."""
        return self.over is not None and self.over[0] is not self.over[1]


@final
@dataclass(frozen=True)
class Sight:
    """What a meter or a guard is shown: the mask is in `context`, the gradients are those before it."""

    look: Look
    context: Context
    """For a meter with the meter's own memory, which is saved with the run."""
    at_x: Vector
    at_perturbed: Vector
    moved: float = 0.0
    """‖δx‖"""
    quiet: bool = False
    """Both gradients were taken with dropout off, because x and x̃ do not draw the same noise."""
    loss: Tensor | None = None
    rate: float | None = None
    """The step size, where it is that of SGD: how far a gradient moves x in the end, momentum and α included."""
    group: dist.ProcessGroup | None = None
    """The processes that share these gradients, and must come to the same numbers."""


class Meter(Protocol):
    """Looks at a step's gradients and changes nothing."""

    def looks(self, context: Context, trained: Branch) -> Sequence[Look]:
        """What to look at in this branch of this step: often nothing. Asked once, so it may count in the memory."""

    def measure(self, sight: Sight) -> object | None:
        """What is returned, unless it is None, is found in `Step.measurements`; its `alerts` are logged."""


@final
@dataclass(frozen=True)
class Guard:
    """Whether a step may be its method's. If not it is the fallback's, and so are those up to the next judgement.

    Each level is judged by itself, at every `every`-th of its own steps.
    """

    every: int
    refuses: Callable[[Sight], bool]
    fallback: Method

    def is_due(self, context: Context) -> bool:
        """Whether this step of the level is judged; asked once a step, because it counts."""
        return context.is_turn("guard", self.every)

    def has_refused(self, context: Context) -> bool:
        return bool(context.memory.get(f"guard.refused.{context.level or ''}", 0))

    def judge(self, start: Context, sight: Sight) -> bool:
        """The verdict is remembered both where the step began and where it is now."""
        refused = self.refuses(sight)
        for memory in (start.memory, sight.context.memory):
            memory[f"guard.refused.{sight.context.level or ''}"] = int(refused)
        return refused
