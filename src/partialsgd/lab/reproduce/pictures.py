"""Table 3: a residual network and its half width, trained in turns (alternating) or both in each step (slimmable)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from partialsgd.lab.recipes.images.settings import PRESETS, Images
from partialsgd.lab.reproduce import budgets, choices
from partialsgd.lab.reproduce.budgets import with_the_flops_of
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.plans import (
    Asked,
    Cell,
    Experiment,
    Grid,
    Line,
    Row,
    Together,
    always,
    refuse,
    refuse_depth,
)
from partialsgd.lab.reproduce.printed import TABLE_3

_RATIO = "1/2"
_JUDGE = "accuracy"

_CHOICES = (
    "The first channels of each layer form the core.",
    "Each network has BatchNorm layers of its own: weights, biases and running statistics.",
    "In a step of slimmable both networks see the batch and the sum of their losses is descended, as its authors do; "
    "in an epoch each makes as many updates as there are batches, under alternating half as many.",
    "The paper counts FLOPs of an epoch as 2 × multiply-adds of a forward pass, with BatchNorm, of 45,000 images; "
    "torch counts forward and backward of convolutions and products. Both are shown.",
    "A part of the training images is held out, a tenth of CIFAR-10's; the best checkpoint by the mean accuracy of "
    "both networks on them is scored.",
)


def experiment(name: str, asked: Asked) -> Experiment:
    refuse(name, asked, "source", "target", "start")
    refuse_depth(name, asked)
    base, seeds = _base_of(asked), asked.seeds
    grid = _grid(asked, base)
    return Experiment(
        name=name,
        title="Table 3: a residual network and its half width, alternating and slimmable",
        score="accuracy",
        factor=100.0,
        judge=_JUDGE,
        grid=grid,
        rows=lambda folder: list(_rows(base, seeds, folder, grid)),
        lines=lambda folder: list(_lines(_paid(folder, grid))),
        together=lambda folder: [
            Together(method, method, {"core": "core", "full": "full"}) for method in TABLE_3 if folder.scored(method)
        ],
        choices=lambda folder: _choices(base, grid),
    )


def _choices(base: Images, grid: Grid) -> list[str]:
    rate = f"{base.lr:g}" if len(grid.cells) == 1 else "a rate out of the grid"
    return [
        choices.of_residual_network(base, rate),
        *_CHOICES,
        choices.of_tuning(grid, base, "Learning rate and warm-up are the usual ones of this network, for every row."),
        *choices.OF_ALTERNATION,
        choices.OF_SEEDS_OF_IMAGES,
    ]


def _base_of(asked: Asked) -> Images:
    """CIFAR-10 where the data are given, and else scikit-learn's digits, which need no file."""
    chosen = _of_scale(asked)
    return replace(chosen, data=asked.data, epochs=asked.epochs or chosen.epochs)


def _of_scale(asked: Asked) -> Images:
    if asked.scale == "paper":
        return PRESETS["cifar10"]
    small = replace(PRESETS["narrow"], epochs=12) if asked.data else PRESETS["digits"]
    small = replace(small, keep=1, threads=1)
    return replace(small, epochs=2, limit=120, width=4, batch=32) if asked.scale == "smoke" else small


def _grid(asked: Asked, base: Images) -> Grid:
    if asked.scale == "paper":
        return Grid((Cell(base.lr, base.warm_up),))
    cells = tuple(Cell(base.lr * factor, warm_up) for factor in (0.5, 1.0, 2.0) for warm_up in (0, 100))
    return Grid(cells, {"epochs": 1 if asked.scale == "smoke" else 2})


def _rows(base: Images, seeds: int, folder: Folder, grid: Grid) -> Iterator[Row]:
    for method in TABLE_3:
        yield Row(method, always(replace(base, method=method)), seeds, tuned_as=method, block="methods")
    options: Any = {"data": base.data, "grid": grid, "judge": _JUDGE}
    yield with_the_flops_of("alternating", "slimmable", _paid(folder, grid), seeds, **options)
    core = replace(base, alone="core", method="plain")
    yield Row("core", always(core), seeds, tuned_as="core", optional=True)
    full = replace(base, nest="none", method="plain")
    yield Row("full", always(full), seeds, tuned_as="full", optional=True)


def _paid(folder: Folder, grid: Grid) -> str:
    """The row of slimmable training at equal FLOPs."""
    return budgets.named("slimmable", "slimmable", folder, grid, _JUDGE)


def _lines(paid: str) -> Iterator[Line]:
    equal = {"alternating": "alternating", "slimmable": paid}
    for method, printed in TABLE_3.items():
        flops = printed.epoch_flops
        yield Line(_RATIO, "core", method, method, "core", printed.core, equal[method], flops)
        yield Line(_RATIO, "full", method, method, "full", printed.full, equal[method], flops)
    yield Line(_RATIO, "core", "alone", "core", "full")
    yield Line(_RATIO, "full", "alone", "full", "full")
