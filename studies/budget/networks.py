"""The two trained networks of the study: a convolutional network on CIFAR-10, a language model on phrases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partialsgd import soft_cross_entropy
from partialsgd.lab.recipes.images.data import read_cifar_batch
from partialsgd.lab.recipes.translation import phrases

_LENGTH = 48


@final
@dataclass(frozen=True)
class Problem:
    """A network, its data, and how it is trained and scored."""

    name: str
    build: Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    steps: int
    rate: float
    narrowed: Callable[[str], bool]
    """True for the layers whose outputs may be fewer, by name."""

    def loss(self, model: nn.Module, rows: Tensor) -> Tensor:
        x, y = self.train
        return F.cross_entropy(model(x[rows]).flatten(0, -2), y[rows].flatten())

    def fit(self, model: nn.Module, steps: int, seed: int, teacher: nn.Module | None = None) -> None:
        """Train by Adam; the learning rate falls to zero. With a teacher, half of the loss is by its outputs."""
        draw = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.Adam(model.parameters(), self.rate)
        model.train()
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = self.rate * (1 - step / steps)
            optimizer.zero_grad()
            rows = torch.randint(len(self.train[0]), (64,), generator=draw)
            (self.loss(model, rows) if teacher is None else self._taught_loss(model, teacher, rows)).backward()
            optimizer.step()
        model.eval()

    def _taught_loss(self, model: nn.Module, teacher: nn.Module, rows: Tensor) -> Tensor:
        with torch.no_grad():
            target = teacher(self.train[0][rows])
        outputs = model(self.train[0][rows])
        labels = F.cross_entropy(outputs.flatten(0, -2), self.train[1][rows].flatten())
        return (labels + soft_cross_entropy(outputs, target)) / 2

    @torch.no_grad()
    def recalibrate(self, model: nn.Module, batches: Sequence[Tensor]) -> None:
        """Compute the statistics of BatchNorm anew on some batches, and change nothing else."""
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        model.train()
        for rows in batches if norms else ():
            model(self.train[0][rows])
        model.eval()
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """The share of test labels (images, or next characters) that are predicted."""
        model.eval()
        x, y = self.test
        right = sum(int((model(x[i : i + 250]).argmax(-1) == y[i : i + 250]).sum()) for i in range(0, len(x), 250))
        return right / y.numel()


def images(folder: Path) -> Problem:
    """4,000 training and 2,000 test images of CIFAR-10."""
    parts = [read_cifar_batch(folder / name) for name in ("data_batch_1.bin", "test_batch.bin")]
    (train, test) = ((p.images[:n].float() / 127.5 - 1, p.labels[:n]) for p, n in zip(parts, (4000, 2000), strict=True))
    return Problem("CIFAR-10", _convolutional, train, test, 800, 2e-3, lambda name: name != "head")


def language() -> Problem:
    """Characters of English phrases; the next one is predicted."""
    corpus = phrases.generate("en", "de", size=3000)
    text = "\n".join(source for source, _ in corpus.splits["train"])
    letters = {letter: i for i, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([letters[letter] for letter in text])
    rows = ids[: len(ids) // (_LENGTH + 1) * (_LENGTH + 1)].view(-1, _LENGTH + 1)
    cut = len(rows) * 9 // 10
    train, test = ((part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in (rows[:cut], rows[cut:]))
    return Problem(
        "phrases", partial(_LanguageModel, len(letters)), train, test, 600, 3e-3, lambda name: name.endswith("fc1")
    )


def _convolutional() -> nn.Module:
    layers: list[tuple[str, nn.Module]] = []
    for i, (inputs, outputs, pools) in enumerate(((3, 32, True), (32, 64, True), (64, 96, False), (96, 96, True))):
        layers += [
            (f"conv{i}", nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)),
            (f"norm{i}", nn.BatchNorm2d(outputs)),
        ]
        layers += [(f"relu{i}", nn.ReLU())] + ([(f"pool{i}", nn.MaxPool2d(2))] if pools else [])
    layers += [("average", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("head", nn.Linear(96, 10))]
    model = nn.Sequential()
    for name, layer in layers:
        model.add_module(name, layer)
    return model


@final
class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 16 * width), nn.Linear(16 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        heads = [t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (q, k, v)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


@final
class _LanguageModel(nn.Module):
    def __init__(self, letters: int, width: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(_LENGTH, width)
        self.blocks = nn.ModuleList([_Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, letters)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.letters(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)
