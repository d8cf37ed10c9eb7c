"""Runs that were never trained: the files of a run, with chosen numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce.experiment import Cell, Comparison, Experiment, Grid, Line, Row, always
from partialsgd.lab.reproduce.paper import Printed
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.runs.run import FAILED
from partialsgd.lab.training.settings import Settings
from partialsgd.logging import metrics_log

Evaluations = Sequence[Mapping[str, Mapping[str, float]]]

GRID = Grid((Cell(0.1, 0), Cell(0.2, 5)), {"epochs": 1})


def run(
    path: Path,
    evaluations: Evaluations,
    test: Mapping[str, float] | None,
    *,
    flops: Mapping[str, float] | None = None,
    settings: Settings | None = None,
    seconds: float = 10.0,
    score: str = "accuracy",
) -> Path:
    """Write a run of ten steps an epoch, evaluated after each epoch; without test scores it has diverged."""
    path.mkdir(parents=True)
    told = replace(settings or Images(epochs=len(evaluations)), out=str(path))
    path.joinpath("config.json").write_text(json.dumps({"recipe": told.recipe, "settings": asdict(told)}))
    lines = []
    for epoch, levels in enumerate(evaluations, 1):
        for step in range(10):
            more: dict[str, Any] = {"t": 10 * (epoch - 1) + step, "level": None, "loss": {}, "lr": 0.1, "backwards": 1}
            more["epoch"] = epoch - 1 + (step + 1) / 10
            if step == 9:
                more |= {f"valid/{level}/{name}": v for level, each in levels.items() for name, v in each.items()}
            lines.append(metrics_log.to_line(more))
    path.joinpath("metrics.jsonl").write_bytes(b"".join(lines))
    if test is None:
        path.joinpath(FAILED).write_text(json.dumps({"error": "NaN"}))
        return path
    each = flops or dict.fromkeys(test, 100.0)
    levels = {
        level: {
            "parameters": 1000 if level == "full" else 400,
            "share": 1.0,
            "updates": 10 * len(evaluations) if each.get(level) else 0,
            "flops": each.get(level, 0.0),
            "latency": 0.01,
            "test": {score: value},
        }
        for level, value in test.items()
    }
    summary = {
        "recipe": told.recipe,
        "score": score,
        "steps": 10 * len(evaluations),
        "seconds": seconds,
        "levels": levels,
    }
    path.joinpath("summary.json").write_text(json.dumps({**summary, "extras": {}, "versions": {}}))
    return path


def valid(**accuracies: float) -> dict[str, dict[str, float]]:
    return {level: {"accuracy": value, "loss": 1 - value} for level, value in accuracies.items()}


def experiment(rows: Sequence[Row], **changes: Any) -> Experiment:
    """A joint row and its two networks alone."""
    made = Experiment(
        name="table9",
        title="Table 9",
        score="accuracy",
        factor=100.0,
        criterion="accuracy",
        grid=GRID,
        rows=lambda folder: rows,
        lines=lambda folder: [
            Line("1/2", "core", "alone", "core", "full", Printed(50.0, 1.0), "core-flops"),
            Line("1/2", "core", "jointly", "joint", "core", Printed(60.0), "joint"),
            Line("1/2", "full", "alone", "full", "full"),
            Line("1/2", "full", "jointly", "joint", "full", None, "joint"),
        ],
        comparisons=lambda folder: [Comparison("r = 1/2", "joint", {"core": "core", "full": "full"})],
        choices=lambda folder: ["A choice."],
    )
    return replace(made, **changes)


def open_folder(path: Path) -> RunFolder:
    return RunFolder(path, experiment(trio()))


def opened(plan: Experiment, path: Path) -> tuple[Experiment, RunFolder]:
    return plan, RunFolder(path, plan)


def trio(seeds: int = 2) -> list[Row]:
    base = Images(epochs=3)
    return [
        Row("full", always(replace(base, nest="none", method="plain")), seeds, tuned_as="full"),
        Row("core", always(replace(base, alone="core", method="plain")), seeds, tuned_as="core"),
        Row("joint", always(base), seeds, tuned_as="joint"),
    ]


def search(folder: RunFolder, row: str, values: Sequence[float], grid: Grid = GRID) -> None:
    """The cells of a row's grid, with these accuracies."""
    for cell, value in zip(grid.cells, values, strict=True):
        run(folder.cell(row, cell), [valid(full=value)], {"full": value})
