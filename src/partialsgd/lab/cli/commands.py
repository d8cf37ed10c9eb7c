"""Commands that use what was trained, and all commands by name."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from partialsgd.lab.cli.reports import Report
from partialsgd.lab.cli.reproductions import Reproduce
from partialsgd.lab.cli.trainings import Compare, Resume, Train

Checkpoint: TypeAlias = Literal["best", "last"]


@final
@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Score the levels of a run.

    $ partialsgd evaluate runs/r                # every level on the test data
    $ partialsgd evaluate runs/r --level core --split valid --checkpoint last
    """

    run: Path
    """The run directory."""
    level: tuple[str, ...] = ()
    """Only these levels; by default all."""
    split: Literal["valid", "test"] = "test"
    """The data to score on."""
    checkpoint: Checkpoint = "best"
    """The weights that were best on the validation data, or the last ones."""

    def __call__(self) -> None:
        from rich.console import Console

        from partialsgd.lab.runs.run import Run
        from partialsgd.lab.runs.use_run import evaluate, scores_table, signature

        run = Run.open(self.run)
        found = evaluate(run, self.level, split=self.split, checkpoint=self.checkpoint)
        console = Console()
        console.print(f"{self.run}: the {self.checkpoint} weights on the {self.split} data", highlight=False)
        console.print(scores_table(found))
        if said := signature(run):
            console.print(said, highlight=False)


@final
@dataclass(frozen=True, kw_only=True)
class Translate:
    """Translate the lines of the standard input with one level of a run.

    $ partialsgd translate runs/r < text.en > text.de
    $ echo "three days" | partialsgd translate runs/r --level core
    """

    run: Path
    """The run directory."""
    level: str = "full"
    """The level that translates."""
    beam: int | None = None
    """Hypotheses that the search keeps; by default as many as the run's settings say."""
    checkpoint: Checkpoint = "best"
    """The weights that were best on the validation data, or the last ones."""

    def __call__(self) -> None:
        from partialsgd.lab.runs.run import Run
        from partialsgd.lab.runs.use_run import arriving, translate

        if isinstance(sys.stdout, TextIOWrapper):  # what stands in for it may have no encoding
            sys.stdout.reconfigure(encoding="utf-8")
        try:
            run = Run.open(self.run)
            lines = arriving(sys.stdin.fileno())
            for line in translate(run, lines, self.level, beam=self.beam, checkpoint=self.checkpoint):
                print(line, flush=True)
        except UnicodeDecodeError as error:
            raise ValueError(f"the standard input is not UTF-8: {error}") from error


@final
@dataclass(frozen=True, kw_only=True)
class Profile:
    """Show what each level of a run costs: parameters, FLOPs and time.

    $ partialsgd profile runs/r
    """

    run: Path
    """The run directory."""

    def __call__(self) -> None:
        from rich.console import Console

        from partialsgd.lab.runs.run import Run
        from partialsgd.lab.runs.use_run import profile

        profile(Run.open(self.run), Console())


@final
@dataclass(frozen=True, kw_only=True)
class Export:
    """Write one level of a run as a network by itself, for use without partialsgd.

    $ partialsgd export runs/r --level core     # model.safetensors, config.json
    $ partialsgd export runs/r --level core --format onnx --to small
    $ partialsgd export runs/r --level full --format transformers

    A README.md beside the weights shows how to load them.
    """

    run: Path
    """The run directory."""
    level: str = "core"
    """The level to take out."""
    format: Literal["safetensors", "onnx", "transformers"] = "safetensors"
    """Weights and configuration; a graph for onnxruntime and others; or what `from_pretrained` reads."""
    to: Path | None = None
    """The directory to write; by default RUN/exports/LEVEL-FORMAT."""
    checkpoint: Checkpoint = "best"
    """The weights that were best on the validation data, or the last ones."""

    def __call__(self) -> None:
        from partialsgd.lab.runs.exporting import export_level
        from partialsgd.lab.runs.run import Run

        run = Run.open(self.run)
        place = export_level(run, self.level, format=self.format, to=self.to, checkpoint=self.checkpoint)
        for file in sorted(place.iterdir()):
            print(f"{file.stat().st_size:>12,}  {file}")


@final
@dataclass(frozen=True, kw_only=True)
class Methods:
    """List the training methods, or say what one of them does and can be told.

    $ partialsgd methods
    $ partialsgd methods sam
    """

    name: str | None = field(default=None, metadata={"positional": True})
    """The method to say more of."""

    def __call__(self) -> None:
        from partialsgd.lab.training.registry import listed, told

        width = shutil.get_terminal_size().columns
        print(told(self.name, width) if self.name else listed(width))


OF_RUNS: dict[str, type[Any]] = {
    "resume": Resume,
    "evaluate": Evaluate,
    "translate": Translate,
    "profile": Profile,
    "export": Export,
    "report": Report,
    "reproduce": Reproduce,
    "methods": Methods,
}
"""Commands with options of their own."""

OF_SETTINGS: dict[str, type[Any]] = {"train": Train, "compare": Compare}
"""Commands that are given a recipe and its settings too."""
