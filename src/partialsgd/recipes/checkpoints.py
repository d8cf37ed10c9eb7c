"""The state of a training in one file: written whole or not at all, checked when it is read, a few kept."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from partialsgd.export import files
from partialsgd.recipes.packing import pack, unpack

_log = logging.getLogger("partialsgd")

_KEY = "partialsgd.training"  # the record's key in the metadata
_BEING_WRITTEN = ".being_written"


def save(folder: Path, position: int, state: Any, *, keep: int) -> None:
    """Write the state after `position` steps, then remove all but the newest `keep` checkpoints.

    It is written under another name and synced before it takes its place: a kill at any moment leaves the ones
    before. When the disk is full they stay too, and the error says so.
    """
    said, tensors = pack(state)
    record = {"format": 1, "position": position, "state": said}
    record["digest"] = files.digest(record, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{position:010}.safetensors"
    stage = place.with_name(place.name + _BEING_WRITTEN)
    try:
        save_file(tensors, stage, metadata={_KEY: json.dumps(record)})
        files.sync(stage)
        os.replace(stage, place)
        files.sync(folder)
    except (OSError, SafetensorError) as error:
        stage.unlink(missing_ok=True)
        raise OSError(
            f"the checkpoint {place} could not be written ({error}); make room on the disk and resume: "
            "the checkpoints before it are whole"
        ) from error
    for old in paths(folder)[:-keep]:
        old.unlink(missing_ok=True)


def latest(folder: Path) -> tuple[int, Any] | None:
    """The newest whole checkpoint: its position and its state. One that is damaged is passed over with a warning."""
    for stage in folder.glob(f"*{_BEING_WRITTEN}"):
        _log.warning("%s was being written when the run ended; it is passed over", stage)
        stage.unlink(missing_ok=True)
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
