"""The parts of an experiment: the grid it is tuned on, the rows that are trained, the lines of its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from partialsgd.lab.reproduce.paper import Printed
from partialsgd.lab.training.settings import Settings

if TYPE_CHECKING:
    from partialsgd.lab.reproduce.run_folder import RunFolder


@final
@dataclass(frozen=True)
class Cell:
    """A learning rate and a warm-up."""

    lr: float
    warm_up: int

    @property
    def name(self) -> str:
        return f"lr{self.lr:g}-warm{self.warm_up}"

    @classmethod
    def from_name(cls, name: str) -> Cell | None:
        """The cell of that name; None if no cell has it."""
        lr, _, warm_up = name.removeprefix("lr").partition("-warm")
        try:
            cell = cls(float(lr), int(warm_up))
        except ValueError:
            return None
        return cell if cell.name == name else None

    def apply(self, settings: Settings) -> Settings:
        values: Any = vars(self)
        return replace(settings, **values)


@final
@dataclass(frozen=True)
class Grid:
    """The cells that every row is tuned on."""

    cells: tuple[Cell, ...]
    search: Mapping[str, Any] = field(default_factory=dict)
    """Settings that make the runs of the search shorter."""


MakeSettings: TypeAlias = "Callable[[RunFolder, int], Settings | None]"
"""The settings of a row for a seed, given the finished runs; None while a run that it depends on is missing."""


def always(settings: Settings) -> MakeSettings:
    """Settings that depend on no other run."""
    return lambda folder, seed: settings


@final
@dataclass(frozen=True)
class Row:
    """One way of training, with several seeds."""

    name: str
    make: MakeSettings
    seeds: int
    tuned_as: str | None
    """The row whose grid chooses the cell, mostly this one; None if `make` sets learning rate and warm-up."""
    waits_for: str = ""
    """The runs that `make` needs, in words."""
    optional: bool = False
    """An optional row is trained only if `--rows` names it."""
    block: str = ""
    """Consecutive rows of one block are trained seed by seed, so that a whole table is there early."""
    keywords: tuple[str, ...] = ()
    """Words that select it in `--rows`, beside the parts of its name."""


@final
@dataclass(frozen=True)
class Line:
    """A line of the table: one network of one row, beside the paper's number."""

    group: str
    """The ratio, within which lines are compared."""
    network: str
    trained: str
    row: str
    level: str
    printed: Printed | None = None
    equal_flops: str | None = None
    """The row that trains the same network with the FLOPs of the joint run."""
    printed_flops: float | None = None
    """FLOPs of an epoch in the paper."""


@final
@dataclass(frozen=True)
class Comparison:
    """A joint row, and for each level the row that trains the same network alone."""

    label: str
    joint: str
    alone: Mapping[str, str]


@final
@dataclass(frozen=True)
class Figure:
    """The curves of one of the paper's figures."""

    number: Literal[2, 3, 4]
    curves: Mapping[str, str]
    """The row of each label."""
    group: str | None = None
    """A group of layers to draw as well."""


@final
@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or a figure of the paper. Its rows depend on the runs that are finished."""

    name: str
    title: str
    score: str
    factor: float = 1.0
    """The factor from a run's score to the paper's, which prints accuracies in percent."""
    criterion: str = "loss"
    """The validation number that chooses cells and starts; a loss is minimised."""
    grid: Grid = Grid(())
    rows: Callable[[RunFolder], Sequence[Row]]
    """The rows in order of value."""
    lines: Callable[[RunFolder], Sequence[Line]]
    comparisons: Callable[[RunFolder], Sequence[Comparison]] = lambda folder: ()
    choices: Callable[[RunFolder], Sequence[str]]
    """Sentences on what the paper leaves open and what is done here."""
    starts: Mapping[str, Comparison] = field(default_factory=dict)
    """The rows that compare the starts of low-rank layers, by start."""
    figure: Figure | None = None
