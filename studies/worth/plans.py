"""The experiments of the study: rows of networks alone, and joint rows that have the FLOPs of these together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, final

from partialsgd.lab.recipes.images.settings import PRESETS
from partialsgd.lab.reproduce.experiment import Cell, Comparison, Experiment, Grid, Row, always
from partialsgd.lab.reproduce.run_folder import RunFolder, total_flops
from partialsgd.lab.reproduce.translation import LAPTOP
from partialsgd.lab.training.settings import Settings
from studies.worth import other_cells
from studies.worth.other_cells import PLAIN
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
    whole: float = 0.0
    """The first share of the FLOPs, in which the whole network is trained in a run of its own, to be nested then."""


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
    "states": Scheme("optimizer state for each level", _alternating, _EVEN, {"state": "per_level"}),
    "nested": Scheme("the whole network first, nested after 40 %", _alternating, _EVEN, {"init": "svd"}, whole=0.4),
    "late": Scheme("7 to 3 in the last 40 %", _late, {"core": _LATE_CORE, "full": 1 - _LATE_CORE}),
    "slimmable": Scheme("slimmable", lambda steps: "slimmable", {"core": 1.0, "full": 1.0}),
}

_BEST = ("skewed", "parted")
"""The two schemes that came nearest to plain alternation where all were tried with one seed."""


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
    """Other learning rates and warm-ups, at which the networks alone and plain alternation are also trained to their
    end: with the first seed, and with all seeds if validation data choose that cell."""
    rivals: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Ordinary networks that are trained alone with as many epochs: the settings of each that are not the plan's."""
    factor: float = 1.0
    criterion: str = "BLEU"
    """The validation number that chooses rates and warm-ups."""
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
        """By ratio, seed by seed; then the rivals, and the other cells."""
        for ratio in self.ratios:
            yield from self._rows_of(ratio)
        for name, changes in self.rivals.items():
            settings: Any = {"nest": "none", "method": "plain", **changes}
            yield Row(name, always(replace(self.base, **settings)), self.seeds, None)
        yield from self._rows_at_other_cells(folder)

    def _rows_at_other_cells(self, folder: RunFolder) -> Iterator[Row]:
        """Each row once, with the most seeds: the full network alone is the same for every ratio."""
        rows: dict[str, Row] = {}
        for ratio in self.ratios if self.cells else ():
            chosen = other_cells.chosen(self, folder, ratio)
            tuned = [row for row in self._rows_of(ratio) if row.name in self.tuned_rows(ratio)]
            for cell, row in product(self.cells, tuned):
                made = other_cells.at(cell, row, self.seeds if chosen.get(row.name) == cell else 1)
                if made.name not in rows or rows[made.name].seeds < made.seeds:
                    rows[made.name] = made
        yield from rows.values()

    def tuned_rows(self, ratio: str) -> tuple[str, ...]:
        """The rows that are also trained at the other cells: the networks alone, and last plain alternation."""
        return (_name("core", ratio), "full", _name(PLAIN, ratio))

    def own_cell(self) -> Cell:
        """The learning rate and the warm-up of the plan's settings."""
        settings: Any = self.base
        return Cell(settings.lr, settings.warm_up)

    def _rows_of(self, ratio: str) -> list[Row]:
        core: Any = {"ratio": (ratio,), "alone": "core", "method": "plain"}
        full: Any = {"nest": "none", "method": "plain"}
        alone = {_name("core", ratio): replace(self.base, **core), "full": replace(self.base, **full)}
        whole = [Row(first_row(name, ratio), self._jointly(name, ratio, is_whole=True), self.seeds, None)
                 for name in self.schemes if SCHEMES[name].whole]  # fmt: skip
        joint = [Row(_name(name, ratio), self._jointly(name, ratio), self.seeds, None) for name in self.schemes]
        rows = [*(Row(name, always(settings), self.seeds, None) for name, settings in alone.items()), *whole, *joint]
        return [replace(row, block=ratio) for row in rows]

    def _jointly(self, name: str, ratio: str, *, is_whole: bool = False) -> Callable[[RunFolder, int], Settings | None]:
        """As many steps as the FLOPs of both networks alone, with that seed, pay for; None until they are there.

        With `is_whole` the run that trains the whole network first.
        """
        scheme = SCHEMES[name]

        def make(folder: RunFolder, seed: int) -> Settings | None:
            rows = self.comparison(name, ratio).alone
            runs = {level: folder.finished(folder.run(row, seed)) for level, row in rows.items()}
            known = {level: (run, run.summary) for level, run in runs.items() if run is not None and run.summary}
            if len(known) < len(rows):
                return None
            together = sum(total_flops(summary) for _, summary in known.values())
            costs = {level: total_flops(summary) / summary["steps"] for level, (_, summary) in known.items()}
            step_flops = sum(scheme.passes[level] * cost for level, cost in costs.items())
            share, step_flops = (scheme.whole, costs["full"]) if is_whole else (1 - scheme.whole, step_flops)
            steps = round(share * together / step_flops)
            full, summary = known["full"]
            epochs = math.ceil(round(steps / (summary["steps"] / full.epochs), 6))
            changes: Any = {"max_steps": steps, "epochs": epochs}
            if is_whole:
                changes |= {"nest": "none", "method": "plain"}
                return replace(self.base, **changes)
            changes |= {"ratio": (ratio,), "method": scheme.method(steps), **scheme.changes}
            if scheme.whole:
                first = folder.finished(folder.run(first_row(name, ratio), seed))
                if first is None:
                    return None
                changes["start"] = str(first.path)
            return replace(self.base, **changes)

        return make


def _name(kind: str, ratio: str) -> str:
    return f"{kind}-{ratio.replace('/', '_')}"


def first_row(scheme: str, ratio: str) -> str:
    """The row that trains the whole network before a scheme nests it."""
    return f"first-{_name(scheme, ratio)}"


def plans(data: str | None, images: str | None) -> dict[str, Plan | Regime]:
    """Every plan whose data are given."""
    made: list[Plan | Regime] = []
    if data is not None:
        common: dict[str, Any] = {"data": data, "source": "de", "target": "en", "lr": 6e-3, "warm_up": 240, "epochs": 4}
        line = replace(LAPTOP, **common, schedule="linear", nest="low-rank", init="zero")
        looks = (Cell(3e-3, 240), Cell(1.2e-2, 240), Cell(6e-3, 480))
        schemes = ("joint", "taught", "parted", "both", "skewed", "late", "states")
        rank: Any = {"ratios": ("1/32", "1/8", "1/4"), "schemes": (*schemes, "nested"), "cells": looks}
        rank["rivals"] = {"d48": {"d_model": 48, "ffn": 192}}  # as many parameters as the core of r = 1/32
        width: Any = {"ratios": ("1/4",), "schemes": schemes, "cells": looks}
        longer = replace(line, epochs=8)
        regime = replace(line, schedule="inverse-sqrt", dropout=0.3)
        made += [
            Plan("multi30k-rank", "Multi30k by rank", line, "BLEU", **rank),
            Plan("multi30k-width", "Multi30k by width", replace(line, nest="width"), "BLEU", **width),
            Plan("multi30k-longer", "Multi30k by rank, eight epochs alone", longer, "BLEU", ("1/32", "1/8")),
            Regime("multi30k-regime", "Multi30k by rank, dropout 0.3, equal epochs", regime, "1/32"),
        ]
    if images is not None:
        narrow = replace(PRESETS["narrow"], data=images, epochs=6, keep=1, threads=1)
        options: Any = {
            "cells": (Cell(0.05, 0), Cell(0.2, 0), Cell(0.1, 40), Cell(0.025, 0), Cell(0.0125, 0)),
            "factor": 100.0,
            "criterion": "accuracy",
            "schemes": ("joint", "slimmable", *_BEST),
        }
        made.append(Plan("cifar10-width", "CIFAR-10 by width", narrow, "accuracy", ("1/2",), **options))
    return {plan.name: plan for plan in made}


@final
@dataclass(frozen=True)
class Wanted:
    """Some rows of a plan, with the first seeds only; without names all rows."""

    plan: str
    rows: tuple[str, ...] = ()
    seeds: int = SEEDS


def _at_ratio(ratio: str, *schemes: str) -> tuple[str, ...]:
    return (_name("core", ratio), "full", *(_name(scheme, ratio) for scheme in schemes))


def _at_other_cells(seeds: int) -> Iterator[Wanted]:
    """The rows at other learning rates and warm-ups: with the first seed they are looked at, with all if chosen."""
    for ratio, plan in {"1/2": "cifar10-width", "1/8": "multi30k-rank", "1/4": "multi30k-width"}.items():
        yield Wanted(plan, tuple(f"{row}?lr*" for row in _at_ratio(ratio, PLAIN)), seeds)
    for ratio in ("1/4", "1/32"):
        yield Wanted("multi30k-rank", tuple(f"{row}?lr*" for row in _at_ratio(ratio, PLAIN)), seeds)


_OTHERS = ("late", "states", "taught", "first-nested", "nested")

QUEUE: tuple[Wanted, ...] = (
    Wanted("multi30k-rank", _at_ratio("1/32", "joint")),
    Wanted("multi30k-width", _at_ratio("1/4", "joint")),
    Wanted("cifar10-width", _at_ratio("1/2", "joint")),
    Wanted("multi30k-rank", _at_ratio("1/8", "joint")),
    Wanted("multi30k-rank", ("d48",)),
    Wanted("multi30k-rank", _at_ratio("1/4", "joint")),
    Wanted("multi30k-rank", _at_ratio("1/32", *_BEST, *_OTHERS, "both"), 1),
    Wanted("cifar10-width", _at_ratio("1/2", "slimmable")),
    Wanted("multi30k-rank", _at_ratio("1/32", *_BEST)),
    Wanted("multi30k-regime"),
    Wanted("multi30k-rank", _at_ratio("1/8", *_BEST)),
    Wanted("cifar10-width", _at_ratio("1/2", *_BEST)),
    Wanted("multi30k-longer", _at_ratio("1/32", PLAIN)),
    Wanted("multi30k-width", _at_ratio("1/4", *_BEST)),
    Wanted("multi30k-rank", _at_ratio("1/4", *_BEST)),
    Wanted("multi30k-rank", _at_ratio("1/8", *_OTHERS), 1),
    *_at_other_cells(seeds=1),
    *_at_other_cells(seeds=SEEDS),
    Wanted("multi30k-longer"),
    Wanted("cifar10-width"),
    Wanted("multi30k-width"),
    Wanted("multi30k-rank"),
)
"""What is trained, in order of value."""
