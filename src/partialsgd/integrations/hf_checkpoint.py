"""The state of a `PartialSGD` in a checkpoint folder of Hugging Face's Trainer, and which folders are complete."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from partialsgd._util import files, tensor_files
from partialsgd._util.packing import pack, unpack

NAME = "partialsgd.safetensors"
_KEY = "partialsgd.trainer"  # the key of the record in the file's metadata
_FOLDER = re.compile(r"checkpoint-(\d+)")
_TRAINER_STATE = "trainer_state.json"  # the Trainer writes it last

_log = logging.getLogger("partialsgd")


def write(folder: Path, state: dict[str, Any]) -> None:
    """Write a state as safetensors and JSON, whole or not at all; nothing is pickled."""
    structure, tensors = pack(state)
    with files.staged(folder) as stage:
        tensor_files.write_checked(stage / NAME, _KEY, {"format": 1, "state": structure}, tensors)


def read(folder: Path) -> dict[str, Any]:
    """Read the state that `write` wrote; an error says what is wrong with the file, or why there is none."""
    path = folder / NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist, so t and the memory of the method would be lost: the checkpoint was written by a "
            "plain Trainer, or with save_only_model=True; to start anew from its weights, load them into the model "
            "and call train() without resume_from_checkpoint"
        )
    record = tensor_files.read_record(path, _KEY)
    if record is None or record.get("format") != 1:
        raise ValueError(f"{path} was not written by this version of partialsgd; resume with the one that wrote it")
    state: dict[str, Any] = unpack(record["state"], tensor_files.read_tensors(path, record))
    return state


def last_complete(output: Path) -> Path:
    """Return the newest complete checkpoint; a kill while one is being written leaves a folder that is not."""
    numbered = [(int(match[1]), f) for f in _folders(output) if (match := _FOLDER.fullmatch(f.name))]
    for _, folder in sorted(numbered, reverse=True):
        if _is_complete(folder):
            return folder
        _log.warning("the checkpoint %s is not complete and is skipped", folder)
    raise ValueError(
        f"{output} has no complete checkpoint of a PartialTrainer to resume from; call train() to begin, or give the "
        "folder: train(resume_from_checkpoint='…/checkpoint-500')"
    )


def _folders(output: Path) -> list[Path]:
    return [path for path in output.iterdir() if path.is_dir()] if output.is_dir() else []


def _is_complete(folder: Path) -> bool:
    """True if the file that the Trainer writes after all others is there and whole."""
    try:
        json.loads((folder / _TRAINER_STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (folder / NAME).is_file()
