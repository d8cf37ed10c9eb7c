"""Checkpoints of a training: one safetensors file each, written whole or not at all, checked when read, no pickle."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from partialsgd._util import files, tensor_files
from partialsgd._util.packing import pack, unpack
from partialsgd._util.tensor_files import DamagedFile

_log = logging.getLogger("partialsgd")

_KEY = "partialsgd.training"  # the key of the record in the file's metadata
_NAME = re.compile(r"\d{10}\.safetensors")


def save(folder: Path, position: int, state: Any, *, keep: int) -> None:
    """Write the state after `position` steps, then delete all but the newest `keep` checkpoints.

    A kill or a full disk at any moment leaves the checkpoints before this one complete.
    """
    structure, tensors = pack(state)
    name = f"{position:010}.safetensors"
    with files.staged(folder) as stage:
        record = {"format": 1, "position": position, "state": structure}
        tensor_files.write_checked(stage / name, _KEY, record, tensors)
    existing = paths(folder)
    newest = [path for path in existing if path.name <= name][-keep:]  # those ahead of it are damaged: it was resumed
    for path in existing:
        if path not in newest:
            path.unlink(missing_ok=True)


def latest(folder: Path) -> tuple[int, Any] | None:
    """Read the position and state of the newest complete checkpoint; damaged ones are skipped with a warning.

    A checkpoint that cannot be read, or that another version wrote, may be a good one: it is an error.
    """
    if (folder / files.STAGE).exists():
        _log.warning("a checkpoint was being written when the run ended; %s is skipped", folder / files.STAGE)
    for path in reversed(paths(folder)):
        try:
            return _read(path)
        except DamagedFile as error:
            _log.warning("the checkpoint %s is skipped: %s", path, error)
        except OSError as error:
            raise OSError(
                f"the checkpoint {path} cannot be read ({error.strerror or error}); the run was left as it is: make "
                "the file readable, or move it away to continue from the checkpoint before it"
            ) from error
    return None


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first. Files with other names are not ours."""
    if not os.path.lexists(folder):
        return []
    return sorted(folder / name for name in os.listdir(folder) if _NAME.fullmatch(name))


def _read(path: Path) -> tuple[int, Any]:
    record = tensor_files.read_record(path, _KEY)
    if record is None:
        raise DamagedFile("it is not the checkpoint of a training")
    tensors = tensor_files.read_tensors(path, record)
    if record.get("format") != 1:
        raise ValueError(
            f"the checkpoint {path} has format {record.get('format')!r}, and this version of partialsgd reads format "
            "1; the run was left as it is: resume it with the version that wrote it"
        )
    return record["position"], unpack(record["state"], tensors)
