"""The commands, each a dataclass: its fields are the options, and calling it runs the command. No torch at import."""

from __future__ import annotations

import shutil
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, final

from partialsgd import methods
from partialsgd.lab import recipes
from partialsgd.lab.cli.parsing import in_columns
from partialsgd.lab.reproduce import Request
from partialsgd.lab.runs.run import Checkpoint
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings


def _require_counts(command: object, *options: str) -> None:
    for option in options:
        if (number := getattr(command, option)) is not None and not 1 <= number <= 10_000:
            raise WrongCall(f"--{option} must be from 1 to 10,000, got {number}")


@final
@dataclass(frozen=True, kw_only=True)
class Train:
    """Train every size of a network at once, and score each of them.

    $ partialsgd train                            # generated phrases
    $ partialsgd train --data FOLDER --source de --target en
    $ partialsgd train --preset iwslt14 --data FOLDER --show-settings
    $ partialsgd train --nest width --ratio 1/4 1/2  # and full: three levels
    $ partialsgd train images --nest width --budget parameters=1/4
    $ partialsgd train --config run.toml --epochs 5
    $ partialsgd train images                     # scikit-learn's digits
    $ partialsgd train images --method "sam(rho=0.1)" --nest none
    $ partialsgd train images --preset narrow --data cifar-10-batches-bin
    """

    short_names: ClassVar[Mapping[str, str]] = {"--budget": "--level-budget"}
    """`compare` has a --budget of another kind, so the setting has a name that fits both."""

    config: Path | None = None
    """A TOML file with settings, or the config.json of a run; options of the command line take precedence."""
    show_settings: bool = False
    """Print the settings as such a file, for translation with the paper's Table 4 as comments, and stop."""

    def __call__(self, settings: Settings) -> None:
        if self.show_settings:
            from partialsgd.lab.training.settings_files import to_toml

            print(to_toml(settings), end="")
            return
        from partialsgd.lab.training.loop import train

        train(settings)


@final
@dataclass(frozen=True, kw_only=True)
class Compare:
    """Train all levels at once and each level alone, and compare their scores.

    $ partialsgd compare images --seeds 3 --out runs/comparison
    $ partialsgd compare --budget each --max-steps 2000

    Every training is a run in the directory of --out, with a table in compare.md and compare.json. The same call again
    keeps the finished runs and continues the others.
    """

    config: Path | None = None
    """A TOML file with settings, or the config.json of a run; options of the command line take precedence."""
    budget: Literal["sum", "epochs", "each"] = "sum"
    """The budget of the levels alone. With "sum", runs of equal length have the training FLOPs of the joint run
    together: for all levels, one run or several?
    With "epochs" (the paper's), each has the epochs of the joint run: what is lost if one run is paid in place of
    several?
    With "each", each has all FLOPs of the joint run: is one level better trained alone?"""
    match: tuple[Literal["parameters", "latency"], ...] = ()
    """Also train an ordinary network with as many parameters as each smaller level, or one that is as fast; it has as
    many steps as the level alone. Embeddings are most of a small network, and a level keeps them."""
    seeds: int = 1
    """Trainings of each kind, with the seeds --seed, --seed + 1, and so on."""
    jobs: int = 1
    """Trainings side by side, each in a process of its own."""

    def __post_init__(self) -> None:
        _require_counts(self, "seeds", "jobs")

    def __call__(self, settings: Settings) -> None:
        from partialsgd.lab.reproduce.compare import compare

        compare(settings, budget=self.budget, seeds=self.seeds, jobs=self.jobs, match=self.match)


@final
@dataclass(frozen=True, kw_only=True)
class Resume:
    """Continue a training that was stopped or killed.

    $ partialsgd resume runs/translation-20250102-030405

    The result is bit for bit that of a training without the stop, on the same machine.
    """

    run: Path
    """The run directory."""

    def __call__(self) -> None:
        from partialsgd.lab.runs.run import Run
        from partialsgd.lab.training.loop import resume

        resume(Run.open(self.run))


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
        from partialsgd.lab.runs.use_run import evaluate, scores_table

        run = Run.open(self.run)
        scores, signature = evaluate(run, self.level, split=self.split, checkpoint=self.checkpoint)
        console = Console()
        console.print(f"{self.run}: the {self.checkpoint} weights on the {self.split} data", highlight=False)
        console.print(scores_table(scores))
        if signature is not None:
            console.print(signature, highlight=False)


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
    """Write one level of a run as a plain network, for use without partialsgd.

    $ partialsgd export runs/r --level core     # model.safetensors, config.json
    $ partialsgd export runs/r --level core --format onnx --to small
    $ partialsgd export runs/r --level full --format transformers

    A README.md beside the weights shows how to load them.
    """

    run: Path
    """The run directory."""
    level: str = "core"
    """The level to extract."""
    format: Literal["safetensors", "onnx", "transformers"] = "safetensors"
    """Weights and configuration, a graph for onnxruntime, or a directory for `from_pretrained`."""
    to: Path | None = None
    """The directory to write; by default RUN/exports/LEVEL-FORMAT."""
    checkpoint: Checkpoint = "best"
    """The weights that were best on the validation data, or the last ones."""
    overwrite: bool = False
    """Write also into a directory that is not empty and does not hold this level of this run."""

    def __call__(self) -> None:
        from partialsgd.lab.runs.export_run import export_level
        from partialsgd.lab.runs.run import Run

        options: dict[str, Any] = {"format": self.format, "checkpoint": self.checkpoint, "overwrite": self.overwrite}
        directory = export_level(Run.open(self.run), self.level, to=self.to, **options)
        for file in sorted(directory.iterdir()):
            print(f"{file.stat().st_size:>12,}  {file}")


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """Make one HTML page of a run or of several: levels, costs, curves, criteria, outputs, configuration.

    $ partialsgd report runs/r --open           # runs/r/report.html
    $ partialsgd report runs/comparison/*-seed0 --to comparison.html

    The page is one file that needs no network. A run that is not finished is shown as far as it is.
    """

    run: tuple[Path, ...]
    """The run directories."""
    to: Path | None = None
    """The file to write; by default report.html in the first run."""
    open: bool = False
    """Open the page in the browser."""

    def __post_init__(self) -> None:
        if not self.run:
            raise WrongCall("RUN: give at least one run directory")

    def __call__(self) -> None:
        from partialsgd.lab.page import write_page

        try:
            page = write_page(self.run, self.to or self.run[0] / "report.html", default_settings=recipes.preset_values)
        except (FileExistsError, FileNotFoundError, IsADirectoryError) as error:
            raise WrongCall(str(error)) from error
        print(page)
        if self.open and not webbrowser.open(page.resolve().as_uri()):
            print(f"no browser was found; open {page} in one")


@final
@dataclass(frozen=True, kw_only=True)
class Reproduce(Request):
    """Make a table or a figure of the paper, beside its printed numbers.

    $ partialsgd reproduce table1a                  # the embedded corpus, hours
    $ partialsgd reproduce table1a --scale smoke    # minutes, to see it work
    $ partialsgd reproduce table1a --data FOLDER --jobs 2
    $ partialsgd reproduce table1a --data FOLDER --rows 1/32 --seeds 1
    $ partialsgd reproduce table1a --data FOLDER --show    # train nothing
    $ partialsgd reproduce table1a --data FOLDER --scale paper
    $ partialsgd reproduce table3 --data cifar-10-batches-bin

    Every training is a run in the directory of --out, with the table and the figures beside them. Stopped or killed,
    the same call continues: finished runs are kept.
    """

    name: Literal["table1a", "table1b", "table2a", "table2b", "table3", "figure2", "figure3", "figure4"]
    """table1a, table1b, table2a, table2b, table3, figure2, figure3 or figure4."""
    rows: tuple[str, ...] = ()
    """Only these: the name of a row, a part of names (1/32, joint), a pattern ("core-*"), or ROW@CELL for a cell that
    was not chosen (core-1_32-zero@lr0.006-warm240); core and full of Table 3 are trained only if they are named."""
    jobs: int = 1
    """Trainings side by side, of one thread each where there are several."""
    out: Path | None = None
    """The directory of the runs; by default runs/reproduce/NAME-SCALE-DATA."""
    show: bool = False
    """Train nothing: make the table and the figures of the runs that are there."""

    def __post_init__(self) -> None:
        _require_counts(self, "seeds", "jobs", "epochs", "layers")

    def __call__(self) -> None:
        from rich.console import Console

        from partialsgd.lab.reproduce.reproduce import reproduce, show

        where: dict[str, Any] = {"rows": self.rows, "at_once": self.jobs, "out": self.out}
        numbers, failures = reproduce(self.name, self, **where, train=not self.show)
        show(numbers, Console())
        if failures:
            raise RuntimeError(_summarise(failures))


def _summarise(failures: Sequence[str]) -> str:
    """One line for all failures; a reason that several runs share is given once."""
    runs: dict[str, list[str]] = {}
    for failure in failures:
        label, _, reason = failure.partition(": ")
        runs.setdefault(reason, []).append(label)
    names = {reason: f"{first} and {len(more)} more" if more else first for reason, (first, *more) in runs.items()}
    return "; ".join(f"{name}: {reason}" for reason, name in names.items())


@final
@dataclass(frozen=True, kw_only=True)
class Methods:
    """List the training methods, or show the options of one.

    $ partialsgd methods
    $ partialsgd methods sam
    """

    all_positional: ClassVar[bool] = True

    name: str | None = None
    """The method to show."""

    def __call__(self) -> None:
        from partialsgd.lab.training.method_text import describe_method

        if self.name is not None:
            print(describe_method(self.name, shutil.get_terminal_size().columns))
        else:
            print(f"{in_columns(methods.SUMMARIES)}\n\nThe options of a method: partialsgd methods NAME")


WITH_SETTINGS: dict[str, type[Any]] = {"train": Train, "compare": Compare}
"""Commands that also take a recipe and its settings."""

COMMANDS: dict[str, type[Any]] = {
    "resume": Resume,
    "evaluate": Evaluate,
    **recipes.commands(),
    "profile": Profile,
    "export": Export,
    "report": Report,
    "reproduce": Reproduce,
    "methods": Methods,
}
"""Commands that have only their own options."""
