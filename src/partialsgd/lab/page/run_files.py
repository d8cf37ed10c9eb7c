"""Runs as the report shows them, read from config.json, metrics.jsonl and summary.json of their directories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

from partialsgd._util.files import read_json
from partialsgd.lab.runs.run import FAILED, evaluation
from partialsgd.logging import metrics_log, series
from partialsgd.logging.metrics_log import Record

Json: TypeAlias = Mapping[str, Any]


@final
@dataclass(frozen=True)
class Level:
    """One level of a run. The fields with a default are known when the run is finished."""

    name: str
    updates: int
    parameters: int | None = None
    share: float | None = None
    flops: float | None = None
    latency: float | None = None
    latency_spread: Sequence[float] = ()
    """The least and the largest measured latency; older runs have none."""
    test: Mapping[str, float] = field(default_factory=dict)
    score: float | None = None
    """The test number by which levels are compared."""


@final
@dataclass(frozen=True)
class Run:
    """A training run, finished or not."""

    path: Path
    name: str
    is_only: bool
    """True if the page shows no other run."""
    config: Json
    steps: Sequence[Record]
    summary: Json
    """Empty until the run is finished."""
    failure: str | None = None
    """The error message of a run that diverged."""

    @property
    def settings(self) -> Json:
        return dict(self.config["settings"])

    @property
    def method(self) -> str:
        return str(self.settings.get("method", ""))

    @property
    def extras(self) -> Json:
        """The results that the recipe added to the summary."""
        return dict(self.summary.get("extras", {}))

    @property
    def score(self) -> str | None:
        """The name of the test number by which levels are compared; until the end the first score that is no loss."""
        names = (name for step in self.steps for values in evaluation(step).values() for name in values)
        evaluated = (name for name in names if name not in ("loss", "perplexity"))
        return str(self.summary["score"]) if self.summary else next(evaluated, None)

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels, smallest first: from the summary, or from evaluations and losses if the run is not finished."""
        if not self.summary:
            evaluated = [self.level_name(name) for step in self.steps for name in evaluation(step)]
            updated = [level for step in self.steps for level in {self.level_name(name) for name in step["loss"]}]
            return tuple(Level(name, updated.count(name)) for name in dict.fromkeys(evaluated + updated))
        is_extracted = self.settings.get("alone") is not None  # then `share` is its share of itself
        return tuple(
            Level(
                self.level_name(name),
                score=float(entry["test"][self.score]),
                **{**entry, "share": None if is_extracted else entry["share"]},
            )
            for name, entry in self.summary["levels"].items()
        )

    @property
    def trained(self) -> tuple[Level, ...]:
        """The levels that were updated by steps of their own."""
        return tuple(level for level in self.levels if level.updates)

    @property
    def flops(self) -> float:
        return sum(level.flops or 0.0 for level in self.levels)

    def level_name(self, recorded: str) -> str:
        """Return the name of a recorded level: "core#2" is "core", and a network without levels is its full level.

        A level that was extracted and trained alone keeps its own name.
        """
        level = recorded.partition("#")[0]
        return level if level not in (metrics_log.MODEL, "full") else str(self.settings.get("alone") or "full")

    def label(self, level: str) -> str:
        """Name a level on the page: with its run if there are several."""
        return level if self.is_only else f"{self.name} · {level}"

    def validation(self, name: str) -> dict[str, dict[int, float]]:
        """Return one number of the evaluations by level and step."""
        values: dict[str, dict[int, float]] = {}
        for step in self.steps:
            for level, numbers in evaluation(step).items():
                if name in numbers:
                    values.setdefault(self.level_name(level), {})[step["t"]] = numbers[name]
        return values

    def last_loss(self, level: str) -> float | None:
        """Return the last validation loss of a level."""
        return next(reversed(self.validation("loss").get(level, {}).values()), None)


def read_runs(paths: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Read run directories; a directory that is given twice is read once."""
    if isinstance(paths, (str, os.PathLike)) or not paths:
        raise ValueError(f"runs must be a list of run directories with at least one entry, got {paths!r}")
    directories: dict[Path, Path] = {}
    for path in map(Path, paths):
        directories.setdefault(path.resolve(), path)
    names = _distinct_names(list(directories))
    return [_read(path, name, len(names) == 1) for path, name in zip(directories.values(), names, strict=True)]


def largest_scores(runs: Sequence[Run]) -> dict[str, float]:
    """Return the largest test score of all levels by the name of the score."""
    scores = [(str(run.score), level.score or 0.0) for run in runs if run.summary for level in run.levels]
    return {name: max(score for other, score in scores if other == name) for name, _ in scores}


def _read(path: Path, name: str, is_only: bool) -> Run:
    config = _read_config(path)
    metrics, summary, failed = (path / file for file in ("metrics.jsonl", "summary.json", FAILED))
    run = Run(
        path=path,
        name=name,
        is_only=is_only,
        config=config,
        steps=series.steps_of(metrics) if metrics.is_file() else [],
        summary=read_json(summary) if summary.is_file() else {},
        failure=str(read_json(failed).get("error", "")) if failed.is_file() else None,
    )
    if summary.is_file():
        try:
            _ = (run.levels, float(run.summary["seconds"]), int(run.summary["steps"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{summary} is damaged, or another version of partialsgd wrote it: {error!r}") from error
    return run


def _read_config(path: Path) -> Json:
    file = path / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{path} is not a run directory: {_missing_config(path)}")
    config = read_json(file)
    if isinstance(config.get("settings"), dict) and "recipe" in config:
        return config
    if (path.parent / "metrics.jsonl").is_file():
        raise FileNotFoundError(f"{path} is a part of a run; give the run directory {path.parent}")
    raise FileNotFoundError(
        f"{path} is not a run directory: its config.json has no recipe and settings, which `partialsgd train` writes"
    )


def _missing_config(path: Path) -> str:
    if not path.exists():
        return "it does not exist; `partialsgd train` makes one and prints its path"
    if not path.is_dir():
        return "it is a file; give the directory that `partialsgd train` made"
    depths = ("*/config.json", "*/*/config.json", "*/*/*/config.json")  # a reproduction has rows/ROW/SEED
    files = next((files for depth in depths if (files := list(path.glob(depth)))), [])
    inner = sorted(file.parent.relative_to(path).as_posix() for file in files)
    hint = f"; it contains directories that may be runs: {', '.join(inner[:5])}" if inner else ""
    return f"it has no config.json, which `partialsgd train` writes first{hint}"


def _distinct_names(directories: Sequence[Path]) -> list[str]:
    """Name each directory by the shortest end of its path that differs from the others, without a common end."""
    while len(directories) > 1 and len({directory.name for directory in directories}) == 1:
        directories = [directory.parent for directory in directories]
    for length in range(1, max(len(directory.parts) for directory in directories) + 1):
        names = ["/".join(directory.parts[-length:]) for directory in directories]
        if len(set(names)) == len(names):
            break
    return names
