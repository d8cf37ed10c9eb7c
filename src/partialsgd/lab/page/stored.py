"""config.json, metrics.jsonl, summary.json: a run directory, read as it is, with a word on what is wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from partialsgd.lab.page.runs import Json, Level, Run
from partialsgd.logging import records, series


def read(paths: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Each under a name of its own: that of its directory, with as much of the path as tells it from the others."""
    if isinstance(paths, (str, os.PathLike)) or not paths:
        raise ValueError(f"runs must be a list of run directories, at least one; got {paths!r}")
    places: dict[Path, Path] = {}
    for path in map(Path, paths):
        places.setdefault(path.resolve(), path)  # one that is named twice is shown once
    return [_run(place, name) for place, name in zip(places.values(), _names(list(places)), strict=True)]


def _run(path: Path, name: str) -> Run:
    config = _config(path)
    metrics, summary = path / "metrics.jsonl", path / "summary.json"
    steps = series.steps_of(metrics) if metrics.is_file() else []
    failed = path / records.FAILED
    failure = str(records.load(failed).get("error", "")) if failed.is_file() else None
    return Run(path, name, config, steps, _summary(summary) if summary.is_file() else None, failure)


def _config(path: Path) -> Json:
    file = path / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{path} is no run: {_why(path)}")
    config = records.load(file)
    if isinstance(config.get("settings"), dict) and "recipe" in config:
        return config
    if (path.parent / "metrics.jsonl").is_file():
        raise FileNotFoundError(f"{path} is a part of a run; give the run itself, {path.parent}")
    raise FileNotFoundError(
        f"{path} is no run: its config.json has no recipe and settings, as `partialsgd train` writes"
    )


def _why(path: Path) -> str:
    if not path.exists():
        return "it does not exist"
    if not path.is_dir():
        return "it is a file; give the directory that `partialsgd train` made"
    depths = ("*/config.json", "*/*/config.json", "*/*/*/config.json")  # of a reproduction: rows/row/seed
    found = next((files for depth in depths if (files := list(path.glob(depth)))), [])
    inner = sorted(file.parent.relative_to(path).as_posix() for file in found)
    hint = f"; runs may be in it: {', '.join(inner[:5])}" if inner else ""
    return f"it has no config.json, which `partialsgd train` writes first{hint}"


def _summary(file: Path) -> Json:
    said = records.load(file)
    try:
        for name, level in said["levels"].items():
            _ = (Level(name, **level), float(level["test"][said["score"]]))
        _ = (float(said["seconds"]), int(said["steps"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{file} is damaged, or of another version of partialsgd: {error!r}") from error
    return said


def _names(places: Sequence[Path]) -> list[str]:
    """Of several, what all paths end with tells nothing."""
    while len(places) > 1 and len({place.name for place in places}) == 1:
        places = [place.parent for place in places]
    for length in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-length:]) for place in places]
        if len(set(names)) == len(names):
            break
    return names
