"""Stored trainings by the recipes on real data.

python -m studies.recipes RUN --name multi30k --says "Multi30k, German to English"
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any

from partialsgd.lab.recipes import presets
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import level_cells
from studies import pages, results
from studies.results import RESULTS, Record

FILE = RESULTS / "recipes.jsonl"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.recipes", description=__doc__)
    parser.add_argument("run", type=Path, help="a finished run")
    parser.add_argument("--name", required=True, help="the name that it is stored under")
    parser.add_argument("--says", required=True, help="the data in a few words, for the heading")
    parser.add_argument("--note", default="", help="what a reader should know of this run")
    options = parser.parse_args(arguments)
    store(Run.open(options.run), options.name, options.says, options.note)


def store(run: Run, name: str, says: str, note: str = "", file: Path = FILE) -> None:
    """Store the command and the summary of a run, without its path."""
    if run.summary is None:
        raise SystemExit(f"{run.path} is not finished: partialsgd resume {run.path}")
    date = datetime.fromtimestamp((run.path / "summary.json").stat().st_mtime, timezone.utc).date().isoformat()
    record = {"name": name, "says": says, "note": note, "date": date, "command": command(run), "summary": run.summary}
    results.put(file, record, key=["name"])


def command(run: Run) -> str:
    """The command for the same training: what differs from the preset, and of the data the folder's name."""
    settings, words = run.settings, ["partialsgd", "train", run.settings.recipe]
    first = next(iter(presets(settings.recipe)))
    preset = getattr(settings, "preset", first)
    words += ["--preset", preset] if preset != first else []
    base = presets(settings.recipe)[preset]
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name not in ("out", "preset") and value != getattr(base, field.name):
            values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
            shown = [PurePath(value).name] if field.name == "data" else list(map(str, values))
            words += [f"--{field.name.replace('_', '-')}", *shown]
    return " ".join(words)


def sections(file: Path = FILE) -> str:
    return "\n\n".join(map(_section, results.read(file))) or "No training is stored yet."


def _section(record: Record) -> str:
    summary = record["summary"]
    score, extras = summary["score"], summary["extras"]
    rows = level_cells(summary)
    head = ("level", "parameters", "share", "updates", "training FLOPs", score, "latency")
    sentences = [
        f"{summary['steps']:,} steps, {summary['seconds'] / 60:.1f} minutes of training; {record['date']}; "
        f"torch {summary['versions']['torch']}.",
        f"sacrebleu `{extras['signature']}`." if "signature" in extras else "",
        f"Baseline: {extras['nearest']}." if "nearest" in extras else "",
        record["note"],
    ]
    text = " ".join(part for part in sentences if part)
    return f"### {record['says']}\n\n```sh\n{record['command']}\n```\n\n{text}\n\n{pages.table(head, rows)}"


if __name__ == "__main__":
    main()
