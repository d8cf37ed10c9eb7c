"""A run as a page sees it: its levels, what they reached, and what that took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

from partialsgd.logging.records import MODEL, Record, evaluation

Json: TypeAlias = Mapping[str, Any]

FULL = "full"
"""The name of the whole network, and of one by itself."""


@final
@dataclass(frozen=True)
class Level:
    """A size that a run has; what is None is known at the run's end."""

    name: str
    updates: int
    parameters: int | None = None
    share: float | None = None
    flops: float | None = None
    latency: float | None = None
    test: Mapping[str, float] | None = None


@final
@dataclass(frozen=True)
class Run:
    """A training, or as much of it as there is."""

    path: Path
    name: str
    config: Json
    steps: Sequence[Record]
    summary: Json | None
    failure: str | None = None
    """Of one whose numbers left the finite: what it said."""

    @property
    def recipe(self) -> str:
        return str(self.config["recipe"])

    @property
    def settings(self) -> Json:
        return dict(self.config["settings"])

    @property
    def is_finished(self) -> bool:
        return self.summary is not None

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Smallest first, as the summary has them; before that, as the evaluations do."""
        if self.summary is None:
            evaluated = [level for step in self.steps for level in evaluation(step)]
            passed = [level for step in self.steps for level in step["loss"]]
            counts = dict.fromkeys(map(self.called, [*evaluated, *passed]), 0)
            for step in self.steps:
                for level in {self.called(level) for level in step["loss"]}:
                    counts[level] += 1
            return tuple(Level(level, updates) for level, updates in counts.items())
        alone = self.settings.get("alone") is not None  # its share would be that of itself
        return tuple(
            Level(self.called(name), **{**said, "share": None if alone else said["share"]})
            for name, said in self.summary["levels"].items()
        )

    @property
    def trained(self) -> tuple[Level, ...]:
        """The levels that had steps of their own."""
        return tuple(level for level in self.levels if level.updates)

    @property
    def score(self) -> str | None:
        """The number that levels are compared by: the summary's, or the first that was evaluated beside the loss."""
        if self.summary is not None:
            return str(self.summary["score"])
        names = (name for step in self.steps for numbers in evaluation(step).values() for name in numbers)
        return next((name for name in names if name not in ("loss", "perplexity")), None)

    @property
    def flops(self) -> float | None:
        return sum(level.flops or 0.0 for level in self.levels) if self.summary is not None else None

    @property
    def seconds(self) -> float | None:
        return None if self.summary is None else float(self.summary["seconds"])

    @property
    def wall(self) -> float | None:
        """Seconds with evaluations; a run of an earlier version has not counted them."""
        return None if self.summary is None else self.summary.get("wall")

    @property
    def extras(self) -> Json:
        return {} if self.summary is None else dict(self.summary.get("extras", {}))

    def called(self, level: str) -> str:
        """The page's name for a level: without levels a network is its full one, or the one that was taken out."""
        level = level.partition("#")[0]  # a pass that came again
        if level not in (MODEL, FULL):
            return level
        return str(self.settings.get("alone") or FULL)

    def validation(self, name: str) -> dict[str, dict[int, float]]:
        """One number of the evaluations, by level and step."""
        found: dict[str, dict[int, float]] = {}
        for step in self.steps:
            for level, numbers in evaluation(step).items():
                if name in numbers:
                    found.setdefault(self.called(level), {})[step["t"]] = numbers[name]
        return found
