"""A task for the loop in milliseconds: points on a line with noise, a network with dropout, two levels."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab import recipes
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.settings import Settings
from partialsgd.lab.training.task import Batch, ExportDetails, Numbers, Split
from partialsgd.method import Method

FOLDER = "partialsgd.lab.recipes.toy"
PAUSE = 0.0
"""Seconds that a batch takes, so that a kill or a signal finds the run at work."""


@final
@dataclass(frozen=True, kw_only=True)
class Toy(Settings):
    recipe: ClassVar[str] = "toy"
    count: int = 7
    """Batches in an epoch."""
    nan_at: int | None = None
    """The batch that holds a NaN, in every epoch."""
    width: int = 8
    dropout: float = 0.25
    norm: bool = False
    """With BatchNorm."""
    lr: float = 0.01
    epochs: int = 2
    checkpoint_every: int = 3


@final
class ToyBatches:
    def __init__(self, seed: int, count: int, nan_at: int | None = None) -> None:
        self.seed, self.count, self.nan_at = seed, count, nan_at

    def __len__(self) -> int:
        return self.count

    def units(self, epoch: int, index: int) -> int:
        return 4 + index % 2

    def make(self, epoch: int, index: int) -> Batch:
        time.sleep(PAUSE)
        generator = torch.Generator().manual_seed(hash((self.seed, epoch, index)) % 2**31)
        x = torch.randn(self.units(epoch, index), 3, generator=generator)
        return x * torch.nan if index == self.nan_at else x


@final
class ToyTask:
    unit, score, signature, formats = "points", "accuracy", None, ("safetensors",)

    def __init__(self, settings: Toy) -> None:
        torch.manual_seed(settings.seed)
        width, dropout = settings.width, nn.Dropout(settings.dropout)
        norm = [nn.BatchNorm1d(width)] if settings.norm else []
        model = nn.Sequential(nn.Linear(3, width), *norm, nn.ReLU(), dropout, nn.Linear(width, 1))
        self.settings = settings
        self.use(ps.nest(model, ps.Width(1 / 2)))
        self.batches = ToyBatches(settings.seed, settings.count, settings.nan_at)

    def use(self, network: ps.Nested) -> None:
        self.network = network
        self.optimizers: Sequence[Optimizer] = [torch.optim.Adam(network.parameters(), lr=self.settings.lr)]

    def notes(self) -> list[str]:
        return []

    def data_hash(self) -> str:
        return "points"

    def learning_rate(self, t: int, total: int) -> float:
        return 1 / (1 + t)

    def loss(self, model: nn.Module, batch: Batch, g: GradientPass) -> Tensor:
        g.outputs = outputs = model(batch).squeeze(1)
        loss = (outputs - batch.sum(dim=1)).square().sum()
        return loss if g.teacher is None else (loss + (outputs - g.teacher).square().sum()) / 2

    @torch.no_grad()
    def quick_eval(self, level: str) -> Numbers:
        torch.rand(3)  # careless on purpose: evaluation must leave no trace
        self.network.eval()
        x = torch.eye(3)
        with self.network.at(level):
            return {"loss": float((self.network(x).squeeze(1) - 1).square().mean())}

    def selection_score(self, evaluations: Mapping[str, Numbers]) -> float:
        return -sum(each["loss"] for each in evaluations.values())

    def scores(self, level: str, split: Split) -> Numbers:
        return {"accuracy": 1 / (1 + self.quick_eval(level)["loss"])}

    def extras(self, method: Method) -> dict[str, Any]:
        return {"said": "nothing more"}

    def flops(self, level: str, batch: Batch) -> int:
        return len(batch) * (1 if level == "core" else 2)

    def example(self) -> Any:
        return torch.eye(3)

    def latency(self, extracted: nn.Module) -> float:
        return 0.001

    def sidecar_files(self) -> dict[str, str]:
        return {}

    def export_details(self, level: str, format: str) -> ExportDetails:
        return ExportDetails(about="Adds up.", packages="torch", code="")


def build(settings: Toy) -> ToyTask:
    return ToyTask(settings)


def trained(out: Path, **settings: Any) -> Run:
    return loop.train(Toy(out=str(out), **settings), show=False)


def stop(number: int = signal.SIGINT) -> None:
    """Ask this process to stop."""
    os.kill(os.getpid(), number)


def at_batch(position: int, do: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """When the loop asks for the batch of this position, once."""
    make, done = ToyBatches.make, list[int]()

    def made(self: ToyBatches, epoch: int, index: int) -> Batch:
        if epoch * len(self) + index == position and not done:
            done.append(position)
            do()
        return make(self, epoch, index)

    patch.setattr(ToyBatches, "make", made)


def register() -> None:
    """One recipe more, in this process."""
    recipes.RECIPES["toy"] = Toy
    sys.modules |= dict.fromkeys((FOLDER, f"{FOLDER}.task", f"{FOLDER}.settings"), sys.modules[__name__])


def unregister() -> None:
    del recipes.RECIPES["toy"]
    for name in (FOLDER, f"{FOLDER}.task", f"{FOLDER}.settings"):
        del sys.modules[name]
