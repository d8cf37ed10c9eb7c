"""Table 3: a residual network and its half width, trained in turns (alternating) or both in each step (slimmable)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partialsgd.lab.recipes.images.settings import PRESETS, Images
from partialsgd.lab.reproduce import paper
from partialsgd.lab.reproduce.equal_flops import equal_flops, equal_flops_name
from partialsgd.lab.reproduce.experiment import Cell, Comparison, Experiment, Grid, Line, Request, Row, always
from partialsgd.lab.reproduce.paper import TABLE_3
from partialsgd.lab.reproduce.run_folder import RunFolder

_RATIO = "1/2"

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


def experiment(name: str, request: Request) -> Experiment:
    request.refuse(name, "source", "target", "start", "layers")
    base = _base(request)
    grid = _grid(request, base)
    return Experiment(
        name=name,
        title="Table 3: a residual network and its half width, alternating and slimmable",
        score="accuracy",
        factor=100.0,
        criterion="accuracy",
        grid=grid,
        rows=lambda folder: list(_rows(base, request.seeds, folder)),
        lines=lambda folder: list(_lines(folder)),
        comparisons=lambda folder: [
            Comparison(method, method, {"core": "core", "full": "full"}) for method in TABLE_3 if folder.scored(method)
        ],
        choices=lambda folder: _choices(base, grid),
    )


def _choices(base: Images, grid: Grid) -> list[str]:
    rate = f"{base.lr:g}" if len(grid.cells) == 1 else "a rate out of the grid"
    untuned = "Learning rate and warm-up are the usual ones of this network, for every row."
    return [
        paper.describe_residual_network(base, rate),
        *_CHOICES,
        paper.describe_tuning(grid, base, untuned),
        *paper.ALTERNATION,
        paper.SEEDS_OF_IMAGES,
    ]


def _base(request: Request) -> Images:
    """CIFAR-10 if the data are given, and else scikit-learn's digits, which need no file."""
    if request.scale == "paper":
        base = PRESETS["cifar10"]
    else:
        small = replace(PRESETS["narrow"], epochs=12) if request.data else PRESETS["digits"]
        base = replace(small, keep=1, threads=1)
        if request.scale == "smoke":
            base = replace(base, epochs=2, limit=120, width=4, batch=32)
    return replace(base, data=request.data, epochs=request.epochs or base.epochs)


def _grid(request: Request, base: Images) -> Grid:
    if request.scale == "paper":
        return Grid((Cell(base.lr, base.warm_up),))
    cells = tuple(Cell(base.lr * factor, warm_up) for factor in (0.5, 1.0, 2.0) for warm_up in (0, 100))
    return Grid(cells, {"epochs": 1 if request.scale == "smoke" else 2})


def _rows(base: Images, seeds: int, folder: RunFolder) -> Iterator[Row]:
    for method in TABLE_3:
        yield Row(method, always(replace(base, method=method)), seeds, tuned_as=method, block="methods")
    yield equal_flops("alternating", "slimmable", _slimmable_at_equal_flops(folder), seeds, base.data)
    core = replace(base, alone="core", method="plain")
    yield Row("core", always(core), seeds, tuned_as="core", optional=True)
    full = replace(base, nest="none", method="plain")
    yield Row("full", always(full), seeds, tuned_as="full", optional=True)


def _slimmable_at_equal_flops(folder: RunFolder) -> str:
    return equal_flops_name("slimmable", "slimmable", folder)


def _lines(folder: RunFolder) -> Iterator[Line]:
    equal = {"alternating": "alternating", "slimmable": _slimmable_at_equal_flops(folder)}
    for method, printed in TABLE_3.items():
        flops = printed.epoch_flops
        yield Line(_RATIO, "core", method, method, "core", printed.core, equal[method], flops)
        yield Line(_RATIO, "full", method, method, "full", printed.full, equal[method], flops)
    yield Line(_RATIO, "core", "alone", "core", "full")
    yield Line(_RATIO, "full", "alone", "full", "full")
