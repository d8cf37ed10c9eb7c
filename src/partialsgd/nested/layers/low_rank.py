"""(VU + W)x + b: a layer with a layer of low rank inside it (equation LFC)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from partialsgd._util import randomness
from partialsgd.nested.layers.base import NestedLayer
from partialsgd.nested.layers.kinds import Form, like, weight_of
from partialsgd.nested.layers.lazy_weight import LazyWeight
from partialsgd.nested.switch import Switch

Init = Literal["svd", "matched", "zero"]


@final
class LowRankLayer(NestedLayer):
    """VU + W at full, the first k columns of V and rows of U at rank k; one bias, shared.

    U and V lie in blocks, one for each level's share of the rank, so that a level moves whole parameters.
    """

    by = "LowRank"

    U0: nn.Parameter
    V0: nn.Parameter
    W: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self, layer: nn.Module, form: Form, ranks: Mapping[str, int], switch: Switch, *, init: Init, key: int
    ) -> None:
        bounds = [0, *sorted(set(ranks.values()))]
        counts = {level: bounds.index(rank) for level, rank in ranks.items()}
        super().__init__(switch, {level: counts.get(level, len(bounds) - 1) for level in switch.levels})
        self.form, self.bounds, self.small = form, bounds, frozenset(ranks)
        weight = layer.get_parameter("weight")
        u, v, w = factors(weight_of(layer, form), bounds, init, key)
        for i, (low, high) in enumerate(itertools.pairwise(bounds)):
            self.register_parameter(f"U{i}", like(weight, u[low:high]))
            self.register_parameter(f"V{i}", like(weight, v[:, low:high]))
        self.register_parameter("W", like(weight, w))
        self.register_parameter("bias", layer._parameters["bias"])

    def forward(self, x: Tensor) -> Tensor:
        level = self.switch.level
        u, v = self._factors(level)
        if level in self.small:
            return self.form.pointwise(self.form.apply(x, u, None), v, self.bias)
        if self.form.has_many_places(x):  # W + VU costs k · in · out, two products k · (in + out) in each place
            return self.form.apply(x, self._merged(u, v), self.bias)
        return self.form.apply(x, self.W, self.bias) + self.form.pointwise(self.form.apply(x, u, None), v, None)

    @property
    def weight(self) -> Tensor:
        """The product VU, or W + VU, made when it is used for more than its dtype."""
        if torch.compiler.is_compiling():
            return self.weight_at(self.switch.level)
        return LazyWeight(self.W, self.form.as_stored(self.W).shape, partial(self.weight_at, self.switch.level))

    def weight_at(self, level: str) -> Tensor:
        u, v = self._factors(level)
        dense = (v @ u.flatten(1)).view_as(self.W) if level in self.small else self._merged(u, v)
        return self.form.as_stored(dense)

    def sizes_at(self, level: str) -> tuple[int, int]:
        return self.form.outputs, self.form.inputs

    def parts(self, level: str) -> Iterator[nn.Parameter]:
        for i in range(self.counts[level]):
            yield self.get_parameter(f"U{i}")
            yield self.get_parameter(f"V{i}")
        if level not in self.small:
            yield self.W
        if self.bias is not None:
            yield self.bias

    def shipped(self, level: str) -> Iterator[nn.Parameter]:
        """At full VU goes into W."""
        if level in self.small:
            return self.parts(level)
        return iter([self.W] if self.bias is None else [self.W, self.bias])

    def plain(self, level: str, memo: dict[int, Any]) -> nn.Module:
        u, v = self._factors(level)
        if level not in self.small:
            return self.form.plain(self._merged(u, v), self.bias)
        pair = nn.Sequential(self.form.plain(u, None), self.form.plain_pointwise(v, self.bias))
        # Code that asks a layer only for the dtype or device of its weight (T5, patch embeddings) gets an answer.
        pair.register_buffer("weight", u.new_empty(0).detach(), persistent=False)
        return pair

    def describe(self) -> str:
        outputs, inputs = self.W.flatten(1).shape
        ranks = ", ".join(str(rank) for rank in self.bounds[1:])
        return f"rank {ranks} of {min(outputs, inputs)} ({self.form.inputs} → {self.form.outputs})"

    def _factors(self, level: str) -> tuple[Tensor, Tensor]:
        count = self.counts[level]
        if count == 1:
            return self.U0, self.V0
        names = range(count)
        return torch.cat([getattr(self, f"U{i}") for i in names]), torch.cat([getattr(self, f"V{i}") for i in names], 1)

    def _merged(self, u: Tensor, v: Tensor) -> Tensor:
        if self.form.kernel:
            return torch.addmm(self.W.flatten(1), v, u.flatten(1)).view_as(self.W)
        return torch.addmm(self.W, v, u)


def factors(weight: Tensor, bounds: list[int], init: Init, key: int) -> tuple[Tensor, Tensor, Tensor]:
    """U, V and W for the given weight. What is drawn beyond the first rank starts without effect."""
    matrix, first, rank = weight.flatten(1), bounds[1], bounds[-1]
    if init == "svd":
        exact = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        left, singular, right = torch.linalg.svd(exact, full_matrices=False)
        root = singular[:rank].sqrt()
        u, v = (root[:, None] * right[:rank]).to(matrix), (left[:, :rank] * root).to(matrix)
    else:
        u_scale, v_scale = _xavier(weight, first) if init == "zero" else _matched(matrix, first)
        u = _drawn(rank, matrix.shape[1], u_scale, randomness.key(key, "U")).to(matrix)
        v = _drawn(matrix.shape[0], rank, v_scale, randomness.key(key, "V")).to(matrix)
        v[:, first:] = 0
    product = (v @ u).view_as(weight)
    return u.view(rank, *weight.shape[1:]), v, torch.zeros_like(weight) if init == "zero" else weight - product


def _xavier(weight: Tensor, rank: int) -> tuple[float, float]:
    """The deviations of U and V as of two layers of their own."""
    outputs, inputs, places = weight.shape[0], weight.shape[1], weight[0, 0].numel()
    return math.sqrt(2 / (places * (inputs + rank))), math.sqrt(2 / (rank + outputs))


def _matched(matrix: Tensor, rank: int) -> tuple[float, float]:
    """Var(VU) = k Var(V) Var(U) is to be Var(W₀): both factors get the same deviation."""
    each = (matrix.float().pow(2).mean().item() / rank) ** 0.25
    return each, each


def _drawn(rows: int, columns: int, deviation: float, key: int) -> Tensor:
    generator = torch.Generator().manual_seed(key)
    return (torch.rand(rows, columns, generator=generator) * 2 - 1) * (math.sqrt(3) * deviation)
