"""Learning from the larger network: the loss against its soft targets."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_cross_entropy(outputs: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """−Σ softmax(teacher/T) · log softmax(outputs/T) · T², the mean over all but the last dimension.

    The teacher is detached: it is not pulled towards its pupil.
    """
    if outputs.shape != teacher.shape:
        raise ValueError(f"outputs have shape {tuple(outputs.shape)} and the teacher's {tuple(teacher.shape)}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    targets = torch.softmax(teacher.detach() / temperature, -1)
    return -(targets * torch.log_softmax(outputs / temperature, -1)).sum(-1).mean() * temperature**2
