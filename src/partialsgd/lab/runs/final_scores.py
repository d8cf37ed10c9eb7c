"""The end of a run: every level scored on the test data, its cost and its latency, in summary.json and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from partialsgd.lab.runs.run import Run, versions
from partialsgd.lab.runs.use_run import example_on_device, load_weights
from partialsgd.lab.training.state import TrainingState
from partialsgd.method import Method

Summary: TypeAlias = dict[str, Any]


def summarise(run: Run, state: TrainingState, method: Method, console: Console) -> Summary:
    """Score the best model on the test data and write summary.json, which marks a run as finished."""
    task = state.task
    load_weights(task.network, run.best)
    summary: Summary = {
        "recipe": run.settings.recipe,
        "checkpoint": "best",
        "score": task.score,
        "steps": state.position,
        "seconds": round(state.seconds, 1),
        "levels": {},
        "versions": versions(),
    }
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as progress:
        line = progress.add_task("")
        for level in task.network.levels:
            progress.update(line, description=f"scoring {level} on the test data")
            summary["levels"][level] = _level(state, level)
        progress.update(line, description="computing further numbers")
        summary["extras"] = task.extras(method)
    summary["wall"] = round(state.wall, 1)
    run.write_json("summary.json", summary)
    return summary


def _level(state: TrainingState, level: str) -> dict[str, Any]:
    task, network = state.task, state.task.network
    size = network.size(level)
    return {
        "parameters": size,
        "share": size / network.size(network.levels[-1]),
        "updates": state.updates.get(level, 0),
        "flops": state.flops.get(level, 0.0),
        "latency": task.latency(network.extract(level, example=example_on_device(task)).eval()),
        "test": task.scores(level, "test"),
    }


def show(summary: Summary, console: Console) -> None:
    """Print the table of levels, and below it the other numbers of the recipe."""
    console.print(table(summary))
    for name, value in summary["extras"].items():
        _show_extra(name, value, console)


def table(summary: Summary) -> Table:
    """One row for each level: size, training cost, score and latency."""
    score = summary["score"]
    shown = Table(title=f"{summary['recipe']}: every level on the test data")
    for name in ("level", "parameters", "share", "updates", "training FLOPs", score, "latency"):
        shown.add_column(name, justify="left" if name == "level" else "right")
    for level, row in summary["levels"].items():
        shown.add_row(
            level,
            f"{row['parameters']:,}",
            f"{row['share']:.1%}",
            f"{row['updates']:,}",
            f"{row['flops']:.3g}",
            f"{row['test'][score]:.4g}",
            f"{1e3 * row['latency']:.3g} ms",
        )
    return shown


def _show_extra(name: str, value: Any, console: Console) -> None:
    """Print an entry unchanged: rich would read brackets in a translation as colours."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        shown = Table(title=Text(name))
        for column in value[0]:
            shown.add_column(Text(str(column)))
        for row in value:
            shown.add_row(*(Text(f"{cell:.4g}" if isinstance(cell, float) else str(cell)) for cell in row.values()))
        console.print(shown)
        return
    for line in value if isinstance(value, (list, tuple)) else [value]:
        console.print(f"{name}: {line}", highlight=False, markup=False)
