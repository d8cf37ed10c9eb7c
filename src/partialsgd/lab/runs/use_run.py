"""Use a trained run: load its model, score its levels, show what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from accelerate.utils import send_to_device
from rich.console import Console
from rich.table import Table
from torch import Tensor

from partialsgd.export import files, states
from partialsgd.lab.recipes import build
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.launch import processes
from partialsgd.lab.training.task import Numbers, Split, Task
from partialsgd.nested import Nested
from partialsgd.nested.example_inputs import as_call

Checkpoint: TypeAlias = Literal["best", "last"]


def open_task(run: Run, checkpoint: Checkpoint = "best") -> Task:
    """Build the task that the run's settings describe, with the weights of a checkpoint, in evaluation mode."""
    directory = weights(run, checkpoint)
    no_earlier_runs: dict[str, Any] = dict.fromkeys(run.settings.earlier_runs)
    task = build(replace(run.settings, **no_earlier_runs))
    run.require_data(task.data_hash())
    load_weights(task.network, directory)
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


def load_weights(network: Nested, directory: Path) -> None:
    """Load a saved nested model into one of the same kind."""
    record, tensors = files.read(directory)
    states.fill(network.model, record["state"], tensors)


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
    shown = Table("")
    for level in scores:
        shown.add_column(level, justify="right")
    for name in next(iter(scores.values())):
        shown.add_row(name, *(f"{numbers[name]:.4g}" for numbers in scores.values()))
    return shown


def profile(run: Run, console: Console) -> None:
    """Print parameters, FLOPs in both conventions, and the latency of each extracted level."""
    task = open_task(run)
    network = task.network
    example = example_on_device(task)
    shown = Table()
    for name in ("level", "parameters", "share", "forward", "training", "paper", "latency"):
        shown.add_column(name, justify="left" if name == "level" else "right")
    for row in network.profile(example).rows:
        latency = task.latency(network.extract(row.level, example=example).eval())
        counts = (f"{count:.3g}" for count in (row.forward, row.training, row.multiply_adds))
        shown.add_row(row.level, f"{row.parameters:,}", f"{row.share:.1%}", *counts, f"{1e3 * latency:.3g} ms")
    console.print(shown)
    console.print(f"forward, training: FLOPs of a pass over {_shapes(example)}, as torch counts them", highlight=False)
    console.print("paper: multiply-adds of the forward pass, as the paper counts them", highlight=False)
    console.print("latency: one example through the extracted level", highlight=False)


def _shapes(example: Any) -> str:
    args, kwargs = as_call(example)
    named = [("an input of", value) for value in args] + list(kwargs.items())
    return ", ".join(f"{name} {'×'.join(map(str, x.shape))}" for name, x in named if isinstance(x, Tensor))
