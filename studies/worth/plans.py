"""The experiments of the study: rows of networks alone, and joint rows that have the FLOPs of these together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from partialsgd.lab.recipes.images.settings import PRESETS
from partialsgd.lab.reproduce.experiment import Cell, Comparison, Experiment, Grid, Row, always
from partialsgd.lab.reproduce.run_folder import AT, RunFolder, total_flops
from partialsgd.lab.reproduce.translation import LAPTOP
from partialsgd.lab.training.settings import Settings
from studies.worth.regime import Regime

SEEDS = 3
_EARLY = 0.6
_LATE_CORE = _EARLY * 0.5 + (1 - _EARLY) * 0.3
"""The share of core steps if the full level gets more of them late."""


@final
@dataclass(frozen=True)
class Scheme:
    """A way to train both networks in one run."""

    says: str
    method: Callable[[int], str]
    """The method's text for a run of so many steps."""
    passes: Mapping[str, float]
    """How often a step trains each level, on average."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the joint run other than the plan's."""


def _late(steps: int) -> str:
    return f"alternating(weights={{0: {{'full': 1, 'core': 1}}, {round(_EARLY * steps)}: {{'full': 7, 'core': 3}}}})"


def _alternating(steps: int) -> str:
    return "alternating"


_EVEN = {"core": 0.5, "full": 0.5}
_TAUGHT = {"distill": "cached", "distill_weight": 0.5}
_PARTED = {"part_ways": 0.15}

SCHEMES: Mapping[str, Scheme] = {
    "joint": Scheme("alternating", _alternating, _EVEN),
    "taught": Scheme("the core learns from cached outputs", _alternating, _EVEN, _TAUGHT),
    "parted": Scheme("15 % of the FLOPs alone at the end", _alternating, _EVEN, _PARTED),
    "both": Scheme("cached outputs, and 15 % alone", _alternating, _EVEN, {**_TAUGHT, **_PARTED}),
    "skewed": Scheme(
        "3 full steps to 2 core steps",
        lambda steps: "alternating(order=['full', 'core', 'full', 'core', 'full'])",
        {"core": 0.4, "full": 0.6},
    ),
    "late": Scheme("7 to 3 in the last 40 %", _late, {"core": _LATE_CORE, "full": 1 - _LATE_CORE}),
    "slimmable": Scheme("slimmable", lambda steps: "slimmable", {"core": 1.0, "full": 1.0}),
}


@final
@dataclass(frozen=True)
class Plan:
    """One data set, axis and schedule, at one ratio or several."""

    name: str
    says: str
    base: Settings
    """The settings of the joint run, but for its length, its ratio and its method."""
    score: str
    ratios: Sequence[str]
    schemes: Sequence[str] = ("joint",)
    cells: Sequence[Cell] = ()
    """Other learning rates and warm-ups, at which every row is also trained to its end with the first seed."""
    factor: float = 1.0
    criterion: str = "loss"
    seeds: int = SEEDS

    def experiment(self) -> Experiment:
        return Experiment(
            name=self.name,
            title=self.says,
            score=self.score,
            factor=self.factor,
            criterion=self.criterion,
            grid=Grid(tuple(self.cells)),
            rows=lambda folder: list(self.rows(folder)),
            lines=lambda folder: [],
            comparisons=lambda folder: self.comparisons(),
            choices=lambda folder: (),
        )

    def comparisons(self) -> list[Comparison]:
        return [self.comparison(scheme, ratio) for ratio in self.ratios for scheme in self.schemes]

    def comparison(self, scheme: str, ratio: str) -> Comparison:
        return Comparison(f"r = {ratio}", _name(scheme, ratio), {"core": _name("core", ratio), "full": "full"})

    def rows(self, folder: RunFolder) -> Iterator[Row]:
        """By ratio, seed by seed; the other cells last, with all seeds where such a cell is the best by validation."""
        for ratio in self.ratios:
            yield from (replace(row, block=ratio) for row in self._rows_of(ratio))
        for cell in self.cells:
            for row in self._rows_of(self.ratios[0]):
                other = _at(cell, row)
                is_best = folder.shown_row(row.name) == other.name
                yield replace(other, seeds=self.seeds if is_best else 1)

    def _rows_of(self, ratio: str) -> list[Row]:
        core: Any = {"ratio": (ratio,), "alone": "core", "method": "plain"}
        full: Any = {"nest": "none", "method": "plain"}
        alone = {_name("core", ratio): replace(self.base, **core), "full": replace(self.base, **full)}
        joint = [Row(_name(name, ratio), self._jointly(name, ratio), self.seeds, None) for name in self.schemes]
        return [*(Row(name, always(settings), self.seeds, None) for name, settings in alone.items()), *joint]

    def _jointly(self, name: str, ratio: str) -> Callable[[RunFolder, int], Settings | None]:
        """As many steps as the FLOPs of both networks alone, with that seed, pay for; None until they are there."""
        scheme = SCHEMES[name]

        def make(folder: RunFolder, seed: int) -> Settings | None:
            rows = self.comparison(name, ratio).alone
            runs = {level: folder.finished(folder.run(row, seed)) for level, row in rows.items()}
            known = {level: (run, run.summary) for level, run in runs.items() if run is not None and run.summary}
            if len(known) < len(rows):
                return None
            together = sum(total_flops(summary) for _, summary in known.values())
            costs = {level: total_flops(summary) / summary["steps"] for level, (_, summary) in known.items()}
            steps = round(together / sum(scheme.passes[level] * cost for level, cost in costs.items()))
            full, summary = known["full"]
            epochs = math.ceil(round(steps / (summary["steps"] / full.epochs), 6))
            changes: Any = {"ratio": (ratio,), "method": scheme.method(steps), "max_steps": steps, "epochs": epochs}
            return replace(self.base, **changes, **scheme.changes)

        return make


def _name(kind: str, ratio: str) -> str:
    return f"{kind}-{ratio.replace('/', '_')}"


def _at(cell: Cell, row: Row) -> Row:
    def make(folder: RunFolder, seed: int) -> Settings | None:
        settings = row.make(folder, seed)
        return None if settings is None else cell.apply(settings)

    return replace(row, name=f"{row.name}{AT}{cell.name}", make=make, seeds=1, block=f"cells {cell.name}")


def plans(data: str | None, images: str | None) -> dict[str, Plan | Regime]:
    """Every plan whose data are given."""
    made: list[Plan | Regime] = []
    if data is not None:
        common: dict[str, Any] = {"data": data, "source": "de", "target": "en", "lr": 6e-3, "warm_up": 240}
        line = replace(LAPTOP, **common, schedule="linear", nest="low-rank", init="zero")
        cells = tuple(Cell(rate, 240) for rate in (3e-3, 1.2e-2))
        rank: Any = {"score": "BLEU", "schemes": ("joint", "skewed", "late")}
        screen: Any = {"score": "BLEU", "schemes": ("joint", "taught", "parted", "both"), "seeds": 1}
        short = replace(line, epochs=4)
        regime = replace(short, schedule="inverse-sqrt", dropout=0.3)
        made += [
            Plan("multi30k-rank", "Multi30k by rank", line, ratios=("1/32", "1/8", "1/4"), cells=cells, **rank),
            Plan("multi30k-width", "Multi30k by width", replace(line, nest="width"), "BLEU", ("1/4",)),
            Plan("multi30k-screen", "Multi30k by rank, half as long", short, ratios=("1/32", "1/8"), **screen),
            Regime("multi30k-regime", "Multi30k by rank, dropout 0.3, equal epochs", regime, "1/32"),
        ]
    if images is not None:
        narrow = replace(PRESETS["narrow"], data=images, epochs=12, keep=1, threads=1)
        options: Any = {"factor": 100.0, "criterion": "accuracy", "schemes": ("joint", "slimmable")}
        made.append(Plan("cifar10-width", "CIFAR-10 by width", narrow, "accuracy", ("1/2",), **options))
    return {plan.name: plan for plan in made}


QUEUE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("multi30k-rank", ("core-1_32", "full", "joint-1_32")),
    ("cifar10-width", ()),
    ("multi30k-screen", ()),
    ("multi30k-regime", ()),
    ("multi30k-rank", ("skewed-1_32", "late-1_32")),
    ("multi30k-rank", ("core-1_8", "joint-1_8", "core-1_4", "joint-1_4")),
    ("multi30k-width", ()),
    ("multi30k-rank", ()),
)
"""Plans and rows in order of value; without names, all rows that are left."""
