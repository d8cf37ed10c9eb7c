"""The state of a training in one file: written whole or not at all, checked when it is read, a few kept."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from partialsgd.export import files
from partialsgd.lab.runs.packing import pack, unpack

_log = logging.getLogger("partialsgd")

_KEY = "partialsgd.training"  # the record's key in the metadata


def save(folder: Path, position: int, state: Any, *, keep: int) -> None:
    """Write the state after `position` steps, then remove all but the newest `keep` checkpoints.

    It is written in a folder beside and synced before it takes its place: a kill at any moment, or a full disk,
    leaves the ones before.
    """
    said, tensors = pack(state)
    record = {"format": 1, "position": position, "state": said}
    record["digest"] = files.digest(record, tensors)
    name = f"{position:010}.safetensors"
    with files.staged(folder) as stage:
        files.write_tensors(stage / name, tensors, {_KEY: json.dumps(record)})
    there = paths(folder)
    kept = [path for path in there if path.name <= name][-keep:]  # those ahead are damaged: they were passed over
    for path in there:
        if path not in kept:
            path.unlink(missing_ok=True)


def latest(folder: Path) -> tuple[int, Any] | None:
    """The newest whole checkpoint: its position and its state. One that is damaged is passed over with a warning."""
    if (folder / files.STAGE).exists():
        _log.warning("a checkpoint was being written when the run ended: %s is passed over", folder / files.STAGE)
    for path in reversed(paths(folder)):
        try:
            return _read(path)
        except (ValueError, SafetensorError, OSError) as error:
            _log.warning("the checkpoint %s is passed over: %s", path, error)
    return None


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(folder.glob("*.safetensors"))


def _read(path: Path) -> tuple[int, Any]:
    with safe_open(path, "pt") as file:
        record = json.loads((file.metadata() or {}).get(_KEY, "null"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    if not isinstance(record, dict):
        raise ValueError("it is not of a training")
    if record.get("format") != 1:
        raise ValueError(f"it has format {record.get('format')!r}, and this version reads format 1")
    said = record.pop("digest", None)
    if files.digest(record, tensors) != said:
        raise ValueError("its bytes have another sha256 than its record says")
    return record["position"], unpack(record["state"], tensors)
