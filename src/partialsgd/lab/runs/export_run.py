"""Export a level of a trained run: a directory of weights, sidecar files and a README that works without partialsgd."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partialsgd import export
from partialsgd._util import files
from partialsgd.export.formats import Format
from partialsgd.lab.runs.run import Checkpoint, Run
from partialsgd.lab.runs.use_run import open_task, require_level
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from partialsgd.lab.training.task import ExportDetails, Task

_EXPORT = "export.json"
"""The file that says which level of which run a directory holds, and which of its files the export wrote."""


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
