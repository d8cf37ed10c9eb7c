"""A trained network that a training learns from, beside the labels."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.lab.recipes.translation import losses
from partialsgd.lab.recipes.translation.batches import TokenBatch
from partialsgd.lab.recipes.translation.work import Shape, Work


@final
class Teacher:
    """It answers in evaluation mode, without gradient, and is no part of the family: no checkpoint holds it."""

    def __init__(self, network: nn.Module, weight: float) -> None:
        self._network, self._weight = network.eval(), weight
        self._work = Work(ps.nest(network, levels={}), "forward")

    def mixed(self, loss: Tensor, logits: Tensor, batch: TokenBatch) -> Tensor:
        """(1 − w) · loss + w · Σ −softmax(teacher) · log softmax(logits), summed over the tokens of the batch.

        The form of Hinton et al. (2015) at temperature 1. `loss` is what is learnt without a teacher.
        """
        with torch.no_grad():
            answer = losses.run(self._network.to(logits.device), batch).logits
        return (1 - self._weight) * loss + self._weight * losses.distilled(
            logits, answer.to(logits.dtype), batch["labels"]
        )

    def flops(self, shape: Shape) -> int:
        """Of the forward pass, the only one."""
        return self._work("full", shape)
