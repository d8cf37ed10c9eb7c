"""p_t, δx_t, α_t: a method is one rule for each symbol of Algorithm 1, and a rule is a pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, final

import torch.distributed as dist
from torch import Tensor, nn

from partialsgd import masks, perturbations
from partialsgd._util import randomness
from partialsgd.masks import Mask
from partialsgd.parameters import Parameters, unwrap
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector

Remembered: TypeAlias = Tensor | int | float | str
Losses: TypeAlias = Sequence[Callable[[], Tensor]]


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

    def count_and_check_due(self, who: str, every: int) -> bool:
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
class GradientRequest:
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
class GradientPair:
    """What a meter or a guard is shown: the mask is in `context`, the gradients are those before it."""

    look: GradientRequest
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

    def looks(self, context: Context, trained: Branch) -> Sequence[GradientRequest]:
        """What to look at in this branch of this step: often nothing. Asked once, so it may count in the memory."""

    def measure(self, sight: GradientPair) -> object | None:
        """What is returned, unless it is None, is found in `Step.measurements`; its `alerts` are logged."""


@final
@dataclass(frozen=True)
class Guard:
    """Whether a step may be its method's. If not it is the fallback's, and so are those up to the next judgement.

    Each level is judged by itself, at every `every`-th of its own steps.
    """

    every: int
    refuses: Callable[[GradientPair], bool]
    fallback: Method

    def is_due(self, context: Context) -> bool:
        """Whether this step of the level is judged; asked once a step, because it counts."""
        return context.count_and_check_due("guard", self.every)

    def has_refused(self, context: Context) -> bool:
        return bool(context.memory.get(f"guard.refused.{context.level or ''}", 0))

    def judge(self, start: Context, sight: GradientPair) -> bool:
        """The verdict is remembered both where the step began and where it is now."""
        refused = self.refuses(sight)
        for memory in (start.memory, sight.context.memory):
            memory[f"guard.refused.{sight.context.level or ''}"] = int(refused)
        return refused


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
    build: Callable[[nn.Module], Method] | None = field(default=None, kw_only=True)
    """Makes the rules from the model, for a method that has to look at it first; see `bind`."""
    bound_to: nn.Module | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The model that `build` has made the rules for; set by `bind`."""

    def __post_init__(self) -> None:
        if self.branches is not None and (self.mask is not everything or self.perturb is not nowhere):
            raise ValueError("a method has either mask and perturb or branches, each with its own mask and perturb")
        for rule in ("mask", "perturb", "scale", "correct", "project", "within", "forget"):
            if not callable(getattr(self, rule)):
                given = getattr(self, rule)
                raise TypeError(f"the rule {rule!r} must be a function of a Context, got {given!r}; write lambda c: …")
        if self.build is not None and replace(self, build=None, name="method") != Method():
            raise ValueError(f"{self.name}: build makes all rules of the method; set none beside it")
        if self.combine not in ("sum", "mean"):
            raise ValueError(f"combine must be 'sum' or 'mean', got {self.combine!r}")

    @property
    def is_plain(self) -> bool:
        self._require_bound()
        return replace(self, name="method") == Method()

    def bind(self, model: nn.Module) -> Method:
        """Return the method with its rules for this model. `PartialSGD` calls it once, when it is built."""
        inner = unwrap(model)
        if self.build is not None:
            return replace(self.build(model), bound_to=inner)
        if self.bound_to is not None and self.bound_to is not inner:
            raise ValueError(f"{self.name} was bound to another model; make a new method for this one")
        return self

    def _require_bound(self) -> None:
        if self.build is not None:
            raise RuntimeError(f"{self.name} has no rules before it is bound to a model; call method.bind(model)")

    def branches_at(self, context: Context) -> Sequence[Branch]:
        self._require_bound()
        if self.branches is None:
            return (Branch(self.mask, self.perturb),)
        branches = tuple(self.branches(context))
        if not branches and context.level is not None:
            raise ValueError(f"{self.name} has no level {context.level!r}")
        if not branches or (self.combine == "mean" and sum(branch.weight for branch in branches) == 0):
            raise ValueError(f"{self.name} gave no branch with a weight at t = {context.t}; a step needs one")
        return branches
