"""Losses and FLOPs of a translation model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.lab.recipes.translation.tokens import NO_LABEL, TokenBatch
from partialsgd.lab.training.recipe_tools import evaluation_mode, with_teacher
from partialsgd.lab.training.task import Numbers
from partialsgd.nested import Nested
from partialsgd.nested.inspect import flops
from partialsgd.nested.layers.low_rank import LowRankLayer

INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")


def run(model: nn.Module, batch: TokenBatch) -> Any:
    """The network's outputs; `logits` is one of them."""
    return model(**{name: batch[name] for name in INPUTS}, use_cache=False)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """The cross-entropy summed over the tokens of the batch, with label smoothing over all tokens."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="sum", label_smoothing=smoothing
    )


def distillation(logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy with the teacher's probabilities, summed over the tokens of the batch."""
    is_token = labels != NO_LABEL
    return ps.soft_cross_entropy(logits[is_token], teacher[is_token]) * is_token.sum()


@final
class Teacher:
    """A trained network in evaluation mode. It is not part of the nested model, and no checkpoint contains it."""

    def __init__(self, network: nn.Module, weight: float) -> None:
        self._network, self._weight = network.eval(), weight
        self._flops = TranslationFlops(ps.nest(network, levels={}), "forward")

    def mix(self, loss: Tensor, logits: Tensor, batch: TokenBatch) -> Tensor:
        """(1 − w) · loss + w · Σ −softmax(teacher) · log softmax(logits), as Hinton et al. (2015) at temperature 1."""
        with torch.no_grad():
            answer = run(self._network.to(logits.device), batch).logits
        distilled = distillation(logits, answer.to(logits.dtype), batch["labels"])
        return with_teacher(loss, distilled, self._weight)

    def flops(self, shape: Shape) -> int:
        """FLOPs of the teacher's forward pass."""
        return self._flops("full", shape)


@torch.no_grad()
def likelihood(network: nn.Module, batches: Sequence[TokenBatch]) -> Numbers:
    """The mean negative log-likelihood of a token, and the perplexity, in evaluation mode."""
    device = next(network.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    with evaluation_mode(network):
        for batch in batches:
            moved = {name: tensor.to(device) for name, tensor in batch.items()}
            total += cross_entropy(run(network, moved).logits.float(), moved["labels"])
    count = sum(int((batch["labels"] != NO_LABEL).sum()) for batch in batches)
    loss = float(total) / count
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}


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
        self._low_rank = {
            name: m
            for name, m in network.nested_modules().items()
            if isinstance(m, LowRankLayer) and not m.has_own_weight
        }
        self._coefficients: dict[str, tuple[int, ...]] = {}

    def __call__(self, level: str, shape: Shape) -> int:
        if level not in self._coefficients:
            self._coefficients[level] = self._fit(level)
        sentences, s, t = shape
        terms = zip(self._coefficients[level], (s, t, s * s, t * t, s * t), strict=True)
        return sentences * sum(a * x for a, x in terms) + self._low_rank_products(level, shape)

    def _fit(self, level: str) -> tuple[int, ...]:
        def f(s: int, t: int) -> int:
            return self._count(level, s, t) - self._low_rank_products(level, (1, s, t))

        f11, f21, f31, f12, f22 = f(1, 1), f(2, 1), f(3, 1), f(1, 2), f(2, 2)
        c = (f31 - 2 * f21 + f11) // 2
        e = f22 - f21 - f12 + f11
        a = f21 - f11 - 3 * c - e
        b_and_d = f11 - a - c - e
        d = (f12 - f11 - e - b_and_d) // 2
        return a, b_and_d - d, c, d, e

    def _count(self, level: str, s: int, t: int) -> int:
        device = next(self._network.parameters()).device
        source, target = (torch.ones(1, length, dtype=torch.long, device=device) for length in (s, t))
        call = {"input_ids": source, "attention_mask": source, "decoder_input_ids": target, "use_cache": False}
        with self._network.at(level):
            counted = flops.count(self._network.model, **call)
        return counted.training if self._part == "training" else counted.forward

    def _low_rank_products(self, level: str, shape: Shape) -> int:
        if level != self._network.levels[-1]:
            return 0
        sentences, s, t = shape
        forward = 0
        for name, layer in self._low_rank.items():
            inputs, outputs, rank = layer.linear.inputs, layer.linear.outputs, layer.bounds[-1]
            is_decoder = ".decoder." in f".{name}"
            reads_target = is_decoder and not name.endswith(("encoder_attn.k_proj", "encoder_attn.v_proj"))
            per_token = sentences * (t if reads_target else s) * (inputs + outputs)
            forward += 2 * rank * min(per_token, inputs * outputs)
        return _FORWARD_AND_BACKWARD * forward if self._part == "training" else forward
