"""Small real trainings that are attacked, and the fingerprint by which two of them are compared to the bit."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, final

from partialsgd._util import tensor_files
from partialsgd.export import files
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.checkpoints import pack
from studies.assault.processes import HUNG, Ended, ForkServer

COMMANDS = {
    "images": "train images --limit 100 --width 2 --batch 20 --epochs 4 --checkpoint-every 3 --measure-every 5 "
    "--threads 1 --keep 2",
    "translation": "train translation --size 60 --valid-size 8 --test-size 8 --vocabulary 300 --longest 40 "
    "--max-tokens 400 --layers 1 --d-model 16 --ffn 24 --heads 2 --ratio 1/4 --beam 1 --epochs 2 --checkpoint-every 2 "
    "--threads 1 --keep 2",
}
"""The trainings: a few steps each, with every kind of file."""


@final
@dataclass
class Tally:
    """The outcomes of the attempts of one attack."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """A sentence for each attempt that broke a guarantee."""

    def good(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def bad(self, outcome: str, what: str) -> None:
        self.outcomes[outcome] += 1
        self.failures.append(f"{what}: {outcome}")


@final
@dataclass(frozen=True)
class Arena:
    """The processes, the scratch directory and the random choices of an attack."""

    server: ForkServer
    scratch: Path
    random: Random

    def whole(self, recipe: str) -> Path:
        """A training that nobody disturbed; made once."""
        path = self.scratch / f"whole-{recipe}"
        if not path.exists():
            ended = self.server.partialsgd(*COMMANDS[recipe].split(), "--out", path)
            if ended.code != 0:
                raise RuntimeError(f"the training that is to be attacked failed: {ended.output[-2000:]}")
        return path

    def unfinished(self, recipe: str, name: str = "attacked") -> Path:
        """A copy of that training without its last checkpoint and its summary, to be resumed."""
        path = self.copy(self.whole(recipe), name)
        (path / "summary.json").unlink()
        checkpoints.paths(path / "checkpoints")[-1].unlink()
        return path

    def copy(self, path: Path, name: str) -> Path:
        """A copy in the place of an earlier one of that name."""
        to = self.scratch / name
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(path, to, symlinks=True)
        return to


def fingerprint(run: Path) -> dict[str, Any]:
    """All that must be equal in two runs of the same settings: everything but times and places."""
    newest = checkpoints.latest(run / "checkpoints")
    if newest is None:
        return {}
    position, state = newest
    hashes = {f"state {name}": _hash(value) for name, value in state.items() if name not in ("seconds", "wall")}
    weights = {name: _sha256(run / name / files.WEIGHTS) for name in ("best", "last")}
    metrics = (run / "metrics.jsonl").read_text()
    return {"position": position, "metrics": metrics, **hashes, **weights, "summary": _summary(run / "summary.json")}


def differences(run: Path, expected: dict[str, Any]) -> list[str]:
    """The names of what differs from the fingerprint."""
    found = fingerprint(run)
    return [name for name in expected if found.get(name) != expected[name]]


def refusal(ended: Ended) -> str | None:
    """None if a process that failed said so in one sentence; otherwise what is wrong with its end."""
    said = [line for line in ended.output.splitlines() if line.startswith("partialsgd: ")]
    if ended.code == 2 and re.search("╭─ .* error ─", ended.output):
        return None  # the box in which the parser of the command line says what is wrong
    if ended.code == HUNG:
        return "it hung"
    if "Traceback (most recent call last)" in ended.output:
        return "it ended with a traceback"
    if ended.code not in (1, 2) or len(said) != 1:
        return f"it ended with code {ended.code} and without a sentence"
    return None


def _hash(value: Any) -> str:
    structure, tensors = pack(value)
    return tensor_files.digest({"value": structure}, tensors)


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def _summary(path: Path) -> Any:
    if not path.exists():
        return None
    summary = json.loads(path.read_text())
    for name in ("seconds", "wall", "versions"):
        summary.pop(name, None)
    for level in summary["levels"].values():
        del level["latency"]
        level.pop("latency_spread", None)
    return summary
