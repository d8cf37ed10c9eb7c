"""What every training is told: typed, without torch, the same on the command line, in a file and in a stored run."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

Precision = Literal["fp32", "bf16", "fp16"]
PATHS = ("data", "start", "teacher")
"""Settings, of those recipes that have them, which say where something lies that a run is made from."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that all recipes share; each recipe adds its own and gives these other defaults."""

    recipe: ClassVar[str]

    out: str | None = None
    """The run directory, which must be new; by default runs/<recipe>-<date>-<time>."""
    seed: int = 0
    """Of everything that is drawn: weights, order, augmentation, masks, dropout."""
    method: str = "alternating"
    """A method of `partialsgd methods`, with options if it has any: "sam(rho=0.1)", "compose(alternating, sam)"."""
    epochs: int = 10
    """Passes over the training data."""
    max_steps: int | None = None
    """Stop after this many steps, if the epochs have not ended before."""
    accumulate: int = 1
    """Batches in one step of the optimizer."""
    clip_norm: float | None = None
    """The largest norm of a step's gradient; longer ones are shortened to it."""
    precision: Precision = "fp32"
    """Of the forward pass: float32, or autocast to another."""
    threads: int | None = None
    """Of torch, on a CPU; by default as many as torch takes. Stored: other numbers give other bits."""
    measure_every: int | None = None
    """Measure the paper's criteria at every n-th step of each level."""
    probe: str | None = None
    """Measure the criteria of this method instead of the one that trains: "only('core')" or "dropout(unit='neurons')"
    beside plain training. Changes nothing of the training."""
    measure_layers: tuple[str, ...] = ()
    """Measure these layers together as a group, beside the whole network; patterns like "*.fc1.*". By default each
    block of layers is one."""
    measure_batches: int = 1
    """Take both gradients of a measurement over so many steps' batches, this one's and those after it. With one batch
    its noise is in both, and they look more alike than they are (erratum E21)."""
    evaluate_every: int = 1
    """Epochs between evaluations on the validation data; the last epoch always ends with one."""
    checkpoint_every: int = 200
    """Steps between checkpoints. The run's end is always one."""
    keep: int = 3
    """How many checkpoints stay."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard, into the run directory."""
    track: tuple[str, ...] = ()
    """Also send the metrics to these trackers of accelerate: wandb, mlflow, comet_ml and others."""

    def __post_init__(self) -> None:
        for name in ("epochs", "accumulate", "evaluate_every", "checkpoint_every", "keep", "measure_batches"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("max_steps", "threads", "measure_every"):
            if getattr(self, name) is not None:
                require_at_least(name, getattr(self, name), 1)
        _require_when(self)


def _require_when(settings: Settings) -> None:
    """What to measure is said in vain where it is not said how often."""
    for name, nothing in (("probe", None), ("measure_layers", ()), ("measure_batches", 1)):
        value = getattr(settings, name)
        if value != nothing and settings.measure_every is None:
            raise ValueError(f"{name} is {value!r}, and nothing is measured without measure_every; give that too")


def require_at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}; got {value!r}")


def ratio_of(text: str) -> float:
    """A share, written 1/32 or 0.03125."""
    try:
        value = float(Fraction(text))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"a ratio is written 1/32 or 0.03125; got {text!r}") from error
    if not 0 < value <= 1:
        raise ValueError(f"a ratio must be in (0, 1], got {text!r}")
    return value
