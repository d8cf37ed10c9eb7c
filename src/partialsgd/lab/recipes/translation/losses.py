"""Losses of a translation model: cross-entropy with the labels, with a teacher, and on held-out data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.lab.recipes.translation.batches import NO_LABEL, TokenBatch
from partialsgd.lab.recipes.translation.flops import Shape, TranslationFlops
from partialsgd.lab.training.task import Numbers
from partialsgd.lab.training.timing import evaluation_mode

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
        return (1 - self._weight) * loss + self._weight * distilled

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
    loss = float(total) / max(count, 1)
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
