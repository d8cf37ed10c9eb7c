"""Use a trained run: load its model, score its levels at the end of a training or later, and show their cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from accelerate.utils import send_to_device
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

from partialsgd import export
from partialsgd.export import states
from partialsgd.export.checkpoints import as_saved
from partialsgd.lab.recipes import build
from partialsgd.lab.runs.run import Checkpoint, Run, versions
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.launch import processes
from partialsgd.lab.training.method_text import make_method
from partialsgd.lab.training.state import TrainingState
from partialsgd.lab.training.task import Numbers, Split, Task
from partialsgd.method import Method
from partialsgd.nested import Nested
from partialsgd.nested.example_inputs import as_call

_TURNS = 3  # measurements of the latency of each level


def open_task(run: Run, checkpoint: Checkpoint = "best") -> Task:
    """Build the task that the run's settings describe, with the weights of a checkpoint, in evaluation mode."""
    directory = weights(run, checkpoint)
    no_earlier_runs: dict[str, Any] = dict.fromkeys(run.settings.earlier_runs)
    task = build(replace(run.settings, **no_earlier_runs))
    run.require_data(task.data_hash())
    use_weights(task, task.network, directory)
    task.network.to(processes().device).eval()
    return task


def weights(run: Run, checkpoint: Checkpoint) -> Path:
    """The directory of a checkpoint's model."""
    directory = run.best if checkpoint == "best" else run.last
    if not directory.is_dir():
        raise FileNotFoundError(
            f"{run.path} has no weights yet, because the first evaluation writes them; "
            f"partialsgd resume {run.path} continues the training"
        )
    return directory


def load_weights(network: Nested, directory: Path) -> Nested:
    """Load a saved nested model into one of the same kind; return that, or one whose levels have parted ways."""
    record, tensors = export.files.read(directory)
    network = as_saved(network, record)
    states.fill(network.model, record["state"], tensors)
    return network


def use_weights(task: Task, network: Nested, directory: Path) -> None:
    """Load a saved nested model into a network of the task, and let the task use it."""
    loaded = load_weights(network, directory)
    if loaded is not task.network:
        task.use(loaded.to(next(network.parameters()).device))


def example_on_device(task: Task) -> Any:
    """Example inputs on the network's device."""
    return send_to_device(task.example(), next(task.network.parameters()).device)


def require_level(network: Nested, level: str) -> None:
    if level not in network.levels:
        raise WrongCall(f"--level: this run has no level {level!r}; its levels are {', '.join(network.levels)}")


def evaluate(
    run: Run, levels: Sequence[str] = (), *, split: Split = "test", checkpoint: Checkpoint = "best"
) -> tuple[dict[str, Numbers], str | None]:
    """The scores of each level on a split, and how the main score was computed."""
    task = open_task(run, checkpoint)
    for level in levels:
        require_level(task.network, level)
    chosen = [level for level in task.network.levels if level in levels or not levels]
    return {level: task.scores(level, split) for level in chosen}, task.signature


def scores_table(scores: Mapping[str, Numbers]) -> Table:
    """A row for each number, a column for each level."""
    shown = _table("", *scores)
    for name in next(iter(scores.values())):
        shown.add_row(name, *(f"{numbers[name]:.4g}" for numbers in scores.values()))
    return shown


def profile(run: Run, console: Console) -> None:
    """Print parameters, FLOPs in both conventions, and the latency of each extracted level."""
    task = open_task(run)
    network = task.network
    example = example_on_device(task)
    shown = _table("level", "parameters", "share", "forward", "training", "paper", "latency")
    seconds = latencies(task)
    for row in network.profile(example, repeats=1).rows:
        counts = (f"{count:.3g}" for count in (row.forward, row.training, row.multiply_adds))
        latency = latency_text(*seconds[row.level])
        shown.add_row(row.level, f"{row.parameters:,}", f"{row.share:.1%}", *counts, latency)
    console.print(shown)
    args, kwargs = as_call(example)
    named = [("an input of", value) for value in args] + list(kwargs.items())
    shapes = ", ".join(f"{name} {'×'.join(map(str, x.shape))}" for name, x in named if isinstance(x, Tensor))
    console.print(
        f"forward, training: FLOPs of a pass over {shapes}, as torch counts them\n"
        "paper: multiply-adds of the forward pass, as the paper counts them\n"
        "latency: one example through the extracted level; the median and the extremes of "
        f"{_TURNS} measurements, in which the levels take turns",
        highlight=False,
    )


def latencies(task: Task) -> dict[str, tuple[float, float, float]]:
    """Return the median, the least and the largest latency of each level, in seconds.

    The extracted levels take turns, so that a load on the machine meets all of them alike.
    """
    example, network = example_on_device(task), task.network
    extracted = {level: network.extract(level, example=example).eval() for level in network.levels}
    seconds: dict[str, list[float]] = {level: [] for level in extracted}
    for _ in range(_TURNS):
        for level, plain in extracted.items():
            seconds[level].append(task.latency(plain))
    return {level: (statistics.median(taken), min(taken), max(taken)) for level, taken in seconds.items()}


def latency_text(median: float, low: float, high: float) -> str:
    return f"{1e3 * median:.3g} ms ({1e3 * low:.3g} to {1e3 * high:.3g})"


Summary: TypeAlias = dict[str, Any]


def summarise(run: Run, state: TrainingState, method: Method, console: Console) -> Summary:
    """Score the best model on the test data and write summary.json, which marks a run as finished."""
    task = state.task
    use_weights(task, state.joint, run.best)
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
        progress.update(line, description="measuring latencies")
        seconds = latencies(task)
        full = task.network.size(task.network.levels[-1])
        for level in task.network.levels:
            progress.update(line, description=f"scoring {level} on the test data")
            size = task.network.size(level)
            summary["levels"][level] = {
                "parameters": size,
                "share": size / full,
                "updates": state.updates.get(level, 0),
                "flops": state.flops.get(level, 0.0),
                "latency": seconds[level][0],
                "latency_spread": seconds[level][1:],
                "test": task.scores(level, "test"),
            }
        progress.update(line, description="computing further numbers")
        bound = method if method.bound_to is task.network else make_method(run.settings).bind(task.network)
        summary["extras"] = task.extras(bound)
    summary["wall"] = round(state.wall, 1)
    run.write_json("summary.json", summary)
    return summary


def show(summary: Summary, console: Console) -> None:
    """Print the table of levels, and below it the other numbers of the recipe."""
    names = ("level", "parameters", "share", "updates", "training FLOPs", summary["score"], "latency")
    shown = _table(*names, title=f"{summary['recipe']}: every level on the test data")
    for cells in level_cells(summary):
        shown.add_row(*cells)
    console.print(shown)
    for name, value in summary["extras"].items():
        _show_extra(name, value, console)
    if line := takeaway(summary):
        console.print(line, highlight=False, markup=False)


def takeaway(summary: Summary) -> str:
    """Sum up a joint run in one line; empty for a run that trained one network."""
    trained = {level: row for level, row in summary["levels"].items() if row["updates"]}
    if len(trained) < 2:
        return ""
    score, (small, *_, large) = summary["score"], trained
    reached = {level: f"{row['test'][score]:.4g}" for level, row in trained.items()}
    return (
        f"One run gave {len(trained)} networks: {small} has {trained[small]['share']:.0%} of the parameters of {large} "
        f"and reaches {score} {reached[small]}, {large} {reached[large]}. `partialsgd compare` trains each alone for "
        "the same total cost, to see which is better for you."
    )


def level_cells(summary: Summary) -> list[tuple[str, ...]]:
    """The texts of the table of levels: name, parameters, share, updates, FLOPs, score and latency."""
    score = summary["score"]
    return [
        (
            level,
            f"{row['parameters']:,}",
            f"{row['share']:.1%}",
            f"{row['updates']:,}",
            f"{row['flops']:.3g}",
            f"{row['test'][score]:.4g}",
            latency_text(row["latency"], *row["latency_spread"])
            if "latency_spread" in row  # older runs have none
            else f"{1e3 * row['latency']:.3g} ms",
        )
        for level, row in summary["levels"].items()
    ]


def _table(first: str, *columns: str, title: str | None = None) -> Table:
    """A table with numbers in all columns but the first."""
    shown = Table(first, title=title)
    for name in columns:
        shown.add_column(name, justify="right")
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
