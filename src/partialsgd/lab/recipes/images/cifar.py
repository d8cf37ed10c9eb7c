"""CIFAR-10's binary files: for each image one byte of label and 3 × 32 × 32 bytes of pixels, red first."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from partialsgd.lab.recipes.images.data import Data, Part, split_off_validation

SHAPE = (3, 32, 32)
CLASSES = 10
_RECORD = 1 + 3 * 32 * 32
_SUBFOLDER, _TEST, _NAMES = "cifar-10-batches-bin", "test_batch.bin", "batches.meta.txt"


def read(folder: str | os.PathLike[str], valid_share: float, seed: int, limit: int | None = None) -> Data:
    """Read all training batches in the folder (one is enough), the test batch, and the class names if present."""
    folder = _folder(Path(folder))
    training = sorted(folder.glob("data_batch_*.bin"), key=lambda path: (len(path.name), path.name))
    if not training:
        hint = "give --data the folder with the binary version of CIFAR-10"
        if (folder / "data_batch_1").exists():
            hint = "it is CIFAR-10's Python version, which is pickled and therefore not read; get the binary version"
        raise FileNotFoundError(f"{folder} has no data_batch_*.bin; {hint}")
    if not (folder / _TEST).is_file():
        raise FileNotFoundError(f"{folder / _TEST} is missing; the accuracy is measured on it")
    parts = [batch(path) for path in training]
    images = Part(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    train, valid = split_off_validation(images, valid_share, seed, limit)
    return Data(train, valid, batch(folder / _TEST), _names(folder / _NAMES))


def _folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise FileNotFoundError(f"--data {folder} is not a folder; give the one with data_batch_1.bin and {_TEST}")
    has_files = any(folder.glob("data_batch_*.bin")) or (folder / _TEST).exists()
    return folder / _SUBFOLDER if not has_files and (folder / _SUBFOLDER).is_dir() else folder


def batch(path: Path) -> Part:
    """Read one file."""
    content = path.read_bytes()
    if not content or len(content) % _RECORD:
        raise ValueError(
            f"{path} has {len(content):,} bytes, which is not a multiple of the {_RECORD:,} bytes of an image; it is "
            "incomplete, or not a binary file of CIFAR-10: download it again"
        )
    records: Tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, _RECORD)
    labels = records[:, 0].long()
    if bool((labels >= CLASSES).any()):
        first = int((labels >= CLASSES).nonzero()[0])
        raise ValueError(
            f"{path}: image {first + 1} has label {int(labels[first])}, but CIFAR-10's labels are 0 to {CLASSES - 1}; "
            "the file is damaged, or belongs to another data set"
        )
    return Part(records[:, 1:].reshape(-1, *SHAPE), labels)


def _names(path: Path) -> tuple[str, ...]:
    """The names of the classes, or their numbers if there is no file."""
    if not path.is_file():
        return tuple(map(str, range(CLASSES)))
    names = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    if len(set(names)) != CLASSES or len(names) != CLASSES:
        raise ValueError(f"{path} must name {CLASSES} classes, one a line; it names {len(set(names))}")
    return names
