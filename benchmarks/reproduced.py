"""Reproductions of the paper's tables and figures, into README.md and docs/results.md, from stored runs.

python -m benchmarks.reproduced --store runs/reproduce/table1a-laptop-multi30k.de-en --about about.json
python -m benchmarks.reproduced --write

about.json has "name" and "asked" (the experiment and what it was told), "order" on the page, and in words "says",
"command", "commit", "data", "machine" and "note".
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from benchmarks.figures import RESULTS
from partialsgd.lab.reproduce import experiment, figures, numbers, tables
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.layout import Table, as_markdown
from partialsgd.lab.reproduce.plans import Asked, Experiment
from partialsgd.lab.reproduce.same import require_all
from partialsgd.logging.records import FAILED

FOLDER = RESULTS / "reproduce"
ROOT = Path(__file__).parents[1]
PAGE, README, PICTURES = ROOT / "docs" / "results.md", ROOT / "README.md", ROOT / "docs" / "figures"
_BEGIN, _END = "<!-- written by `python -m benchmarks.reproduced --write` -->", "<!-- end of reproduced -->"
_CURVES = "Lines are means of the seeds, bands reach from the lowest to the highest; 5T is 5·10¹² FLOPs."

About: TypeAlias = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduced", description=__doc__)
    parser.add_argument("--store", type=Path, help="the directory of a reproduction")
    parser.add_argument("--about", type=Path, help="with --store: what was run, in words; see above")
    parser.add_argument("--write", action="store_true", help="README.md and docs/results.md, from what is stored")
    given = parser.parse_args(arguments)
    if given.store:
        if given.about is None:
            parser.error("--store needs --about: what was run, in words")
        store(given.store, json.loads(given.about.read_text(encoding="utf-8")))
    if given.write:
        write()


def store(reproduction: Path, about: About, folder: Path = FOLDER) -> Path:
    """The runs at their end: settings, summary, evaluations and criteria, without places and without any text.

    What was stored of it before gives way when all is there.
    """
    from_, to = Folder(reproduction.resolve()), folder / reproduction.resolve().name
    runs = [run for kind in ("grid", "rows") for run in sorted((from_.path / kind).glob("*/*")) if from_.ended(run)]
    if not runs:
        raise SystemExit(f"{reproduction} has no finished run; give the directory of a reproduction")
    stage = folder / f".{to.name}"
    shutil.rmtree(stage, ignore_errors=True)
    for run in runs:
        _store_run(run, stage / run.relative_to(from_.path))
    (stage / "about.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    shutil.rmtree(to, ignore_errors=True)
    stage.rename(to)
    return to


def _store_run(run: Path, to: Path) -> None:
    to.mkdir(parents=True)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    for name in ("out", "data", "start", "teacher"):
        if config["settings"].get(name) is not None:
            config["settings"][name] = None if name == "out" else PurePath(config["settings"][name]).name
    _write(to / "config.json", config)
    for name in ("summary.json", FAILED):
        if (run / name).exists():
            found = json.loads((run / name).read_text(encoding="utf-8"))
            found.get("extras", {}).pop("samples", None)  # sentences of a corpus are not ours to publish
            found |= (
                {"error": found["error"].partition(". What to try")[0]} if "error" in found else {}
            )  # the rest names places
            _write(to / name, found)
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True) if metrics.exists() else []  # it diverged at once
    (to / "metrics.jsonl").write_bytes(b"".join(line for line in lines if b'"valid/' in line or b'"criteria"' in line))


def _write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")


def stored(folder: Path = FOLDER) -> dict[Path, About]:
    found = {path.parent: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*/about.json")}
    return dict(sorted(found.items(), key=lambda each: each[1]["order"]))


def write(folder: Path = FOLDER) -> None:
    PICTURES.mkdir(exist_ok=True)
    for path, about in stored(folder).items():
        plan, runs = opened(path, about)
        for name, figure in figures.drawn(plan, runs, numbers.found(plan, runs)):
            figures.write(figure, PICTURES, picture(path, name))
    for page, text in ((PAGE, sections(folder)), (README, in_short(folder))):
        page.write_text(in_place(page.read_text(encoding="utf-8"), text), encoding="utf-8")


def picture(path: Path, name: str) -> str:
    """The name of a figure's file: which reproduction it is of, and what it shows."""
    return f"{path.name}-{name}"


def in_place(text: str, found: str) -> str:
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise ValueError(f"a page must have {_BEGIN} and {_END} once each")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{found}\n{_END}{after}"


def sections(folder: Path = FOLDER) -> str:
    """Everything, a section for each reproduction."""
    every = [_section(path, about) for path, about in stored(folder).items()]
    return "\n\n".join([f"{_made(folder)}", *every]) if every else "No reproduction is stored yet."


def in_short(folder: Path = FOLDER) -> str:
    """Table 1a and its curves, for the README."""
    for path, about in stored(folder).items():
        if about["name"] == "table1a":
            found = numbers.found(*opened(path, about))
            (table, *_) = tables.tables(found)
            image = (
                f"![{about['says']}: validation BLEU along the training](docs/figures/{picture(path, 'curves')}.png)"
            )
            told = f"{about['says']}, {_made(path)}"
            return "\n\n".join([told, f"```sh\n{about['command']}\n```", _rows(table), image, _CURVES])
    return ""


def opened(path: Path, about: About) -> tuple[Experiment, Folder]:
    """What is stored, if all of it is what the experiment means today."""
    plan, runs = experiment(about["name"], Asked(**about["asked"])), Folder(path)
    require_all(plan, runs)
    return plan, runs


def _section(path: Path, about: About) -> str:
    plan, runs = opened(path, about)
    found = numbers.found(plan, runs)
    shown = tables.tables(found)
    first, rest = shown[:1], shown[1:]
    images = [
        f"![{found['title']}: {name}](figures/{picture(path, name)}.png)"
        for name, _ in figures.drawn(plan, runs, found)
    ]
    told = (
        found["title"] + ".",
        about["data"],
        _made(path),
        about["machine"],
        f"Commit {about['commit']}.",
        about["note"],
    )
    parts = [
        f"### {about['says']}",
        f"```sh\n{about['command']}\n```",
        " ".join(part for part in told if part),
        *map(_rows, first),
        tables.in_words(found),
        *images,
        *(
            _folded(table.title, _rows(table)) if table.title == "The grid" else f"**{table.title}**\n\n{_rows(table)}"
            for table in rest
        ),
        _folded("Choices that the paper leaves open, and versions", _chosen(found)),
    ]
    return "\n\n".join(part for part in parts if part)


def _made(path: Path) -> str:
    """How many runs, and how long they trained; one that stands in two tables counts once."""
    summaries = [json.loads(text) for text in {each.read_text(encoding="utf-8") for each in path.rglob("summary.json")}]
    hours = sum(each["seconds"] for each in summaries) / 3600
    wall = sum(each["wall"] for each in summaries) / 3600 if all("wall" in each for each in summaries) else None
    whole = "evaluations come on top" if wall is None else f"{wall:.1f} hours of wall time with evaluations"
    return f"{len(summaries)} runs, {hours:.1f} hours of steps on one thread, all together; {whole}."


def _rows(table: Table) -> str:
    return _below(as_markdown(table))


def _chosen(found: numbers.Found) -> str:
    return f"{_below(tables.choices(found))}\n\n{tables.made_with(found)}"


def _below(titled: str) -> str:
    return titled.partition("\n\n")[2]


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


if __name__ == "__main__":
    main()
