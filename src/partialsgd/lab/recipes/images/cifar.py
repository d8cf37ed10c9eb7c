"""CIFAR-10 in its published binary files: for each image one byte of label and 3 × 32 × 32 bytes, red first."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from partialsgd.lab.recipes.images.data import Data, Part, apart

SHAPE = (3, 32, 32)
CLASSES = 10
_RECORD = 1 + 3 * 32 * 32
_INSIDE, _TEST, _NAMES = "cifar-10-batches-bin", "test_batch.bin", "batches.meta.txt"


def read(folder: str | os.PathLike[str], valid_share: float, seed: int, limit: int | None = None) -> Data:
    """However many of the five training batches there are, the test batch, and the names of the classes if given."""
    found = _folder(Path(folder))
    training = sorted(found.glob("data_batch_*.bin"), key=lambda path: (len(path.name), path.name))
    if not training:
        raise FileNotFoundError(f"{found} has no data_batch_*.bin; {_what_it_holds(found)}")
    if not (found / _TEST).is_file():
        raise FileNotFoundError(f"{found / _TEST} is missing: the accuracy is measured on it")
    parts = [batch(path) for path in training]
    known = Part(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    train, valid = apart(known, valid_share, seed, limit)
    return Data(train, valid, batch(found / _TEST), _names(found / _NAMES))


def _folder(given: Path) -> Path:
    if not given.is_dir():
        raise FileNotFoundError(f"--data {given} is no folder; give the one with data_batch_1.bin and {_TEST}")
    has_files = any(given.glob("data_batch_*.bin")) or (given / _TEST).exists()
    return given / _INSIDE if not has_files and (given / _INSIDE).is_dir() else given


def _what_it_holds(folder: Path) -> str:
    if (folder / "data_batch_1").exists():
        return "it is the Python version of CIFAR-10, which is pickled and not read here; get the binary version"
    return "give --data the folder with the binary version of CIFAR-10"


def batch(path: Path) -> Part:
    """One file."""
    content = path.read_bytes()
    if not content or len(content) % _RECORD:
        raise ValueError(
            f"{path} has {len(content):,} bytes, and an image has {_RECORD:,}: it is not whole, or not a binary file "
            "of CIFAR-10; get it again"
        )
    records: Tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, _RECORD)
    labels = records[:, 0].long()
    if bool((labels >= CLASSES).any()):
        first = int((labels >= CLASSES).nonzero()[0])
        raise ValueError(
            f"{path}: image {first + 1} has label {int(labels[first])}, and CIFAR-10 has 0 to {CLASSES - 1}; it is "
            "damaged, or of another data set"
        )
    return Part(records[:, 1:].reshape(-1, *SHAPE), labels)


def _names(path: Path) -> tuple[str, ...]:
    """By number, if nothing is said."""
    if not path.is_file():
        return tuple(map(str, range(CLASSES)))
    names = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    if len(set(names)) != CLASSES or len(names) != CLASSES:
        raise ValueError(f"{path} must name {CLASSES} classes, one a line; it has {len(set(names))}")
    return names
