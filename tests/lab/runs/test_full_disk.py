"""A disk that is full: a clear word, the last good checkpoint, and after making room the run that never met it.

For a CI without rights: a limit on the size of files refuses a write as the disk would, and /dev/full is full.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.runs import checkpoints
from tests.lab.nursery import Child
from tests.lab.remains import leftovers, remains

LONG: dict[str, Any] = {"epochs": 6, "measure_every": 1, "checkpoint_every": 4}
WIDE: dict[str, Any] = {"epochs": 2, "width": 256, "checkpoint_every": 4}

# What is refused, and in which run: there it is the first to become so large.
FILES = {"the log": (LONG, "metrics.jsonl"), "the weights": (WIDE, "last/model.safetensors")}
FILES["a checkpoint"] = (WIDE, "checkpoints/*.safetensors")


def cut_short(settings: dict[str, Any], place: Path) -> dict[str, Any]:
    """A run that has its last steps before it, and what it should leave."""
    child = Child("train", json.dumps({**settings, "out": str(place)}), log=place.with_suffix(".log"))
    assert child.join() == 0, child.output
    expected = remains(place)
    (place / "summary.json").unlink()
    checkpoints.paths(place / "checkpoints")[-1].unlink()
    return expected


@pytest.mark.parametrize("what", FILES)
def test_it_stops_with_a_clear_word_and_goes_on_when_there_is_room(tmp_path: Path, what: str) -> None:
    settings, pattern = FILES[what]
    place = tmp_path / "run"
    expected = cut_short(settings, place)
    limit = max(path.stat().st_size for path in place.glob(pattern)) - 40
    good = checkpoints.paths(place / "checkpoints")[-1]
    before = good.read_bytes()

    child = Child("resume", str(place), log=tmp_path / "full.log", TOY_FILE_SIZE=limit)
    assert child.join() == 1
    error = child.output.strip().splitlines()[-1]
    assert error.startswith(f"OSError: {place} could not be written ([Errno 27] File too large")
    assert error.endswith(f"partialsgd resume {place} (it continues from the last checkpoint, which is complete)")
    assert checkpoints.paths(place / "checkpoints")[-1] == good and good.read_bytes() == before
    assert not leftovers(place)
    assert ((place / "metrics.jsonl").stat().st_size == limit) == (what == "the log"), "half a line of it"

    child = Child("resume", str(place), log=tmp_path / "room.log")
    assert child.join() == 0, child.output
    assert remains(place) == expected and not leftovers(place)


def test_a_device_that_is_full_is_told_alike(tmp_path: Path) -> None:
    """ENOSPC itself; the log is all that can be put there without rights."""
    place = tmp_path / "run"
    cut_short(WIDE, place)
    shutil.move(place / "metrics.jsonl", tmp_path / "metrics.jsonl")
    (place / "metrics.jsonl").symlink_to("/dev/full")
    child = Child("resume", str(place), log=tmp_path / "full.log")
    assert child.join() == 1
    error = child.output.strip().splitlines()[-1]
    assert error.startswith(f"OSError: {place} could not be written ([Errno 28] No space left on device). Free some")


def test_a_run_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    place, settings = tmp_path / "run", json.dumps({**WIDE, "out": str(tmp_path / "run")})
    child = Child("train", settings, log=tmp_path / "full.log", TOY_FILE_SIZE=4000)
    assert child.join() == 1 and "Free some disk space" in child.output
    assert not (place / "checkpoints").exists() and not leftovers(place)
    child = Child("resume", str(place), log=tmp_path / "room.log")
    assert child.join() == 0, child.output
    assert remains(place) == cut_short(WIDE, tmp_path / "whole")
