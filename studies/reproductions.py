"""Stored reproductions of the paper's tables and figures: a file for each, and the pages that are written from them.

    python -m studies.reproductions runs/reproduce/table1a-laptop-multi30k.de-en --about about.json

stores the finished runs of a reproduction: their settings, summaries, evaluations and criteria, without paths and
without any text of the data. about.json has "name" and "request" (the experiment and its options), "order" on the page,
and in words "says", "command", "commit", "data", "machine" and "note".
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from partialsgd._util.files import read_json
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.reproduce import Request, figures, make_experiment, numbers, tables
from partialsgd.lab.reproduce.experiment import Experiment
from partialsgd.lab.reproduce.run_folder import PATH_PARTS, RunFolder
from partialsgd.lab.reproduce.schedule import require_all
from partialsgd.lab.runs.run import FAILED
from partialsgd.logging import metrics_log
from studies import results
from studies.results import RESULTS, Record

About: TypeAlias = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.reproductions", description=__doc__)
    parser.add_argument("folder", type=Path, help="the directory of a reproduction")
    parser.add_argument("--about", type=Path, required=True, help="a JSON file on what was run; see above")
    options = parser.parse_args(arguments)
    store(options.folder, json.loads(options.about.read_text(encoding="utf-8")))


def store(folder: Path, about: About, to: Path = RESULTS) -> Path:
    """Write the finished runs of a reproduction to a file of its name, which replaces an earlier one."""
    folder = folder.resolve()
    runs = packed_runs(folder)
    if not runs:
        raise SystemExit(f"{folder} has no finished run; give the directory of a reproduction")
    file = to / f"{folder.name}.jsonl"
    results.write(file, [{"about": about}, *runs])
    return file


def packed_runs(folder: Path) -> list[Record]:
    """A record for each finished run of a folder, without paths and without any text of the data."""
    runs = [path for kind in ("grid", "rows") for path in sorted((folder / kind).glob("*/*")) if _is_finished(path)]
    return [{"run": str(run.relative_to(folder)), **_packed(run)} for run in runs]


def unpack(runs: Sequence[Record], folder: Path) -> None:
    """Write the files of stored runs into a folder."""
    for run in runs:
        path = folder / run["run"]
        path.mkdir(parents=True)
        for part in ("config", "summary", "failed"):
            if part in run:
                (path / f"{part}.json").write_text(json.dumps(run[part]), encoding="utf-8")
        (path / "metrics.jsonl").write_bytes(b"".join(map(metrics_log.to_line, run["metrics"])))


def _is_finished(run: Path) -> bool:
    return any((run / name).exists() for name in ("summary.json", FAILED))


def _packed(run: Path) -> Record:
    config = read_json(run / "config.json")
    for name in ("out", *RECIPES[config["recipe"]].paths):
        if config["settings"].get(name) is not None:
            parts = PurePath(config["settings"][name]).parts
            config["settings"][name] = None if name == "out" else "/".join(parts[-PATH_PARTS[name] :])
    packed: Record = {"config": config}
    for name in ("summary.json", FAILED):
        if (run / name).exists():
            content = read_json(run / name)
            content.get("extras", {}).pop("samples", None)  # sentences of a corpus are not ours to publish
            if "error" in content:
                content["error"] = content["error"].partition(". What to try")[0]  # the rest names paths
            packed[PurePath(name).stem] = content
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().split(b"\n") if metrics.exists() else []  # it may have diverged at once
    packed["metrics"] = [json.loads(line) for line in lines if b'"valid/' in line or b'"criteria"' in line]
    return packed


@contextmanager
def unpacked(file: Path) -> Iterator[tuple[Experiment, RunFolder]]:
    """The experiment and a temporary folder with its stored runs, if all are what the experiment means today."""
    about, *runs = results.read(file)
    plan = make_experiment(about["about"]["name"], Request(**about["about"]["request"]))
    with tempfile.TemporaryDirectory() as name:
        unpack(runs, Path(name))
        folder = RunFolder(Path(name), plan)
        require_all(plan, folder)
        yield plan, folder


def stored(folder: Path = RESULTS) -> dict[Path, About]:
    """The stored reproductions in their order on the page."""
    firsts = {file: results.read(file)[0] for file in sorted(folder.glob("*.jsonl"))}
    abouts = {file: first["about"] for file, first in firsts.items() if "about" in first}
    return dict(sorted(abouts.items(), key=lambda each: each[1]["order"]))


def draw(file: Path, to: Path) -> list[Path]:
    """Write the figures of a reproduction, named after its file and what they show."""
    with unpacked(file) as (plan, folder):
        drawn = figures.draw(plan, folder, numbers.collect(plan, folder))
        return [path for name, figure in drawn for path in figures.write(figure, to, f"{file.stem}-{name}", ["png"])]


def sections(folder: Path = RESULTS) -> str:
    """A section for each reproduction."""
    files = stored(folder)
    if not files:
        return "No reproduction is stored yet."
    return "\n\n".join([_effort(list(files)), *(_section(file, about) for file, about in files.items())])


def _section(file: Path, about: About) -> str:
    with unpacked(file) as (plan, folder):
        collected = numbers.collect(plan, folder)
        names = [name for name, _ in figures.draw(plan, folder, collected)]
    first, *rest = tables.tables(collected)
    title = collected["title"]
    sentences = (f"{title}.", about["data"], _effort([file]), about["machine"], f"Commit {about['commit']}.")
    parts = [
        f"### {about['says']}",
        f"```sh\n{about['command']}\n```",
        " ".join(part for part in (*sentences, about["note"]) if part),
        _untitled(tables.to_markdown(first)),
        tables.bullets(collected),
        *(f"![{title}: {name}](figures/{file.stem}-{name}.png)" for name in names),
        *(_titled(table) for table in rest),
        _folded(
            "Choices that the paper leaves open, and versions",
            f"{_untitled(tables.choices(collected))}\n\n{tables.versions(collected)}",
        ),
    ]
    return "\n\n".join(part for part in parts if part)


def _titled(table: tables.Table) -> str:
    text = _untitled(tables.to_markdown(table))
    return _folded(table.title, text) if table.title == "The grid" else f"**{table.title}**\n\n{text}"


def _effort(files: Sequence[Path]) -> str:
    """How many runs, and how long they trained; a run that stands in two files counts once."""
    lines = [run["summary"] for file in files for run in results.read(file)[1:] if "summary" in run]
    summaries = list({json.dumps(summary): summary for summary in lines}.values())
    hours = sum(summary["seconds"] for summary in summaries) / 3600
    has_wall = all("wall" in summary for summary in summaries)
    wall = sum(summary["wall"] for summary in summaries) / 3600 if has_wall else 0.0
    whole = f"{wall:.1f} hours of wall time with evaluations" if has_wall else "evaluations come on top"
    return f"{len(summaries)} runs, {hours:.1f} hours of steps on one thread, all together; {whole}."


def _untitled(text: str) -> str:
    return text.partition("\n\n")[2]


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


if __name__ == "__main__":
    main()
