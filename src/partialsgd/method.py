"""`Method`: one rule for each symbol of Algorithm 1 (p_t, δx_t, α_t). A rule is a pure function of a `Context`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partialsgd import masks, perturbations
from partialsgd._util import randomness, shards
from partialsgd.masks import Mask
from partialsgd.parameters import Parameters, unwrap
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector

Remembered: TypeAlias = Tensor | int | float | str
Losses: TypeAlias = Sequence[Callable[[], Tensor]]


class NeedsGradient(Exception):
    """A rule read `context.gradient` before it was computed; the step takes that gradient and asks the rule again."""

    def __init__(self, *, parts: bool = False) -> None:
        self.parts = parts
        """True if the rule read `context.gradients`."""
        super().__init__(
            "context.gradient and context.mask are not available here: only the rules mask, perturb and scale may "
            "read the gradient, and only the rules after mask may read the mask"
        )


@final
@dataclass(frozen=True)
class Context:
    """Everything that a rule may read. Nothing else decides, so every rank and every resumed run decides alike."""

    t: int
    seed: int
    parameters: Parameters
    memory: MutableMapping[str, Remembered]
    """The method's own state: flat, and saved with the run. Assign new values; never change a stored tensor."""
    branch: int = 0
    level: str | None = None
    measured: Mapping[str, Remembered] = field(default_factory=dict)
    """The memory of the method's own meter; it is saved with the run too."""
    cached_level: str | None = None
    """The level of the step before this one, if that step has kept its outputs (`Branch.caches`)."""
    _mask: Mask | None = None
    _gradient: Vector | None = None
    _gradients: tuple[Vector, ...] | None = None

    @property
    def mask(self) -> Mask:
        """p_t, for the rules that are asked after `mask`."""
        if self._mask is None:
            raise NeedsGradient
        return self._mask

    @property
    def gradient(self) -> Vector:
        """The gradient before δx on this step's batch: at x_t, or for a level of a nested model at that level
        (`Branch.base`). It is computed once, and only if a rule reads it."""
        if self._gradient is None:
            raise NeedsGradient
        return self._gradient

    @property
    def gradients(self) -> tuple[Vector, ...]:
        """The gradients that the step adds up: of each micro-batch, which is each time that `with g:` was entered; for
        a method with branches, in its rule `mask`, of each branch, masked and without its weight. A parameter that took
        no part has no entry. They are kept apart only if a rule reads them before it reads `gradient`."""
        if self._gradients is None:
            raise NeedsGradient(parts=True)
        return self._gradients

    @property
    def has_mask(self) -> bool:
        return self._mask is not None

    @property
    def has_gradient(self) -> bool:
        return self._gradient is not None

    def with_mask(self, mask: Mask | None) -> Context:
        """The same context with this mask; with None, reading `mask` raises `NeedsGradient`."""
        return replace(self, _mask=mask)

    def with_gradient(self, gradient: Vector | None) -> Context:
        """The same context with this gradient at x_t; with None, reading `gradient` raises `NeedsGradient`."""
        return replace(self, _gradient=gradient, _gradients=None if gradient is None else self._gradients)

    def for_update(self, level: str | None, mask: Mask) -> Context:
        """The context of the rules that are asked after the last pass: without the gradient at x_t, whose memory the
        optimizer needs."""
        return replace(self, level=level, _mask=mask, _gradient=None, _gradients=None)

    def with_gradients(self, gradients: Sequence[Vector]) -> Context:
        """The same context with the gradients of the micro-batches, or of the branches."""
        return replace(self, _gradients=tuple(gradients))

    def key(self, name: str, t: int | None = None) -> int:
        """A number to seed a draw with, a function of (seed, t, branch, name). `t` may be that of a round of steps."""
        first_name = self.parameters.first_names.get(name, name)
        return randomness.key(self.seed, self.t if t is None else t, self.branch, first_name)

    def count_and_check_due(self, who: str, every: int) -> bool:
        """Count this step of the level and return True at every `every`-th, the first included. Call it once a step.

        It does not count t: with two alternating levels and an even `every`, one of them would never be due.
        """
        counter = f"{who}.steps.{self.level or ''}"
        steps = self.memory.get(counter, 0)
        assert isinstance(steps, int)
        self.memory[counter] = steps + 1
        return steps % every == 0

    def bernoulli(self, name: str, keep: float) -> Tensor:
        """A boolean tensor of the parameter's shape, True with probability `keep`; sharded if the parameter is."""
        return self._bernoulli(name, keep, self.parameters[name].device)

    def random_mask(self, names: Iterable[str], keep: float) -> Mask:
        """Each coordinate of the named parameters moves with probability `keep`, and every other parameter moves."""
        drawn: dict[str, Tensor] = {}
        for name in names:
            parameter = self.parameters[name]
            # What may be all False is drawn on the CPU, where it can be looked at: elsewhere the host would wait.
            may_be_false = keep < 1 and parameter.numel() * -math.log2(1 - keep) < 64
            is_looked_at = may_be_false and not self.parameters.is_sharded
            drawn[name] = self._bernoulli(name, keep, torch.device("cpu") if is_looked_at else parameter.device)
        mask = masks.from_tensors(self.parameters, drawn, rest=True)
        return mask if self.parameters.is_sharded else mask.assume_mixed()

    def _bernoulli(self, name: str, keep: float, device: torch.device) -> Tensor:
        def draw(shape: torch.Size, start: int) -> Tensor:
            return randomness.bernoulli(self.key(name), shape, keep, device, start)

        return shards.drawn(self.parameters[name], draw)


MaskRule: TypeAlias = Callable[[Context], Mask]
PerturbRule: TypeAlias = Callable[[Context], Perturbation]
ScaleRule: TypeAlias = Callable[[Context], float]
CorrectRule: TypeAlias = Callable[[Context, Vector], Vector]
WithinRule: TypeAlias = Callable[[Context], AbstractContextManager[object]]


def everything(context: Context) -> Mask:
    """The default of `mask`: every coordinate moves, p = 1."""
    return masks.everything(context.parameters)


def nothing(context: Context) -> Mask:
    """The default of `forget`: no coordinate."""
    return masks.nothing(context.parameters)


def nowhere(context: Context) -> Perturbation:
    """The default of `perturb` and `project`: δx = 0."""
    return perturbations.NOWHERE


def unscaled(context: Context) -> float:
    """The default of `scale`: α = 1."""
    return 1.0


def uncorrected(context: Context, gradient: Vector) -> Vector:
    """The default of `correct`: g is not changed."""
    return gradient


def directly(context: Context) -> AbstractContextManager[object]:
    """The default of `within`: forward and backward run in no context."""
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
    """Gives `GradientPass.teacher`; by default that is what the step's first branch assigned to `outputs`."""
    whole: str | None = None
    """The level that a pass at x_t runs: `g.level` is this one, and `g.teacher` is None."""
    base: Perturbation = perturbations.NOWHERE
    """The point at which `context.gradient` is taken: for a level of a nested model, that level."""
    same_noise: bool = True
    """False if dropout masks have other shapes at x̃ than at x, so that both passes cannot draw the same noise."""
    caches: bool = False
    """The closure must assign `g.batch` and `g.outputs`, which are kept for the next step."""
    repeats: bool = False
    """The step repeats the batch of the step before it, whose kept outputs are `g.teacher`."""


BranchesRule: TypeAlias = Callable[[Context], Sequence[Branch]]


@final
@dataclass(frozen=True)
class GradientRequest:
    """Asks for two gradients: at x, and at the x̃ of a branch, which may be the trained one or any other."""

    branch: Branch
    losses: tuple[Losses, Losses] | None = None
    """Losses to average the gradients at x and at x̃ over, in place of the step's own batch."""
    trained_only: bool = False
    """Only the gradient that the step trains with is needed, so no pass is made for this request."""

    @property
    def has_two_samples(self) -> bool:
        """True if the two gradients are over different data, so that their difference contains sampling noise."""
        return self.losses is not None and self.losses[0] is not self.losses[1]


@final
@dataclass(frozen=True)
class GradientPair:
    """The answer to a `GradientRequest`, for a meter or a guard. The gradients are not masked."""

    request: GradientRequest
    context: Context
    """For a meter, `context.memory` is the meter's own, which is saved with the run."""
    at_x: Vector
    at_perturbed: Vector
    perturbation_norm: float | Tensor = 0.0
    """‖δx‖: on an accelerator a tensor, so that the host waits only when a meter reads it."""
    dropout_was_off: bool = False
    """Both gradients were taken with dropout off, because x and x̃ do not draw the same noise."""
    loss: Tensor | None = None
    step_size: float | None = None
    """The distance that a unit gradient moves x in the end, momentum and α included; None unless all is SGD."""
    process_group: dist.ProcessGroup | None = None
    """The processes that share these gradients, and must compute the same numbers from them."""


class Meter(Protocol):
    """Measures a step's gradients without changing the run."""

    def requests(self, context: Context, trained: Branch) -> Sequence[GradientRequest]:
        """The gradients to measure in this branch, often none. Called once a branch: it may count in the memory."""

    def measure(self, pair: GradientPair) -> object | None:
        """A result that is not None goes to `Step.measurements`; the texts in its `alerts` are logged."""


@final
@dataclass(frozen=True)
class Guard:
    """Judges every `every`-th step of each level; the fallback takes a refused step and those up to the next one."""

    every: int
    refuses: Callable[[GradientPair], bool]
    fallback: Method

    def count_and_check_due(self, context: Context) -> bool:
        """Count this step of the level and return True if it is to be judged. Call it once a step."""
        return context.count_and_check_due("guard", self.every)

    def has_refused(self, context: Context) -> bool:
        return bool(context.memory.get(f"guard.refused.{context.level or ''}", 0))

    def judge(self, start: Context, pair: GradientPair) -> bool:
        """Judge the step and remember the verdict both in the memory it started with and in its present one."""
        refused = self.refuses(pair)
        for memory in (start.memory, pair.context.memory):
            memory[f"guard.refused.{pair.context.level or ''}"] = int(refused)
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
    """A context manager around the trained pass: a backward pass that computes less (freezing, meProp)."""
    forget: MaskRule = nothing
    """The coordinates whose optimizer state is reset before the update."""
    guard: Guard | None = None
    """Compares both gradients, and may take another method's step instead."""
    meter: Meter | None = None
    """Measures both gradients; the rules read its memory in `context.measured`, `scale` already in the same step."""
    branches: BranchesRule | None = None
    """Several gradients in one step, in place of `perturb`. If `context.level` is set, only that level's. The union
    of their masks moves; `mask`, which is asked last and may read `context.gradients`, narrows it."""
    combine: Literal["sum", "mean"] = "sum"
    """The combination of the branches' gradients: Σ w g, or Σ w g / Σ w."""
    structural: bool = field(default=False, kw_only=True)
    """Passes leave parameters out, so DistributedDataParallel must search for unused ones."""
    name: str = field(default="method", kw_only=True)
    """The name with its settings; a checkpoint is refused by a method of another name."""
    build: Callable[[nn.Module], Method] | None = field(default=None, kw_only=True)
    """Makes the rules from the model, for a method that depends on it; see `bind`."""
    bound_to: nn.Module | None = field(default=None, kw_only=True, repr=False, compare=False)
    """The model that `build` has made the rules for; set by `bind`."""

    def __post_init__(self) -> None:
        if self.branches is not None and self.perturb is not nowhere:
            raise ValueError("a method has either perturb or branches, each with its own mask and perturb")
        for rule in ("mask", "perturb", "scale", "correct", "project", "within", "forget"):
            if not callable(getattr(self, rule)):
                value = getattr(self, rule)
                raise TypeError(f"the rule {rule!r} must be a function of a Context, got {value!r}; write lambda c: …")
        if self.build is not None and replace(self, build=None, name="method") != Method():
            raise ValueError(f"{self.name}: build makes all rules of the method; set none beside it")
        if self.combine not in ("sum", "mean"):
            raise ValueError(f"combine must be 'sum' or 'mean', got {self.combine!r}")

    def _require_bound(self) -> None:
        if self.build is not None:
            raise RuntimeError(f"{self.name} has no rules before it is bound to a model; call method.bind(model)")

    @property
    def is_plain(self) -> bool:
        """True if every rule is the identity."""
        self._require_bound()
        return replace(self, name="method") == Method()

    def bind(self, model: nn.Module) -> Method:
        """Return the method with its rules for this model; it may register hooks there, so a method is bound once.

        `PartialSGD` binds a method that is not bound yet."""
        inner = unwrap(model)
        if self.build is not None:
            return replace(self.build(model), bound_to=inner)
        if self.bound_to is not None and self.bound_to is not inner:
            raise ValueError(f"{self.name} was bound to another model; make a new method for this one")
        return self

    def branches_at(self, context: Context) -> Sequence[Branch]:
        """The branches of the step at `context.t`: one for a method that has none."""
        self._require_bound()
        if self.branches is None:
            return (Branch(self.mask, self.perturb),)
        branches = tuple(self.branches(context))
        if not branches and context.level is not None:
            raise ValueError(f"{self.name} has no level {context.level!r}")
        if not branches or (self.combine == "mean" and sum(branch.weight for branch in branches) == 0):
            raise ValueError(f"{self.name} gave no branch with a weight at t = {context.t}; a step needs one")
        return branches
