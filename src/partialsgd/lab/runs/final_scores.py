"""What came out of a run: every level on the test data, what it costs, and how fast it is by itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from accelerate.utils import send_to_device
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from partialsgd.export import files, states
from partialsgd.lab.runs.run import Run, versions
from partialsgd.lab.training.state import Training
from partialsgd.lab.training.task import Task
from partialsgd.nested import Nested

Summary: TypeAlias = dict[str, Any]


def fill(network: Nested, directory: Path) -> None:
    """Give a family the weights of a checkpoint of it."""
    record, tensors = files.read(directory)
    states.fill(network.model, record["state"], tensors)


def summarise(run: Run, task: Task, training: Training, console: Console) -> Summary:
    """Score the best checkpoint on the test data and write summary.json, the mark of a run at its end."""
    fill(task.network, run.best)
    summary: Summary = {
        "recipe": run.settings.recipe,
        "checkpoint": "best",
        "score": task.score,
        "steps": training.position,
        "seconds": round(training.seconds, 1),
        "levels": {},
        "versions": versions(),
    }
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as shown:
        doing = shown.add_task("")
        for level in task.network.levels:
            shown.update(doing, description=f"scoring {level} on the test data")
            summary["levels"][level] = _level(task, training, level)
        shown.update(doing, description="a few more numbers")
        summary["extras"] = task.extras()
    summary["wall"] = round(training.wall, 1)
    run.write("summary.json", summary)
    return summary


def example_of(task: Task) -> Any:
    """Inputs to try a level with, where the network is."""
    return send_to_device(task.example(), next(task.network.parameters()).device)


def _level(task: Task, training: Training, level: str) -> dict[str, Any]:
    network = task.network
    size, whole = network.size(level), network.size(network.levels[-1])
    example = example_of(task)
    return {
        "parameters": size,
        "share": size / whole,
        "updates": training.updates.get(level, 0),
        "flops": training.flops.get(level, 0.0),
        "latency": task.seconds(network.extract(level, example=example).eval()),
        "test": task.scores(level, "test"),
    }


def show(summary: Summary, console: Console) -> None:
    """The table of the levels, and below it what else the recipe has to say."""
    console.print(table(summary))
    for name, value in summary["extras"].items():
        _show_extra(name, value, console)


def table(summary: Summary) -> Table:
    """One row a level: its size, what its training took, its score and its latency."""
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
    """As it is: a bracket in a translation is no colour."""
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
