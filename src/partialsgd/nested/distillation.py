"""Distillation: the loss of a small level against the outputs of a larger one."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_cross_entropy(outputs: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return −Σ softmax(teacher/T) · log softmax(outputs/T) · T², averaged over all but the last dimension.

    No gradient flows to the teacher.
    """
    if outputs.shape != teacher.shape:
        raise ValueError(
            f"outputs of shape {tuple(outputs.shape)} and teacher outputs of shape {tuple(teacher.shape)} must be equal"
        )
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    targets = torch.softmax(teacher.detach() / temperature, -1)
    return -(targets * torch.log_softmax(outputs / temperature, -1)).sum(-1).mean() * temperature**2
