"""The tasks: data, network and number of steps, the same for every method."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from partialsgd.lab.recipes.images import data
from partialsgd.lab.training.errors import NotThere, WrongCall


@final
@dataclass(frozen=True)
class Part:
    """Examples and their labels."""

    x: Tensor
    y: Tensor

    def batches(self, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Without end; each epoch in an order of its own."""
        draw = torch.Generator().manual_seed(seed)
        while True:
            for batch in torch.randperm(len(self.x), generator=draw).split(size):
                if len(batch) == size:
                    yield self.x[batch], self.y[batch]


@final
@dataclass(frozen=True)
class Data:
    train: Part
    held_out: Part
    """A fifth of the training data, by which a learning rate is chosen."""
    test: Part


def _data(x: Tensor, y: Tensor, test: Part) -> Data:
    cut = len(x) * 4 // 5
    return Data(Part(x[:cut], y[:cut]), Part(x[cut:], y[cut:]), test)


@final
@dataclass(frozen=True)
class Task:
    """One learning problem. `network` is a Sequential whose children are named."""

    name: str
    title: str
    load: Callable[[Path | None], Data]
    network: Callable[[], nn.Sequential]
    steps: int
    batch: int
    seeds: Sequence[int]
    rates: tuple[float, ...]
    """Learning rates that every method tries."""
    needs_data: bool = False

    @property
    def settings(self) -> str:
        return f"{self.title}; {self.steps} steps of {self.batch} examples; learning rates {self.rates}"


@lru_cache(maxsize=1)
def digits(_: Path | None = None) -> Data:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images / 16, labels, test_size=0.2, random_state=0)
    x, test = (torch.tensor(part, dtype=torch.float32) for part in (train_x, test_x))
    return _data(x, torch.tensor(train_y), Part(test, torch.tensor(test_y)))


@lru_cache(maxsize=1)
def cifar10(folder: Path | None) -> Data:
    """The published binary layout: one byte of label, then 3 × 32 × 32 bytes of image."""
    if folder is None:
        raise WrongCall("CIFAR-10 is read from a folder: give --data, the folder with data_batch_1.bin")
    train, test = (_batch(folder / name) for name in ("data_batch_1.bin", "test_batch.bin"))
    train_x, test_x = (part.images.float() / 255 for part in (train, test))
    mean, deviation = train_x.mean((0, 2, 3), keepdim=True), train_x.std((0, 2, 3), keepdim=True)
    of_test = Part((test_x - mean) / deviation, test.labels)
    return _data((train_x - mean) / deviation, train.labels, of_test)


def _batch(path: Path) -> data.Part:
    if not path.exists():
        raise NotThere(f"{path} does not exist; --data is the folder with the binary version of CIFAR-10")
    return data.read_cifar_batch(path)


def mlp() -> nn.Sequential:
    """64-128-128-128-10."""
    return _named(
        first=nn.Linear(64, 128),
        relu_1=nn.ReLU(),
        second=nn.Linear(128, 128),
        relu_2=nn.ReLU(),
        third=nn.Linear(128, 128),
        relu_3=nn.ReLU(),
        output=nn.Linear(128, 10),
    )


def cnn() -> nn.Sequential:
    """Three convolutions, each of which halves the resolution, and two linear layers."""
    return _named(
        conv_1=nn.Conv2d(3, 16, 3, stride=2, padding=1),
        relu_1=nn.ReLU(),
        conv_2=nn.Conv2d(16, 32, 3, stride=2, padding=1),
        relu_2=nn.ReLU(),
        conv_3=nn.Conv2d(32, 64, 3, stride=2, padding=1),
        relu_3=nn.ReLU(),
        flat=nn.Flatten(),
        hidden=nn.Linear(64 * 4 * 4, 128),
        relu_4=nn.ReLU(),
        output=nn.Linear(128, 10),
    )


def _named(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))


DIGITS = Task(
    "digits",
    "scikit-learn's digits (1,149 images to learn from, 288 held out, 360 to test), MLP 64-128-128-128-10",
    digits,
    mlp,
    steps=600,
    batch=64,
    seeds=(0, 1, 2),
    rates=(0.05, 0.1, 0.2),
)
CIFAR10 = Task(
    "cifar10",
    "CIFAR-10 (8,000 images to learn from, 2,000 held out, 10,000 to test), three convolutions, two linear layers",
    cifar10,
    cnn,
    steps=800,
    batch=64,
    seeds=(0,),
    rates=(0.02, 0.05, 0.1),
    needs_data=True,
)
TASKS = {task.name: task for task in (DIGITS, CIFAR10)}
