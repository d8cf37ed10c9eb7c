"""FLOPs of a step on a batch of any shape, from five small ones that are counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch

from partialsgd.nested import Nested
from partialsgd.nested.inspect import flops
from partialsgd.nested.layers.low_rank import LowRankLayer

Shape: TypeAlias = tuple[int, int, int]
"""Sentences, tokens of each source, tokens of each target, padding included."""

_FORWARD_AND_BACKWARD = 3  # of a product of matrices, the two gradients cost as much as itself


@final
class Work:
    """FLOPs of forward and backward, or of forward alone, at each level, exactly as `nested.flops` counts them.

    A Transformer's are B · (a S + b T + c S² + d T² + e S T). In the whole network of a low-rank family each layer
    has the product VU besides: taken place by place, or once for the batch where that is less.
    """

    def __init__(self, network: Nested, part: Literal["training", "forward"] = "training") -> None:
        self._network, self._part = network, part
        self._products = tuple(_products(network))
        self._known: dict[str, tuple[int, ...]] = {}

    def __call__(self, level: str, shape: Shape) -> int:
        if level not in self._known:
            self._known[level] = self._coefficients(level)
        sentences, s, t = shape
        terms = zip(self._known[level], (s, t, s * s, t * t, s * t), strict=True)
        return sentences * sum(a * x for a, x in terms) + self._beside(level, shape)

    def _coefficients(self, level: str) -> tuple[int, ...]:
        def f(s: int, t: int) -> int:
            return self._counted(level, (1, s, t)) - self._beside(level, (1, s, t))

        f11, f21, f31, f12, f22 = f(1, 1), f(2, 1), f(3, 1), f(1, 2), f(2, 2)
        c = (f31 - 2 * f21 + f11) // 2
        e = f22 - f21 - f12 + f11
        a = f21 - f11 - 3 * c - e
        b_and_d = f11 - a - c - e
        d = (f12 - f11 - e - b_and_d) // 2
        return a, b_and_d - d, c, d, e

    def _counted(self, level: str, shape: Shape) -> int:
        sentences, s, t = shape
        device = next(self._network.parameters()).device
        source = torch.ones(sentences, s, dtype=torch.long, device=device)
        target = torch.ones(sentences, t, dtype=torch.long, device=device)
        call = {"input_ids": source, "attention_mask": source, "decoder_input_ids": target, "use_cache": False}
        with self._network.at(level):
            counted = flops.count(self._network.model, **call)
        return counted.training if self._part == "training" else counted.forward

    def _beside(self, level: str, shape: Shape) -> int:
        if level != self._network.levels[-1]:
            return 0
        forward = sum(product.forward(shape) for product in self._products)
        return _FORWARD_AND_BACKWARD * forward if self._part == "training" else forward


@final
@dataclass(frozen=True)
class _Product:
    """VU of one layer."""

    inputs: int
    outputs: int
    rank: int
    of_source: bool
    """Whether the layer reads the source's places or the target's."""

    def forward(self, shape: Shape) -> int:
        sentences, s, t = shape
        by_place = sentences * (s if self.of_source else t) * (self.inputs + self.outputs)
        return 2 * self.rank * min(by_place, self.inputs * self.outputs)


def _products(network: Nested) -> Iterator[_Product]:
    for name, layer in network.nested_modules().items():
        if isinstance(layer, LowRankLayer):
            of_source = ".decoder." not in f".{name}" or name.endswith(("encoder_attn.k_proj", "encoder_attn.v_proj"))
            yield _Product(layer.linear.inputs, layer.linear.outputs, layer.bounds[-1], of_source)
