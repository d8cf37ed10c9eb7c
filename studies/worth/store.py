"""The stored runs of the study: a file for each plan, in the form of the stored reproductions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.reproduce.schedule import require_all
from studies import reproductions, results
from studies.results import RESULTS
from studies.worth.plans import Plan, plans
from studies.worth.regime import Regime


def file_of(plan: str, folder: Path = RESULTS) -> Path:
    return folder / f"worth-{plan}.jsonl"


def write(plan: Plan | Regime, runs: Path, to: Path = RESULTS) -> Path:
    """Write the finished runs of a plan, which replace those of an earlier call."""
    file = file_of(plan.name, to)
    results.write(file, [{"worth": plan.name}, *reproductions.packed_runs(runs)])
    return file


def bring_back(plan: Plan | Regime, runs: Path, folder: Path = RESULTS) -> None:
    """Write the files of stored runs that are not in the directory of the runs, so that they are not trained again."""
    _, *records = results.read(file_of(plan.name, folder)) or [{}]
    reproductions.unpack([record for record in records if not (runs / record["run"]).exists()], runs)


@contextmanager
def stored(folder: Path = RESULTS) -> Iterator[list[tuple[Plan | Regime, RunFolder]]]:
    """The plans with stored runs, each with a temporary folder of these, if all are what the plan means today."""
    with tempfile.TemporaryDirectory() as name:
        found = []
        for plan in plans("multi30k.de-en", "cifar-10-batches-bin").values():
            _, *runs = results.read(file_of(plan.name, folder)) or [{}]
            if runs:
                reproductions.unpack(runs, Path(name) / plan.name)
                experiment = plan.experiment()
                runs_of_plan = RunFolder(Path(name) / plan.name, experiment)
                require_all(experiment, runs_of_plan)
                found.append((plan, runs_of_plan))
        yield found
