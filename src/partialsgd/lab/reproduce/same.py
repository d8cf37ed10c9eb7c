"""Whether a run that is there is the one that an experiment means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from partialsgd._util.files import read_json
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.jobs import Job, every
from partialsgd.lab.reproduce.plans import Experiment
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import AlreadyThere
from partialsgd.lab.training.settings import Settings

_PLACES = frozenset({"out", "threads"})
"""Settings that say where a run was made, not what it is."""
_OF_LEVELS = frozenset({"ratio", "init"})
"""Those that say nothing of a network without levels."""
_TELLING = {"data": 1, "start": 2, "teacher": 2}
"""Of paths how many last parts, of another run its row and seed: a folder that was moved is the same, and the run
itself knows the hash of what was in it."""


def require_same(path: Path, settings: Settings) -> None:
    """Refuse a run that was made for something else."""
    made = Run(path).settings
    if made.recipe != settings.recipe:
        raise AlreadyThere(f"{path} is a run of {made.recipe}, not of {settings.recipe}; give another --out")
    before, now = vars(made), vars(settings)
    idle = _PLACES | (_OF_LEVELS if now.get("nest") == before.get("nest") == "none" else frozenset())
    told = [
        f"{name} {before[name]!r} instead of {value!r}"
        for name, value in now.items()
        if name not in idle and _plain(name, before.get(name)) != _plain(name, value)
    ]
    if told:
        raise AlreadyThere(
            f"{path} is a run with other settings ({', '.join(told)}); give the options that it was made with, like "
            "--scale, --epochs or --start, or another --out"
        )


def require_all(experiment: Experiment, folder: Folder) -> None:
    """Every run in the folder is the experiment's: tables never mix data, sizes or grids."""
    known: dict[object, tuple[Path, str]] = {}
    for job in every(experiment, folder):
        ended = folder.ended(job.path)
        if ended is not None:
            _ = (ended.settings, ended.looks)  # what is damaged is told by its name
        if (job.path / "config.json").exists():
            require_same(job.path, job.settings)
            _require_same_data(job, known)


def _require_same_data(job: Job, known: dict[object, tuple[Path, str]]) -> None:
    """By the hash that a run has of its data; which images are held out is drawn by the seed."""
    said = read_json(job.path / "config.json").get("data")
    if said is None:
        return
    group = None if job.settings.recipe == "translation" else job.settings.seed
    first, digest = known.setdefault(group, (job.path, said.split()[0]))
    if digest != said.split()[0]:
        raise AlreadyThere(f"{job.path} was trained on other data than {first}; give another --out, or remove it")


def _plain(name: str, value: Any) -> Any:
    return Path(os.path.abspath(value)).parts[-_TELLING[name] :] if name in _TELLING and value is not None else value
