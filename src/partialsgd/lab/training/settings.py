"""Settings of a training: the same names on the command line, in a TOML file and in config.json. No torch here.

Each `…Options` class is one group of options in `--help`, where the text below a field is its help; lines that end
with a sentence there end so in the help. A recipe's settings class inherits from `Settings` and from its own groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

_LARGEST = 2**53  # of whole numbers: what JSON, TOML and torch all hold exactly
_MOST_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """The smaller networks inside the model."""

    nest: Literal["low-rank", "width", "depth", "none"] = "low-rank"
    """The dimension that smaller levels have less of: ranks of matrices, units or channels, or blocks.
    With "none" there are no smaller levels."""
    ratio: tuple[str, ...] = ("1/2",)
    """The share of it that a smaller level keeps, such as 1/4; several ratios give several levels."""
    level_budget: str | None = None
    """The cost limit of a smaller level, instead of `ratio`, such as parameters=1/4 or flops=1/4,1/2. The sizes of its
    layers are chosen by how much their units lower the loss before training. In `train` it is also called --budget."""
    alone: str | None = None
    """Extract this level before training and train only it, from the weights it starts with in the nested model."""
    init: Literal["zero", "svd", "matched"] = "zero"
    """The start of low-rank layers: with "zero" the full level starts as the core, else as an ordinary network, as it
    always does if `full` is "own"."""
    full: Literal["sum", "own"] = "sum"
    """The full level of low-rank layers: the product of the smaller levels plus a matrix ("sum"), or a weight of its
    own ("own"), for networks that are trained already: steps of smaller levels do not move it."""


WITHOUT_LEVELS: dict[str, Any] = {"nest": "none", "level_budget": None, "full": "sum"}
"""The changes that make settings those of the whole network alone."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The method, and how long and in which precision to train."""

    method: str = "alternating"
    """A training method with its options, such as "sam(rho=0.1)" or "compose(alternating, sam)".
    `partialsgd methods` lists them."""
    distill: Literal["cached"] | None = None
    """With --method alternating: a step of a smaller level has the batch of the step before it and learns from the
    outputs of that step beside the labels, which takes no further pass."""
    distill_weight: float = 0.5
    """The share of these outputs in the loss of a smaller level; 1 ignores the labels."""
    state: Literal["shared", "per_level"] = "shared"
    """The optimizer state of parameters that several levels share: one for all of them, or one for each level."""
    part_ways: float = 0.0
    """The last share of the training FLOPs, such as 0.15, trains each extracted network alone, in turn, one step each:
    nothing is shared any more. With 1 the levels share nothing from the first step on, and the method trains them."""
    seed: int = 0
    """The seed of every random choice: initial weights, batch order, augmentation, masks and dropout."""
    epochs: int = 10
    """Passes over the training data."""
    max_steps: int | None = None
    """Stop after this many optimizer steps, if the epochs have not ended before."""
    accumulate: int = 1
    """Batches in one optimizer step."""
    clip_norm: float | None = None
    """Scale gradients with a larger norm down to this norm."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """The precision of the forward pass; bf16 and fp16 use autocast."""
    shard: bool = False
    """Divide the network, its gradients and its optimizer state among the processes of torchrun or accelerate."""
    threads: int | None = None
    """CPU threads for torch; by default torch decides.
    The number is stored in the run, because the last bits of results depend on it."""


@dataclass(frozen=True, kw_only=True)
class CriteriaOptions:
    """Measurements of the paper's convergence criteria during training."""

    measure_every: int | None = None
    """Measure the criteria at every n-th step of each level."""
    probe: str | None = None
    """Measure the criteria of this method, such as "only('core')", instead of the one that trains.
    The training itself does not change."""
    measure_layers: tuple[str, ...] = ()
    """Also measure the layers that match these patterns, such as "*.fc1.*", as one group.
    By default each block of layers is a group."""
    measure_batches: int = 1
    """Take both gradients of a measurement over the batches of this many steps.
    With 1, both share the noise of one batch and look more alike than they are (erratum E21)."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The run directory: evaluations, checkpoints and logs."""

    out: str | None = None
    """The run directory, which must not exist yet; by default runs/RECIPE-DATE-TIME."""
    evaluate_every: int = 1
    """Epochs between evaluations on the validation data; the last epoch always ends with one."""
    checkpoint_every: int = 200
    """Steps between checkpoints; the last step always writes one."""
    keep: int = 3
    """Checkpoints to keep; older ones are deleted."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard, into the run directory: the same as --track tensorboard."""
    track: tuple[str, ...] = ()
    """Also send the metrics to these trackers: tensorboard, wandb, and others of accelerate such as mlflow."""


@dataclass(frozen=True, kw_only=True)
class Settings(TrainingOptions, CriteriaOptions, RunOptions):
    """The settings that all recipes share. Each recipe adds its own, and may change these defaults."""

    recipe: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()
    """Modules that a run imports at some point; all are checked before it starts."""
    paths: ClassVar[tuple[str, ...]] = ()
    """Settings that hold a path. They are stored as absolute paths, and `resume` may be given new ones."""
    next_commands: ClassVar[tuple[str, ...]] = ()
    """Commands of the recipe for a finished run, with {run} and {level} in them."""
    earlier_runs: ClassVar[tuple[str, ...]] = ()
    """Settings that name a finished run which training reads; using the trained network does without them."""

    def __post_init__(self) -> None:
        for name in ("epochs", "accumulate", "evaluate_every", "checkpoint_every", "keep", "measure_batches"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("max_steps", "threads", "measure_every"):
            if getattr(self, name) is not None:
                require_at_least(name, getattr(self, name), 1)
        if not -(2**63) <= self.seed < 2**64:  # what torch.manual_seed takes
            raise ValueError(f"seed must be from -2⁶³ to 2⁶⁴ - 1, got {self.seed}")
        if self.threads is not None and self.threads > _MOST_THREADS:
            raise ValueError(f"threads must be at most {_MOST_THREADS:,}, got {self.threads:,}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be positive, got {self.clip_norm}; omit it to clip nothing")
        if self.out is not None and not self.out.strip():
            raise ValueError(f"out is blank, {self.out!r}; name a folder, or omit it for one under runs/")
        if not 0 < self.distill_weight <= 1:
            raise ValueError(f"distill_weight must be in (0, 1], got {self.distill_weight}; for 0 omit distill")
        if not 0 <= self.part_ways <= 1:
            raise ValueError(f"part_ways must be in [0, 1], got {self.part_ways}")
        for name in ("part_ways", "shard"):
            if self.state == "per_level" and getattr(self, name):
                raise ValueError(f"{name} keeps one optimizer state of each parameter; omit it, or state='per_level'")
        if self.part_ways == 1 and self.measure_every is not None:
            raise ValueError("levels that share nothing have no criteria; with part_ways=1 omit measure_every")
        if self.part_ways and self.shard:
            raise ValueError("part_ways extracts whole networks, and shard divides one; use one of both")
        for name, default in (("probe", None), ("measure_layers", ()), ("measure_batches", 1)):
            if getattr(self, name) != default and self.measure_every is None:
                raise ValueError(f"{name} has no effect without measure_every; set both, or neither")
        if isinstance(self, LevelOptions):
            if not self.ratio and self.nest != "none":
                raise ValueError('ratio is empty; give the share that a smaller level keeps, or set nest to "none"')
            for ratio in self.ratio:
                parse_ratio(ratio)
            if self.full == "own" and self.nest != "low-rank":
                raise ValueError(f"full='own' is for low-rank layers; with nest={self.nest!r} omit it")
            if self.level_budget is not None:
                parse_budget(self.level_budget)
                if self.nest not in ("width", "low-rank"):
                    raise ValueError(
                        f"level_budget chooses units or ranks; with nest={self.nest!r} omit it, and give ratio"
                    )

    @property
    def taught_share(self) -> float:
        """The share of `g.teacher` in the loss. Methods that distill by an option of their own ignore the labels."""
        return self.distill_weight if self.distill else 1.0

    def ordinary_sizes(self) -> list[dict[str, Any]]:
        """The settings that make the whole network smaller and keep its kind, the smallest first."""
        return []

    def comments(self) -> list[str]:
        """Lines that `--show-settings` prints as comments below the settings."""
        return []


def require_at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if value > _LARGEST:
        raise ValueError(f"{name} must be at most {_LARGEST:,}, got {value}")


def require_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")


def require_in(name: str, value: float, low: float, high: float) -> None:
    """Require low <= value < high."""
    if not low <= value < high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}), got {value}")


def parse_budget(text: str) -> dict[str, tuple[float, ...]]:
    """Read a budget that is written parameters=1/4 or flops=1/4,1/2: what is limited, and the limit of each level."""
    kind, _, amounts = text.partition("=")
    if kind not in ("parameters", "flops") or not amounts:
        raise ValueError(f"level_budget must be written like parameters=1/4 or flops=1/4,1/2; got {text!r}")
    return {kind: tuple(sorted(parse_ratio(amount) for amount in amounts.split(",")))}


def parse_ratio(text: str) -> float:
    """Read a share that is written 1/32 or 0.03125."""
    try:
        # Fraction reads 1e-9 too, but takes for ever for 1e-999999999.
        value = float(Fraction(text)) if "/" in text else float(text)
        if not math.isfinite(value):
            raise ValueError("not a share")
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"ratio must be written like 1/32 or 0.03125, got {text!r}") from error
    if not 0 < value <= 1:
        raise ValueError(f"ratio must be in (0, 1], got {text!r}")
    return value
