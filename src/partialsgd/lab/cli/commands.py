"""The commands, each a dataclass: its fields are the options, and calling it runs the command. No torch at import."""

from __future__ import annotations

import shutil
import webbrowser
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, final

from partialsgd.lab import recipes
from partialsgd.lab.cli.reproduce import Reproduce
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings

Checkpoint: TypeAlias = Literal["best", "last"]


@final
@dataclass(frozen=True, kw_only=True)
class Train:
    """Train every size of a network at once, and score each of them.

    $ partialsgd train                            # generated phrases
    $ partialsgd train --data FOLDER --source de --target en
    $ partialsgd train --preset iwslt14 --data FOLDER --show-settings
    $ partialsgd train --nest width --ratio 1/4 1/2  # and full: three levels
    $ partialsgd train --config run.toml --epochs 5
    $ partialsgd train images                     # scikit-learn's digits
    $ partialsgd train images --method "sam(rho=0.1)" --nest none
    $ partialsgd train images --preset narrow --data cifar-10-batches-bin
    """

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
    $ partialsgd compare --budget flops --max-steps 2000

    Every training is a run in the directory of --out, with a table in compare.md and compare.json. The same call again
    keeps the finished runs and continues the others.
    """

    config: Path | None = None
    """A TOML file with settings, or the config.json of a run; options of the command line take precedence."""
    budget: Literal["epochs", "updates", "flops"] = "epochs"
    """The budget of a level alone: the epochs of the joint training (as in the paper), that level's updates in it,
    or the training FLOPs of all levels in it."""
    seeds: int = 1
    """Trainings of each kind, with the seeds --seed, --seed + 1, and so on."""
    jobs: int = 1
    """Trainings side by side, each in a process of its own."""

    def __post_init__(self) -> None:
        for option in ("seeds", "jobs"):
            if (number := getattr(self, option)) < 1:
                raise WrongCall(f"--{option} must be a whole number of at least 1, got {number}")

    def __call__(self, settings: Settings) -> None:
        from partialsgd.lab.reproduce.compare import compare

        compare(settings, budget=self.budget, seeds=self.seeds, jobs=self.jobs)


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
        from partialsgd.lab.runs.run import Run
        from partialsgd.lab.runs.use_run import export_level

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
            page = write_page(self.run, self.to or self.run[0] / "report.html", default_settings=preset_values)
        except (FileExistsError, FileNotFoundError, IsADirectoryError) as error:
            raise WrongCall(str(error)) from error
        print(page)
        if self.open and not webbrowser.open(page.resolve().as_uri()):
            print(f"no browser was found; open {page} in one")


def preset_values(recipe: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the preset that a run started from; empty for a recipe that does not exist."""
    if recipe not in recipes.RECIPES:
        return {}
    named = recipes.presets(recipe)
    return asdict(named.get(str(settings.get("preset")), next(iter(named.values()))))


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
        from partialsgd.lab.training.method_text import describe_method, list_methods

        width = shutil.get_terminal_size().columns
        print(describe_method(self.name, width) if self.name else list_methods(width))


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
