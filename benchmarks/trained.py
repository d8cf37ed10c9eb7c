"""Trainings by the recipes on real data, into docs/results.md: a finished run is stored, the page is written from it.

python -m benchmarks.trained --store RUN --name multi30k --says "Multi30k, German to English"
python -m benchmarks.trained --write
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from benchmarks.figures import RESULTS
from partialsgd.lab.recipes import presets
from partialsgd.lab.runs.run import Run

FOLDER = RESULTS / "recipes"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
_BEGIN, _END = "<!-- written by `python -m benchmarks.trained --write` -->", "<!-- end of trained -->"

Stored: TypeAlias = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trained", description=__doc__)
    parser.add_argument("--store", type=Path, help="a run that is at its end")
    parser.add_argument("--name", help="of the file that it is stored in")
    parser.add_argument("--says", help="the data in a few words, for the heading")
    parser.add_argument("--note", default="", help="what one should know of this run, like who else used the machine")
    parser.add_argument("--write", action="store_true", help="write the page from what is stored")
    options = parser.parse_args(arguments)
    if options.store:
        store(Run.open(options.store), options.name, options.says, options.note)
    if options.write:
        PAGE.write_text(in_place(PAGE.read_text(encoding="utf-8"), written()), encoding="utf-8")


def store(run: Run, name: str, says: str, note: str = "", folder: Path = FOLDER) -> None:
    """The settings and the summary of a run, without the place that it lay in."""
    if run.summary is None:
        raise SystemExit(f"{run.path} is not at its end: partialsgd resume {run.path}")
    date = datetime.fromtimestamp((run.path / "summary.json").stat().st_mtime, timezone.utc).date().isoformat()
    record = {"says": says, "note": note, "date": date, "command": command(run), "summary": run.summary}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def command(run: Run) -> str:
    """What to type for the same training: what is not as in the preset, and of the data the folder's name."""
    settings, words = run.settings, ["partialsgd", "train", run.settings.recipe]
    preset = getattr(settings, "preset", next(iter(presets(settings.recipe))))
    base = presets(settings.recipe)[preset]
    words += ["--preset", preset] if preset != next(iter(presets(settings.recipe))) else []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name not in ("out", "preset") and value != getattr(base, field.name):
            shown = [PurePath(value).name] if field.name == "data" else list(map(str, as_tuple(value)))
            words += [f"--{field.name.replace('_', '-')}", *shown]
    return " ".join(words)


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def written(folder: Path = FOLDER) -> str:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return "\n\n".join(_section(each) for each in found) or "No training is stored yet."


def in_place(text: str, tables: str) -> str:
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{tables}\n{_END}{after}"


def _section(record: Stored) -> str:
    summary = record["summary"]
    score = summary["score"]
    rows = [
        f"| {level} | {row['parameters']:,} | {row['share']:.1%} | {row['updates']:,} | {row['flops']:.3g} "
        f"| {row['test'][score]:.4g} | {1e3 * row['latency']:.3g} ms |"
        for level, row in summary["levels"].items()
    ]
    head = f"| level | parameters | share | updates | training FLOPs | {score} | latency |"
    minutes = f"{summary['seconds'] / 60:.1f} minutes of training; {record['date']}"
    note = f" {record['note']}" if record["note"] else ""
    return "\n".join(
        [
            f"### {record['says']}",
            "",
            f"```sh\n{record['command']}\n```",
            "",
            f"{summary['steps']:,} steps, {minutes}; torch {summary['versions']['torch']}.{_beside(summary)}{note}",
            "",
            head,
            "| --- |" + " --: |" * 6,
            *rows,
        ]
    )


def _beside(summary: dict[str, Any]) -> str:
    extras = summary["extras"]
    signature = f" sacrebleu `{extras['signature']}`." if "signature" in extras else ""
    return f"{signature} Baseline: {extras['nearest']}." if "nearest" in extras else signature


if __name__ == "__main__":
    main()
