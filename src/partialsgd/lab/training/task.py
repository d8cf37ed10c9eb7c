"""The interface between the loop and a recipe: a `Task` has the model, the batches, the loss and the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, Literal, Protocol, TypeAlias, final

from torch import Tensor, nn
from torch.optim import Optimizer

from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.method import Method
from partialsgd.nested import Nested

Batch: TypeAlias = Any
"""Tensors in any nesting of dicts and tuples, on the CPU."""

Numbers: TypeAlias = dict[str, float]
Split: TypeAlias = Literal["valid", "test"]


class Batches(Protocol):
    """The training batches as a function of (epoch, index) and a seed, so that a resumed run repeats them."""

    def __len__(self) -> int:
        """The number of batches in an epoch, the same for every epoch."""

    def units(self, epoch: int, index: int) -> int:
        """The number of tokens or images in the loss of a batch, without making the batch."""

    def make(self, epoch: int, index: int) -> Batch: ...


class Task(Protocol):
    """A recipe with its settings: everything that the loop needs to train, evaluate and export."""

    network: Nested
    optimizers: Sequence[Optimizer]
    """Their learning rates are the peak values; `learning_rate` multiplies them."""
    batches: Batches
    unit: str
    """The plural noun for what `Batches.units` counts, such as tokens."""
    score: str
    """The name of the number in `scores` that tables show, such as "BLEU" or "accuracy"."""
    signature: str | None
    """A description of how the score is computed, to be published with it."""
    formats: Sequence[str]
    """The export formats that the recipe supports."""

    def use(self, network: Nested) -> None:
        """Take this network, which has the same levels, in the place of the task's own, with new optimizers."""

    def notes(self) -> list[str]:
        """Lines about the data to show before the first step, for instance how many examples were dropped."""

    def data_hash(self) -> str:
        """A hash of the data, so that a run is resumed and scored only on the data it was started with.

        It may be followed by words `setting:hash` for other files that the training reads, such as a teacher's.
        """

    def learning_rate(self, t: int, total: int) -> float:
        """The factor of the peak learning rates at step t of `total`: a pure function."""

    def loss(self, model: nn.Module, batch: Batch, g: GradientPass) -> Tensor:
        """The loss summed over the units of a batch. `model` is the nested model, perhaps wrapped in DDP."""

    def quick_eval(self, level: str) -> Numbers:
        """A fast evaluation on the validation data during training; it includes "loss"."""

    def selection_score(self, evaluations: Mapping[str, Numbers]) -> float:
        """One number for the quick evaluations of several levels; the best checkpoint has the largest."""

    def scores(self, level: str, split: Split) -> Numbers:
        """The complete evaluation of a level on a split."""

    def extras(self, method: Method) -> dict[str, Any]:
        """More entries for summary.json, computed once at the end of a run."""

    def flops(self, level: str, batch: Batch) -> int:
        """FLOPs of forward and backward of a level on a batch, in torch's convention."""

    def example(self) -> Any:
        """Example inputs of the network: a tensor, a tuple of arguments, or a dict of keyword arguments."""

    def latency(self, extracted: nn.Module) -> float:
        """The median time of an extracted level for a single example, in seconds."""

    def sidecar_files(self) -> dict[str, str]:
        """Text files by name that using the network needs beside its weights, such as a tokenizer."""

    def export_details(self, level: str, format: str) -> ExportDetails:
        """The files and the README text with which this recipe exports a level."""


@final
@dataclass(frozen=True, kw_only=True)
class ExportDetails:
    """The part of an export that depends on the recipe."""

    about: str
    """A sentence for the README: what the network does and what it was trained on."""
    packages: str
    """The packages that the code in the README needs, as arguments of `pip install`."""
    code: str
    """Python code that loads and uses the exported files without partialsgd."""
    input_notes: str = ""
    """A paragraph for the README about the inputs."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files to write beside the weights."""
    dynamic: Mapping[str, Mapping[int, str]] | None = None
    """Axes of the inputs whose length may vary in an ONNX graph, beside the batch."""


def fill_template(path: Path, **values: object) -> str:
    """Fill in the code of an export's README, whose placeholders are written $name."""
    return Template(path.read_text(encoding="utf-8")).substitute(values).strip("\n")
