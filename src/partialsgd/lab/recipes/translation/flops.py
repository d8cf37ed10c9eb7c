"""FLOPs of a step on a batch of any shape, interpolated exactly from five small shapes that are counted."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, final

import torch

from partialsgd.nested import Nested
from partialsgd.nested.inspect import flops
from partialsgd.nested.layers.low_rank import LowRankLayer

Shape: TypeAlias = tuple[int, int, int]
"""Sentences, tokens of each source, tokens of each target; with padding."""

_FORWARD_AND_BACKWARD = 3  # the two gradients of a matrix product cost as much as the product itself


@final
class TranslationFlops:
    """FLOPs of forward and backward, or of forward alone, of each level, equal to a count by `nested.inspect.flops`.

    A Transformer's FLOPs are B · (a S + b T + c S² + d T² + e S T). At the full level each low-rank layer also
    computes VU: for each token, or once for the batch where that is cheaper.
    """

    def __init__(self, network: Nested, part: Literal["training", "forward"] = "training") -> None:
        self._network, self._part = network, part
        self._products = [
            _Product(
                layer.linear.inputs,
                layer.linear.outputs,
                layer.bounds[-1],
                ".decoder." not in f".{name}" or name.endswith(("encoder_attn.k_proj", "encoder_attn.v_proj")),
            )
            for name, layer in network.nested_modules().items()
            if isinstance(layer, LowRankLayer)
        ]
        self._coefficients: dict[str, tuple[int, ...]] = {}

    def __call__(self, level: str, shape: Shape) -> int:
        if level not in self._coefficients:
            self._coefficients[level] = self._fit(level)
        sentences, s, t = shape
        terms = zip(self._coefficients[level], (s, t, s * s, t * t, s * t), strict=True)
        return sentences * sum(a * x for a, x in terms) + self._low_rank_products(level, shape)

    def _fit(self, level: str) -> tuple[int, ...]:
        def f(s: int, t: int) -> int:
            return self._count(level, (1, s, t)) - self._low_rank_products(level, (1, s, t))

        f11, f21, f31, f12, f22 = f(1, 1), f(2, 1), f(3, 1), f(1, 2), f(2, 2)
        c = (f31 - 2 * f21 + f11) // 2
        e = f22 - f21 - f12 + f11
        a = f21 - f11 - 3 * c - e
        b_and_d = f11 - a - c - e
        d = (f12 - f11 - e - b_and_d) // 2
        return a, b_and_d - d, c, d, e

    def _count(self, level: str, shape: Shape) -> int:
        sentences, s, t = shape
        device = next(self._network.parameters()).device
        source = torch.ones(sentences, s, dtype=torch.long, device=device)
        target = torch.ones(sentences, t, dtype=torch.long, device=device)
        call = {"input_ids": source, "attention_mask": source, "decoder_input_ids": target, "use_cache": False}
        with self._network.at(level):
            counted = flops.count(self._network.model, **call)
        return counted.training if self._part == "training" else counted.forward

    def _low_rank_products(self, level: str, shape: Shape) -> int:
        if level != self._network.levels[-1]:
            return 0
        forward = sum(product.forward(shape) for product in self._products)
        return _FORWARD_AND_BACKWARD * forward if self._part == "training" else forward


class _Product(NamedTuple):
    """The product VU of one low-rank layer."""

    inputs: int
    outputs: int
    rank: int
    reads_source: bool
    """The layer is applied to the tokens of the source, not of the target."""

    def forward(self, shape: Shape) -> int:
        sentences, s, t = shape
        per_token = sentences * (s if self.reads_source else t) * (self.inputs + self.outputs)
        return 2 * self.rank * min(per_token, self.inputs * self.outputs)
