"""What the loop trains: a family, its batches, its loss and its numbers. A recipe makes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.nested import Nested

Batch: TypeAlias = Any
"""Tensors, in any nest of dicts and tuples; on the CPU when it is made."""

Numbers: TypeAlias = dict[str, float]
Split: TypeAlias = Literal["valid", "test"]


class Batches(Protocol):
    """Batches as a function of (epoch, index). The seed is theirs; nothing else decides, so a resume repeats them."""

    def __len__(self) -> int:
        """How many make an epoch: the same number in each."""

    def units(self, epoch: int, index: int) -> int:
        """How many tokens, images or rows count in the loss of a batch; it is not made for that."""

    def make(self, epoch: int, index: int) -> Batch: ...


class Task(Protocol):
    """One recipe with its settings."""

    network: Nested
    optimizers: Sequence[Optimizer]
    """Their learning rates are the largest; `rate` multiplies them."""
    batches: Batches
    unit: str
    """What is counted: "tokens", "images", "rows"."""
    score: str
    """The number of `scores` that a table shows: "BLEU", "accuracy"."""

    def notes(self) -> list[str]:
        """What a user should know of the data before the first step: what was dropped, and why."""

    def digest(self) -> str:
        """A hash of the data: a run is resumed and scored on those that it was begun with.

        After it, with a space between, `name:hash` of what else the training reads; scoring does without.
        """

    def rate(self, t: int, total: int) -> float:
        """The factor of the learning rates at step t of a training of `total` steps: a pure function."""

    def loss(self, model: nn.Module, batch: Batch, g: GradientPass) -> Tensor:
        """Summed over the units of the batch. `model` is the family, perhaps wrapped; `g.teacher` may have outputs."""

    def glance(self, level: str) -> Numbers:
        """Numbers on the validation data, fast, for the progress of a training; `loss` is one of them."""

    def merit(self, glances: Mapping[str, Numbers]) -> float:
        """How good the levels are together: the largest is the best checkpoint."""

    def scores(self, level: str, split: Split) -> Numbers:
        """All numbers of a level on a split, as they are published."""

    def extras(self) -> dict[str, Any]:
        """What else a summary holds, as JSON: signatures, samples, baselines. Asked once, at the end."""

    def flops(self, level: str, batch: Batch) -> int:
        """FLOPs of forward and backward at a level, as torch counts them."""

    def example(self) -> Any:
        """Inputs of the network, to try a level with: a tensor, a tuple of arguments or a dict of named ones."""

    def seconds(self, plain: nn.Module) -> float:
        """The latency of one level, taken out: the median over a few single examples."""
