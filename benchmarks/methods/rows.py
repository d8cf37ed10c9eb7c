"""A finished training as a file: what is stored is not run again unless its settings have changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from benchmarks.figures import RESULTS

FOLDER = RESULTS / "methods"


@final
@dataclass(frozen=True)
class Row:
    task: str
    method: str
    seed: int
    task_settings: str
    settings: str
    """The method's name, which holds its settings."""
    reached: Mapping[str, float]
    """By each learning rate, on held-out data; a run that diverged has none."""
    rate: float
    """The best of them."""
    whole: float | None
    """Test accuracy of the whole network; None where only a smaller one was trained."""
    small: float | None
    seconds: float
    """Processor time of a step."""
    flops: float
    """Of a step, forward and backward, as torch counts them."""
    date: str
    torch: str
    python: str

    def save(self, folder: Path = FOLDER) -> None:
        write(place(folder, self.task, self.method, self.seed), asdict(self))


def place(folder: Path, task: str, method: str, seed: int) -> Path:
    return folder / task / f"{method}_{seed}.json"


def write(path: Path, content: Mapping[str, Any], *, indent: int | None = 1) -> None:
    """All of it or nothing, also when the run is killed meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


def read(path: Path) -> dict[str, Any]:
    """Empty, where there is nothing."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def stored(task: str, folder: Path = FOLDER) -> list[Row]:
    """The finished trainings of a task, by method and seed."""
    rows = [Row(**read(path)) for path in (folder / task).glob("*_*.json")]
    return sorted(rows, key=lambda row: (row.method, row.seed))
