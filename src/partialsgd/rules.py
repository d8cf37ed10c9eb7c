"""p_t, δx_t, α_t: a method is one rule for each symbol of Algorithm 1, and a rule is a pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, final

from torch import Tensor

from partialsgd import masks, perturbations, randomness
from partialsgd.looks import Guard, Meter
from partialsgd.masks import Mask
from partialsgd.names import Parameters
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector

Remembered: TypeAlias = Tensor | int | float | str


class NeedsGradient(Exception):
    """A rule asked for the gradient at x_t before a pass has computed it; the step makes one and asks again."""

    def __init__(self) -> None:
        super().__init__("the gradient and the mask of a step are known to its rules mask, perturb and scale only")


@final
@dataclass(frozen=True)
class Context:
    """What a rule may look at: nothing else decides, so every rank and every resumed run decides alike."""

    t: int
    seed: int
    parameters: Parameters
    memory: MutableMapping[str, Remembered]
    """Flat and saved with the run. Put new values in; do not change a tensor that lies in it."""
    branch: int = 0
    level: str | None = None
    measured: Mapping[str, Remembered] = field(default_factory=dict)
    """What the method's own meter has found so far; saved with the run too."""
    _mask: Mask | None = None
    _gradient: Vector | None = None

    @property
    def mask(self) -> Mask:
        """p_t, for the rules that come after it."""
        if self._mask is None:
            raise NeedsGradient
        return self._mask

    @property
    def gradient(self) -> Vector:
        """The gradient at x_t, on this step's batch: computed once, and only if a rule asks for it."""
        if self._gradient is None:
            raise NeedsGradient
        return self._gradient

    def key(self, name: str, t: int | None = None) -> int:
        """A number to draw from: a function of (seed, t, branch, name); `t` may be that of a round of steps."""
        place = self.parameters.canonical(name) if name in self.parameters else name
        return randomness.key(self.seed, self.t if t is None else t, self.branch, place)

    def is_turn(self, who: str, every: int) -> bool:
        """Whether this is the first, or the `every`-th after it, of the level's own steps; it counts, so ask once.

        With t alone, alternating levels and an even number would starve one.
        """
        counter = f"{who}.steps.{self.level or ''}"
        steps = self.memory.get(counter, 0)
        assert isinstance(steps, int)
        self.memory[counter] = steps + 1
        return steps % every == 0

    def bernoulli(self, name: str, keep: float) -> Tensor:
        """A boolean tensor of the parameter's shape, True with probability `keep`."""
        parameter = self.parameters[name]
        return randomness.bernoulli(self.key(name), parameter.shape, keep, parameter.device)


MaskRule: TypeAlias = Callable[[Context], Mask]
PerturbRule: TypeAlias = Callable[[Context], Perturbation]
ScaleRule: TypeAlias = Callable[[Context], float]
CorrectRule: TypeAlias = Callable[[Context, Vector], Vector]
WithinRule: TypeAlias = Callable[[Context], AbstractContextManager[object]]


def everything(context: Context) -> Mask:
    """p = 1."""
    return masks.everything(context.parameters)


def nothing(context: Context) -> Mask:
    """0."""
    return masks.nothing(context.parameters)


def nowhere(context: Context) -> Perturbation:
    """δx = 0."""
    return perturbations.nowhere()


def unscaled(context: Context) -> float:
    """α = 1."""
    return 1.0


def uncorrected(context: Context, gradient: Vector) -> Vector:
    """g as it is."""
    return gradient


def directly(context: Context) -> AbstractContextManager[object]:
    """Forward and backward as they are."""
    return nullcontext()


@final
@dataclass(frozen=True)
class Branch:
    """One gradient of a step; most methods have one. Several are accumulated, the largest level first."""

    mask: MaskRule = everything
    perturb: PerturbRule = nowhere
    level: str | None = None
    weight: float = 1.0
    teacher: Callable[[], Any] | None = None
    """Where `Pass.teacher` comes from; by default it is what the step's first branch has put into `outputs`."""
    whole: str | None = None
    """The level that a pass at x_t runs, where levels have names: `g.level` is this, and nobody teaches."""
    base: Perturbation = field(default_factory=perturbations.nowhere)
    """Where the gradient that rules look at is taken: of a level, the level itself."""
    same_noise: bool = True
    """Whether a pass at x draws the same dropout noise as one at x̃; where shapes differ, it does not."""


BranchesRule: TypeAlias = Callable[[Context], Sequence[Branch]]


@final
@dataclass(frozen=True)
class Method:
    """A rule for each symbol of Algorithm 1. `Method()` is plain training."""

    mask: MaskRule = everything
    perturb: PerturbRule = nowhere
    scale: ScaleRule = unscaled

    # Outside Algorithm 1:
    correct: CorrectRule = uncorrected
    """g ↦ g + memory, before the mask (error feedback)."""
    project: PerturbRule = nowhere
    """x after the update, for good (AC/DC). The one way to move what is outside the mask."""
    within: WithinRule = directly
    """What the trained pass runs in: a backward pass that computes less (freezing, meProp)."""
    forget: MaskRule = nothing
    """Where the optimizer's state starts anew before the update."""
    guard: Guard | None = None
    """Looks at both gradients, and may take another method's step instead."""
    meter: Meter | None = None
    """Looks at both gradients; what it remembers, the rules find in `context.measured`, `scale` in the same step."""
    branches: BranchesRule | None = None
    """Several gradients in one step, in place of `mask` and `perturb`. Asked for `context.level`, it gives that one."""
    combine: Literal["sum", "mean"] = "sum"
    """How branches are accumulated: Σ w g, or Σ w g / Σ w."""
    structural: bool = field(default=False, kw_only=True)
    """Passes leave parameters out, so DistributedDataParallel must look for unused ones."""
    name: str = field(default="method", kw_only=True)
    """With its settings; a saved state is refused by a method of another name."""

    def __post_init__(self) -> None:
        if self.branches is not None and (self.mask is not everything or self.perturb is not nowhere):
            raise ValueError("a method has either mask and perturb or branches, each with its own mask and perturb")
        for rule in ("mask", "perturb", "scale", "correct", "project", "within", "forget"):
            if not callable(getattr(self, rule)):
                given = getattr(self, rule)
                raise TypeError(f"the rule {rule!r} must be a function of a Context, got {given!r}; write lambda c: …")
        if self.combine not in ("sum", "mean"):
            raise ValueError(f"combine must be 'sum' or 'mean', got {self.combine!r}")

    @property
    def is_plain(self) -> bool:
        return replace(self, name="method") == Method()

    def branches_at(self, context: Context) -> Sequence[Branch]:
        if self.branches is None:
            return (Branch(self.mask, self.perturb),)
        branches = tuple(self.branches(context))
        if not branches and context.level is not None:
            raise ValueError(f"{self.name} has no level {context.level!r}")
        if not branches or (self.combine == "mean" and sum(branch.weight for branch in branches) == 0):
            raise ValueError(f"{self.name} gave no branch with a weight at t = {context.t}; a step needs one")
        return branches
