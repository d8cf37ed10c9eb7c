"""Use a trained run: load its model, score its levels at the end of a training or later, show their cost, export one.

An exported level is a directory of weights, sidecar files and a README that works without partialsgd.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from accelerate.utils import send_to_device
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

from partialsgd import export
from partialsgd._util import files
from partialsgd.export import states
from partialsgd.export.formats import Format
from partialsgd.lab.recipes import build
from partialsgd.lab.runs.run import Run, versions
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from partialsgd.lab.training.launch import processes
from partialsgd.lab.training.state import TrainingState
from partialsgd.lab.training.task import ExportDetails, Numbers, Split, Task
from partialsgd.method import Method
from partialsgd.nested import Nested
from partialsgd.nested.example_inputs import as_call

Checkpoint: TypeAlias = Literal["best", "last"]

_EXPORT = "export.json"
"""The file that says which level of which run a directory holds, and which of its files the export wrote."""


_TURNS = 3  # measurements of the latency of each level


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
    record, tensors = export.files.read(directory)
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
        summary["extras"] = task.extras(method)
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


def export_level(
    run: Run,
    level: str,
    *,
    format: Format = "safetensors",
    to: Path | None = None,
    checkpoint: Checkpoint = "best",
    overwrite: bool = False,
) -> Path:
    """Write a level of a run to a directory, by default inside the run, and return that directory.

    The directory must be empty or hold this level of this run already, unless `overwrite` is given. If writing fails
    it stays as it was. While files are moved into it, it has no README.md, so that none describes other weights.
    """
    if to is not None and any((to / name).exists() for name in ("metrics.jsonl", "checkpoints", "best")):
        raise WrongCall(f"--to: {to} is a run, whose config.json would be overwritten; give another directory")
    task = open_task(run, checkpoint)
    if format not in task.formats:
        raise WrongCall(
            f"--format {format} is not for runs of {run.settings.recipe}, and {run.path} is one; "
            f"use {' or '.join(task.formats)}"
        )
    require_level(task.network, level)
    task.network.cpu()
    details = task.export_details(level, format)
    directory = to or run.path / "exports" / f"{level.replace('/', '_')}-{format}"
    run_hash = files.sha256((run.path / "config.json").read_bytes())
    earlier = _earlier_export(directory, {"run": run_hash, "level": level}, overwrite)
    if export.files.is_nested_model(directory):
        raise WrongCall(f"--to: {directory} holds a saved nested model, which would be lost; give another directory")
    with files.staged(directory, last="README.md") as stage:
        example, dynamic = task.example(), details.dynamic
        export.export(task.network, level, stage, format=format, example=example, dynamic=dynamic)
        readme = {"README.md": _readme(run, task, level, details, checkpoint)}
        for name, text in {**task.sidecar_files(), **details.files, **readme}.items():
            (stage / name).write_text(text, encoding="utf-8")
        names = sorted(file.name for file in stage.iterdir())
        record = {"level": level, "format": format, "checkpoint": checkpoint, "run": run_hash, "files": names}
        for name in {"README.md", *earlier} - {_EXPORT}:
            (directory / name).unlink(missing_ok=True)
        files.write_json(directory / _EXPORT, record)  # before the others, so that after a kill the same call goes on
    return directory


def _earlier_export(directory: Path, wanted: Mapping[str, str], overwrite: bool) -> list[str]:
    """The files of an earlier export in a directory; raises if something else would be overwritten."""
    there = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    record = _record_of(directory) if _EXPORT in there else {}
    is_same = all(record.get(name) == value for name, value in wanted.items())
    if set(there) - {files.STAGE} and not is_same and not overwrite:
        which = "this" if record.get("run") == wanted["run"] else "another"
        holds = f"holds the level {record.get('level')!r} of {which} run"
        is_foreign = f"is not empty, and has no {_EXPORT} of ours ({', '.join(there[:3])}{', …' if there[3:] else ''})"
        raise AlreadyThere(
            f"{directory} {holds if record else is_foreign}; give an empty directory by --to, or --overwrite to "
            "write into it all the same"
        )
    return [name for name in record.get("files", []) if name in there]


def _record_of(directory: Path) -> dict[str, Any]:
    """Read the record that an export has left; empty if another program wrote a file of this name."""
    try:
        record = files.read_json(directory / _EXPORT)
    except ValueError:
        return {}
    texts = all(isinstance(record.get(name), str) for name in ("run", "level", "format", "checkpoint"))
    names = record.get("files")
    is_ours = texts and isinstance(names, list) and all(isinstance(name, str) and "/" not in name for name in names)
    return record if is_ours else {}


def _readme(run: Run, task: Task, level: str, details: ExportDetails, checkpoint: str) -> str:
    settings = run.settings
    return f"""# {settings.recipe}: {level}

{details.about} {_size(task, level)} It was trained with the method `{settings.method}` of partialsgd, which is not \
needed to use it.

{_scores(run, level, checkpoint)}## Use

In this directory, after `pip install {details.packages}`:

```python
{details.code}
```
{details.input_notes}"""


def _size(task: Task, level: str) -> str:
    levels = task.network.levels
    size, full = task.network.size(level), task.network.size(levels[-1])
    if len(levels) == 1:
        return f"It has {size:,} parameters."
    share = "the full network" if level == levels[-1] else f"{size / full:.1%} of the full network"
    return f"It has {size:,} parameters, {share}, and was trained together with the levels {', '.join(levels)}."


def _scores(run: Run, level: str, checkpoint: str) -> str:
    """The test scores of summary.json, if they are those of the exported checkpoint."""
    summary = run.summary
    if summary is None or summary["checkpoint"] != checkpoint:
        return ""
    rows = "".join(f"| {name} | {value:.4g} |\n" for name, value in summary["levels"][level]["test"].items())
    signature = summary["extras"].get("signature")
    note = f"{summary['score']}: {signature}.\n\n" if signature else ""
    return f"| on the test data | |\n| --- | --- |\n{rows}\n{note}"
