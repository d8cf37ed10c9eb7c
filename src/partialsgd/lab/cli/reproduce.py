"""The command `partialsgd reproduce`, which makes the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from partialsgd.lab.training.errors import WrongCall


@final
@dataclass(frozen=True, kw_only=True)
class Reproduce:
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
    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """The size of networks and data: minutes, to see that it works; hours on two CPU cores; or the paper's, which needs
    a GPU and its data."""
    data: str | None = None
    """The folder with the corpus or the images; by default what needs no file."""
    source: str | None = None
    """The language to translate from; by default the paper's."""
    target: str | None = None
    """The language to translate into; by default the paper's."""
    seeds: int = 3
    """Trainings of each row, with the seeds 0, 1, and so on."""
    start: Literal["zero", "svd", "matched"] | None = None
    """The start of Table 1's low-rank layers; by default all three are tried at r = 1/32, and the best is used."""
    epochs: int | None = None
    """Epochs of each row, instead of the scale's; runs with another number need another --out."""
    layers: int | None = None
    """Blocks of a Transformer's encoder and of its decoder, for instance the paper's six at laptop scale.
    The learning rates are lower for more blocks."""
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
        for option in ("seeds", "jobs", "epochs", "layers"):
            if (number := getattr(self, option)) is not None and number < 1:
                raise WrongCall(f"--{option} must be a whole number of at least 1, got {number}")

    def __call__(self) -> None:
        from rich.console import Console

        from partialsgd.lab.reproduce.experiment import Request
        from partialsgd.lab.reproduce.reproduce import reproduce, show

        options = (self.scale, self.data, self.source, self.target, self.seeds, self.start, self.epochs, self.layers)
        where: dict[str, Any] = {"rows": self.rows, "at_once": self.jobs, "out": self.out}
        numbers, failures = reproduce(self.name, Request(*options), **where, train=not self.show)
        show(numbers, Console())
        if failures:
            raise RuntimeError(_summarise(failures))


def _summarise(failures: Sequence[str]) -> str:
    """One line for all failures; a reason that several runs share is given once."""
    runs: dict[str, list[str]] = {}
    for failure in failures:
        label, _, reason = failure.partition(": ")
        runs.setdefault(reason, []).append(label)
    others = {reason: f" and {len(labels) - 1} more" if len(labels) > 1 else "" for reason, labels in runs.items()}
    return "; ".join(f"{labels[0]}{others[reason]}: {reason}" for reason, labels in runs.items())
