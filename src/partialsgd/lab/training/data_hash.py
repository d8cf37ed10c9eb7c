"""Which data a run is of: a hash, so that it is not resumed or scored on others."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def of_tensors(*tensors: Tensor) -> str:
    """Of shapes, types and numbers."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def of_texts(*texts: str) -> str:
    total = hashlib.sha256()
    for text in texts:
        total.update(f"{len(text)} {text}".encode())
    return total.hexdigest()
