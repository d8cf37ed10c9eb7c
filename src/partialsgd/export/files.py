"""model.safetensors and config.json: written whole or not at all, and read with a word on what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

Record: TypeAlias = dict[str, Any]
"""What config.json says."""

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 1
"""The version of the format: a reader refuses what it does not know."""
STAGE = ".being_written"
"""What a kill may leave in a directory: one name, so that it is found, and removed by the next write."""

_KEY = "partialsgd"  # the record's key in the metadata of the weights


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """A folder to write into; when the block ends well its files take their places in `directory`, config.json last.

    The old config.json goes first: a kill at any moment leaves weights without it, which carry their own record.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"{directory} is a file; give the directory that the files are to be written into")
    existed = directory.exists()
    stage = directory / STAGE
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    try:
        yield stage
        _move(stage, directory)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if not existed:
            with suppress(OSError):  # it holds the files, unless writing failed
                directory.rmdir()


def write(directory: Path, record: Record, tensors: Mapping[str, Tensor]) -> None:
    """Put a checkpoint in the place of the one that is there. The weights hold the record too."""
    record = {"format": FORMAT, **record}
    record["digest"] = digest(record, tensors)
    with staged(directory) as stage:
        write_tensors(stage / WEIGHTS, tensors, {_KEY: json.dumps(record)})
        write_json(stage / CONFIG, record)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:  # a full disk is an OSError everywhere else
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def write_json(path: Path, record: Record) -> None:
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read(directory: Path) -> tuple[Record, dict[str, Tensor]]:
    """The record and the tensors of a checkpoint, as they were written; a ValueError says what is wrong with it."""
    path = directory / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; save(nested, {str(directory)!r}) writes it")
    try:
        with safe_open(path, "pt") as file:
            record = _record(path, file.metadata())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or damaged ({error}); take another copy, or save again") from error
    said = record.pop("digest", None)
    if digest(record, tensors) != said:
        raise ValueError(
            f"{path} is not what was written: its bytes have another sha256 than its record says; "
            "take another copy, or save again"
        )
    _require_same_config(directory / CONFIG, {**record, "digest": said})
    return record, tensors


def digest(record: Record, tensors: Mapping[str, Tensor]) -> str:
    """sha256 over the record and, of each tensor, name, dtype, shape and bytes."""
    total = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def is_family(directory: Path) -> bool:
    """Whether the weights in a directory are those of a whole family; damaged ones may have been."""
    path = directory / WEIGHTS
    if not path.is_file():
        return False
    try:
        with safe_open(path, "pt") as file:
            return _KEY in (file.metadata() or {})
    except SafetensorError:
        return True


def _record(path: Path, metadata: Mapping[str, str] | None) -> Record:
    said = (metadata or {}).get(_KEY)
    if said is None:
        raise ValueError(
            f"{path} has no record of a family, so save(nested, directory) did not write it; plain weights are "
            "read by safetensors.torch.load_model, and nested again by nest"
        )
    try:
        record = json.loads(said)
        version = record["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: its record cannot be read ({error!r}); take another copy") from error
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version!r}, and this partialsgd reads format {FORMAT}; "
            f"install partialsgd {record.get('versions', {}).get('partialsgd', 'of another version')}, which wrote it"
        )
    return dict(record)


def _require_same_config(path: Path, record: Record) -> None:
    """config.json may be missing, but must not say anything else."""
    if not path.exists():
        return
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        said = None
    if said != record:
        raise ValueError(
            f"{path} does not belong to {WEIGHTS}: it was edited, or is of another save; remove {CONFIG} to go on, "
            "for the weights carry their own record"
        )


def _move(stage: Path, directory: Path) -> None:
    files = sorted(stage.iterdir(), key=lambda file: file.name == CONFIG)
    for file in files:
        file.chmod(stage.stat().st_mode & 0o666)  # safetensors' are the owner's alone; these are as any new file
        sync(file)
    if files and files[-1].name == CONFIG:
        (directory / CONFIG).unlink(missing_ok=True)
    for file in files:
        os.replace(file, directory / file.name)
    sync(directory)


def sync(path: Path) -> None:
    """To the disk, so that a power failure does not leave a name without its bytes."""
    if path.is_dir() and os.name == "nt":
        return  # Windows does not open directories
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
