"""Hashes of data, so that a run is not resumed or scored on other data."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def hash_tensors(*tensors: Tensor) -> str:
    """Hash the dtypes, shapes and values of tensors."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def hash_texts(*texts: str) -> str:
    """Hash texts with their lengths. config.json of existing runs has such hashes, so that it must not change."""
    total = hashlib.sha256()
    for text in texts:
        total.update(f"{len(text)} {text}".encode())
    return total.hexdigest()
