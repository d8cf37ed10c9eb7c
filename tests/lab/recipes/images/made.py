"""CIFAR-10 in miniature: files in its layout."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def records(count: int, seed: int) -> Tensor:
    """Random images of all classes in turn."""
    found = torch.randint(256, (count, 3073), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    found[:, 0] = torch.arange(count) % 10
    return found


def write(folder: Path, training: dict[int, int], test: int = 20) -> Path:
    """data_batch_<number>.bin with so many images each, and the rest of what is published."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, count in training.items():
        (folder / f"data_batch_{number}.bin").write_bytes(records(count, number).numpy().tobytes())
    (folder / "test_batch.bin").write_bytes(records(test, 100).numpy().tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return folder
