"""Safetensors files that carry a JSON record and a checksum over the record and the tensors. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

Record: TypeAlias = dict[str, Any]


class DamagedFile(ValueError):
    """The file could be read, but is not what was written: it is truncated, or its checksum is another."""


def write(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file; a full disk is an OSError, as everywhere else. It is not atomic: see `files.staged`."""
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def write_checked(path: Path, key: str, record: Record, tensors: Mapping[str, Tensor]) -> Record:
    """Write tensors with a record under `key` of the metadata, and return the record with its checksum."""
    record = {**record, "digest": digest(record, tensors)}
    write(path, tensors, {key: json.dumps(record)})
    return record


def read_record(path: Path, key: str) -> Record | None:
    """Read the record that `write_checked` wrote, or None if the file has none; what cannot be read is an OSError."""
    with path.open("rb") as content:  # safetensors maps it into memory, where an unreadable page ends the process
        while content.read(1 << 20):
            pass
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(key)
    except SafetensorError as error:
        raise _damaged(path, error) from error
    if text is None:
        return None
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(path, error) from error


def read_tensors(path: Path, record: Record) -> dict[str, Tensor]:
    """Read the tensors, and raise `DamagedFile` unless they and the record are those that were written."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except SafetensorError as error:
        raise _damaged(path, error) from error
    if digest({name: value for name, value in record.items() if name != "digest"}, tensors) != record.get("digest"):
        raise DamagedFile(
            f"{path} has changed since it was written: its sha256 is not the one in its record; "
            "take another copy, or save again"
        )
    return tensors


def digest(record: Record, tensors: Mapping[str, Tensor]) -> str:
    """Hash the record and the name, dtype, shape and bytes of every tensor (sha256)."""
    total = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _damaged(path: Path, error: Exception) -> DamagedFile:
    return DamagedFile(f"{path} is truncated or damaged ({error}); take another copy, or save again")
