"""Small problems to train on, each with one thing that a training method can get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partialsgd._util.randomness import generator, key


@final
@dataclass(frozen=True)
class Problem:
    """A model and the loss of batch t; both are functions of their seeds alone. A batch is made on the CPU, so that it
    is the same everywhere, and moved to the model's device."""

    name: str
    build: Callable[[], nn.Module]
    evaluate: Callable[[nn.Module, int], Tensor]
    is_random: bool = False
    """True if a forward pass draws from the global generator (dropout)."""

    def model(self, seed: int = 0) -> nn.Module:
        """A new model; the global generator is left as it was."""
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        model = self.build()
        torch.set_rng_state(state)
        return model

    def closure(self, model: nn.Module, t: int) -> Callable[[], Tensor]:
        """Forward and backward on batch t."""

        def run() -> Tensor:
            loss = self.evaluate(model, t)
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
            return loss

        return run


class Quadratic(nn.Module):
    """f(x) = ½ Σ hᵢ (xᵢ − cᵢ)², with curvatures 1 … L and the minimum at c."""

    def __init__(self, curvature: float = 10.0) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([2.0, -1.0, 0.5]))
        self.b = nn.Parameter(torch.tensor([[1.0, -2.0], [3.0, 0.25]]))
        self.register_buffer("h", torch.linspace(1.0, curvature, 7))
        self.register_buffer("c", torch.linspace(-1.0, 1.0, 7))

    def forward(self, noise: Tensor) -> Tensor:
        x = torch.cat([self.a, self.b.reshape(-1)])
        h, c = self.get_buffer("h"), self.get_buffer("c")
        return 0.5 * (h * (x - c) ** 2).sum() + (noise * x).sum()


class Tied(nn.Module):
    """A language model whose input and output embeddings are one parameter with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.relu(self.hidden(self.embedding(tokens))))
        return scores


class SometimesUnused(nn.Module):
    """A layer that takes part in every other batch only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.detour = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, detour: bool) -> Tensor:
        h = torch.tanh(self.stem(x))
        scores: Tensor = self.head(torch.tanh(self.detour(h)) if detour else h)
        return scores


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3))


def _batchnorm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 3)
    )


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(
        nn.Embedding(11, 8), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, 11)
    )


def _noise(model: nn.Module, t: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(key("batch", t)), device="cpu").to(_device_of(model))


def _labels(model: nn.Module, t: int, high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=generator(key("labels", t)), device="cpu").to(_device_of(model))


def _device_of(model: nn.Module) -> torch.device:
    """Return the device of the model, which may also be a function of tensors on the CPU."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return next((p.device for p in parameters), torch.device("cpu"))


def _evaluate_quadratic(model: nn.Module, t: int) -> Tensor:
    loss: Tensor = model(0.1 * _noise(model, t, 7))
    return loss


def _evaluate_tokens(model: nn.Module, t: int) -> Tensor:
    tokens = _labels(model, t, 11, 4, 5)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _classify(*shape: int, sometimes: bool = False) -> Callable[[nn.Module, int], Tensor]:
    """Return the loss of five inputs of this shape; with `sometimes`, the model is told whether t is even."""

    def evaluate(model: nn.Module, t: int) -> Tensor:
        x = _noise(model, t, 5, *shape)
        return F.cross_entropy(model(x, t % 2 == 0) if sometimes else model(x), _labels(model, t, 3, 5))

    return evaluate


PROBLEMS = (
    Problem("quadratic", Quadratic, _evaluate_quadratic),
    Problem("mlp", _mlp, _classify(6)),
    Problem("transformer", _transformer, _evaluate_tokens, is_random=True),
    Problem("batchnorm", _batchnorm, _classify(1, 6, 6), is_random=True),
    Problem("tied", Tied, _evaluate_tokens),
    Problem("unused", SometimesUnused, _classify(6, sometimes=True)),
)
