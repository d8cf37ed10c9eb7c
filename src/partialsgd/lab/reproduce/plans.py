"""What an experiment is made of: cells of a grid, rows that are trained, lines of the table that is printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from partialsgd.lab.reproduce.printed import Printed
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings

if TYPE_CHECKING:
    from partialsgd.lab.reproduce.folder import Folder

Scale: TypeAlias = Literal["smoke", "laptop", "deep", "paper"]


@final
@dataclass(frozen=True)
class Asked:
    """What a reproduction is told."""

    scale: Scale = "laptop"
    data: str | None = None
    source: str | None = None
    target: str | None = None
    seeds: int = 3
    start: str | None = None
    """Of the low-rank layers; None to try all and take the best."""
    epochs: int | None = None
    """Of the rows that are shown; None for as many as the scale has."""


@final
@dataclass(frozen=True)
class Cell:
    """A place in the grid that every row is tuned on."""

    lr: float
    warm_up: int

    @property
    def name(self) -> str:
        return f"lr{self.lr:g}-warm{self.warm_up}"

    @classmethod
    def named(cls, name: str) -> Cell | None:
        """The cell of that name; None if it is the name of none."""
        lr, _, warm_up = name.removeprefix("lr").partition("-warm")
        try:
            cell = cls(float(lr), int(warm_up))
        except ValueError:
            return None
        return cell if cell.name == name else None

    def of(self, settings: Settings) -> Settings:
        changes: Any = {"lr": self.lr, "warm_up": self.warm_up}
        return replace(settings, **changes)


@final
@dataclass(frozen=True)
class Grid:
    """Learning rates and warm-ups, and what is shorter while they are searched."""

    cells: tuple[Cell, ...]
    shorter: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a run that only helps to choose."""


Make: TypeAlias = "Callable[[Folder, int], Settings | None]"
"""The settings of a row for a seed, from what is finished already; None while something that it needs is not."""


def always(settings: Settings) -> Make:
    """Settings that depend on no other run."""
    return lambda folder, seed: settings


@final
@dataclass(frozen=True)
class Row:
    """One way of training, for some seeds."""

    name: str
    make: Make
    seeds: int
    tuned_as: str | None
    """The row whose grid chooses its learning rate and warm-up: mostly its own. None: its settings say them."""
    waits_for: str = ""
    """The runs that it is made from, in words, for when they are not there."""
    optional: bool = False
    """Trained only if it is asked for by name."""
    block: str = ""
    """Rows of one block that follow each other are trained seed by seed, so that a whole table is there early."""
    meant_by: tuple[str, ...] = ()
    """Words beside the parts of its name: the ratios that it belongs to, and how it starts."""


@final
@dataclass(frozen=True)
class Line:
    """A line of the table: one network of one row, beside what the paper prints for it."""

    group: str
    """What it is compared within: the ratio."""
    network: str
    trained: str
    row: str
    level: str
    printed: Printed | None = None
    equal_flops: str | None = None
    """The row in which the same network has the training FLOPs of the joint run."""
    printed_flops: float | None = None
    """FLOPs of an epoch in the paper."""


@final
@dataclass(frozen=True)
class Together:
    """A joint row, and by level the rows that train the same networks alone."""

    label: str
    joint: str
    alone: Mapping[str, str]


@final
@dataclass(frozen=True)
class Figure:
    """Curves of the paper: rows by label, and which of its figures they make."""

    number: Literal[2, 3, 4]
    curves: Mapping[str, str]
    """The row of each label."""
    smooth: int = 1
    """Measurements in the running median that is drawn."""
    group: str | None = None
    """A group of layers to draw beside the whole network."""


@final
@dataclass(frozen=True)
class Experiment:
    """A table or a figure of the paper."""

    name: str
    title: str
    score: str
    factor: float
    """From a run's score to the paper's: accuracies are printed in percent."""
    judge: str
    """The validation number that chooses cells and starts; of a loss the smallest."""
    grid: Grid
    rows: Callable[[Folder], Sequence[Row]]
    """In order of value. What is finished decides on the later ones."""
    lines: Callable[[Folder], Sequence[Line]]
    together: Callable[[Folder], Sequence[Together]]
    choices: Callable[[Folder], Sequence[str]]
    """What the paper leaves open, and what is done here."""
    starts: Mapping[str, Together] = field(default_factory=dict)
    """By start of the low-rank layers, the rows that were compared for it."""
    figure: Figure | None = None


def refuse(name: str, asked: Asked, *options: str) -> None:
    """Options that mean nothing for an experiment are not passed over in silence."""
    for option in options:
        if getattr(asked, option) is not None:
            raise WrongCall(f"--{option} {getattr(asked, option)}: {name} has no use for it; leave it out")


def refuse_depth(name: str, asked: Asked) -> None:
    if asked.scale == "deep":
        raise WrongCall(f"--scale deep is for Transformers; {name} has none: laptop, smoke or paper")


def default_out(name: str, asked: Asked) -> Path:
    """A place for each experiment, scale and corpus."""
    data = f"-{os.path.basename(os.path.abspath(asked.data))}" if asked.data else ""
    return Path("runs") / "reproduce" / f"{name}-{asked.scale}{data}"
