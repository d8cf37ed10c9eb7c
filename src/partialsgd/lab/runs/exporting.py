"""Export one level of a run as files that work without partialsgd: weights, sidecar files and a README."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path

from partialsgd import export
from partialsgd._util import files
from partialsgd.export.formats import Format
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import Checkpoint, open_task, require_level
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.task import ExportDetails, Task


def export_level(
    run: Run,
    level: str,
    *,
    format: Format = "safetensors",
    to: Path | None = None,
    checkpoint: Checkpoint = "best",
) -> Path:
    """Write a level of a run to a directory, by default inside the run, and return that directory."""
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
    with _no_progress_bars() if format == "transformers" else nullcontext():
        example, dynamic = task.example(), details.dynamic
        export.export(task.network, level, directory, format=format, example=example, dynamic=dynamic)
    readme = {"README.md": _readme(run, task, level, details, checkpoint)}
    for name, text in {**task.sidecar_files(), **details.files, **readme}.items():
        files.write_text(directory / name, text)
    return directory


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Switch off transformers' progress bars: a single file is written and read in a moment."""
    logging = import_module("transformers.utils.logging")
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


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
