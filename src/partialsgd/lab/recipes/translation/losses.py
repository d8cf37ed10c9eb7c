"""How far a network is from the translations that it should give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialsgd as ps
from partialsgd._util.snapshots import Modes
from partialsgd.lab.recipes.translation.batches import NO_LABEL, TokenBatch
from partialsgd.lab.training.task import Numbers

INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")


def run(model: nn.Module, batch: TokenBatch) -> Any:
    """The network's outputs, `logits` among them."""
    return model(**{name: batch[name] for name in INPUTS}, use_cache=False)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Summed over the tokens of the batch; `smoothing` of the target's probability is spread over all tokens."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="sum", label_smoothing=smoothing
    )


def distilled(logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """Against the teacher's probabilities, summed over the tokens of the batch."""
    real = labels != NO_LABEL
    return ps.soft_cross_entropy(logits[real], teacher[real]) * real.sum()


@torch.no_grad()
def likelihood(network: nn.Module, batches: Sequence[TokenBatch]) -> Numbers:
    """The mean negative log-likelihood of a token, and the perplexity; the network is left as it was."""
    device, modes = next(network.parameters()).device, Modes(network)
    network.eval()
    try:
        total = torch.zeros((), dtype=torch.float64, device=device)
        for batch in batches:
            moved = {name: tensor.to(device) for name, tensor in batch.items()}
            total += cross_entropy(run(network, moved).logits.float(), moved["labels"])
    finally:
        modes.restore()
    count = sum(int((batch["labels"] != NO_LABEL).sum()) for batch in batches)
    loss = float(total) / max(count, 1)
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
