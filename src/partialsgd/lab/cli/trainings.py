"""Commands that train: their options, and what each of them calls."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings


@final
@dataclass(frozen=True, kw_only=True)
class Train:
    """Train every size of a network at once, and see how good each is.

    $ partialsgd train                            # made phrases, a small network
    $ partialsgd train --data FOLDER --source de --target en
    $ partialsgd train --preset iwslt14 --data FOLDER --show-settings
    $ partialsgd train --nest width --ratio 1/4 1/2   # and full: three levels
    $ partialsgd train --config run.toml --epochs 5
    $ partialsgd train images                     # scikit-learn's digits
    $ partialsgd train images --method "sam(rho=0.1)" --nest none
    $ partialsgd train images --preset narrow --data cifar-10-batches-bin
    $ partialsgd train tabular                    # scikit-learn's breast cancer
    $ partialsgd train tabular --data adult
    """

    config: Path | None = None
    """A TOML file with settings by these names, or the config.json of a run; options given here count more."""
    show_settings: bool = False
    """Print the settings as such a file, for translation with the paper's Table 4 below them, and stop."""

    def __call__(self, settings: Settings) -> None:
        if self.show_settings:
            from partialsgd.lab.training.settings_files import as_toml, beside_the_paper

            print(as_toml(settings) + beside_the_paper(settings), end="")
            return
        from partialsgd.lab.training.loop import train

        train(settings)


@final
@dataclass(frozen=True, kw_only=True)
class Compare:
    """Train all levels at once and each level alone, and set them side by side.

    $ partialsgd compare images --seeds 3 --out runs/comparison
    $ partialsgd compare --budget flops --max-steps 2000
    $ partialsgd compare tabular --seeds 5

    Every training is a run in the directory of --out, with a table in compare.md and compare.json. The same call again
    keeps the runs that are finished and goes on with the one that is not.
    """

    config: Path | None = None
    """A TOML file with settings by these names, or the config.json of a run; options given here count more."""
    budget: Literal["epochs", "updates", "flops"] = "epochs"
    """What a level alone gets: as many epochs as the joint training, as the paper does; as many updates as that level
    got in it; or the training FLOPs of all of it."""
    seeds: int = 1
    """Trainings of each kind: with the seed, the seed + 1, and so on."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise WrongCall(f"--seeds must be a whole number, at least 1; got {self.seeds}")

    def __call__(self, settings: Settings) -> None:
        from partialsgd.lab.reproduce.compare import compare

        compare(settings, budget=self.budget, seeds=self.seeds)


@final
@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a training that was stopped or killed.

    $ partialsgd resume runs/translation-20250102-030405

    What comes out is bit for bit what the training would have given without the stop, on the same machine.
    """

    run: Path
    """The run directory."""

    def __call__(self) -> None:
        from partialsgd.lab.runs.run import Run
        from partialsgd.lab.training.loop import resume

        resume(Run.open(self.run))
