"""The two files of a saved nested model: model.safetensors, which carries the whole record, and config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from partialsgd._util import tensor_files
from partialsgd._util.files import json_text, staged
from partialsgd._util.tensor_files import Record

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 1
"""The version of the format; a file of another version is refused."""

_KEY = "partialsgd"  # the record's key in the metadata of the weights


def write(directory: Path, record: Record, tensors: Mapping[str, Tensor]) -> None:
    """Write the weights, with the record in their metadata, and the record once more as config.json."""
    with staged(directory, last=CONFIG) as stage:
        record = tensor_files.write_checked(stage / WEIGHTS, _KEY, {"format": FORMAT, **record}, tensors)
        (stage / CONFIG).write_text(json_text(record), encoding="utf-8")


def read(directory: Path) -> tuple[Record, dict[str, Tensor]]:
    """Read the record and the tensors of a saved nested model; a ValueError says what is wrong with the files."""
    path = directory / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; save(nested, {str(directory)!r}) writes it")
    record = tensor_files.read_record(path, _KEY)
    if record is None:
        raise ValueError(
            f"{path} is not a saved nested model: save(nested, directory) did not write it; plain weights are "
            "loaded by safetensors.torch.load_model, and nested by nest"
        )
    if record.get("format") != FORMAT:
        version = record.get("versions", {}).get("partialsgd", "of another version")
        raise ValueError(
            f"{path} has format {record.get('format')!r}, and this partialsgd reads format {FORMAT}; "
            f"install partialsgd {version}, which wrote it"
        )
    tensors = tensor_files.read_tensors(path, record)
    _require_same_config(directory / CONFIG, record)
    return record, tensors


def is_nested_model(directory: Path) -> bool:
    """Tell whether the weights in a directory are a saved nested model; damaged weights may have been one."""
    path = directory / WEIGHTS
    try:
        return path.is_file() and tensor_files.read_record(path, _KEY) is not None
    except ValueError:
        return True


def _require_same_config(path: Path, record: Record) -> None:
    """Refuse a config.json that differs from the record; it may be missing."""
    if not path.exists():
        return
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        config = None
    if config != record:
        raise ValueError(
            f"{path} does not belong to {WEIGHTS}: it was edited, or comes from another save; remove it to go on, "
            "for the weights carry the same record"
        )
