"""Table 3, a residual network and its half width, and Figures 2 and 3, the criteria with and without dropout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from partialsgd.lab.recipes.images.settings import PRESETS, Images
from partialsgd.lab.reproduce import Request, paper
from partialsgd.lab.reproduce.experiment import Cell, Comparison, Experiment, Figure, Grid, Line, Row, always
from partialsgd.lab.reproduce.paper import TABLE_3
from partialsgd.lab.reproduce.run_folder import RunFolder, equal_flops, equal_flops_name

_RATIO = "1/2"
_DROPOUT = "dropout(keep=0.8, unit='neurons')"

_TABLE_CHOICES = (
    "The first channels of each layer form the core.",
    "Each network has BatchNorm layers of its own: weights, biases and running statistics.",
    "In a step of slimmable both networks see the batch and the sum of their losses is descended, as its authors do; "
    "in an epoch each makes as many updates as there are batches, under alternating half as many.",
    "The paper counts FLOPs of an epoch as 2 × multiply-adds of a forward pass, with BatchNorm, of 45,000 images; "
    "torch counts forward and backward of convolutions and products. Both are shown.",
    "A part of the training images is held out, a tenth of CIFAR-10's; the best checkpoint by the mean accuracy of "
    "both networks on them is scored.",
)
_FIGURE_CHOICES = (
    "Rate and place of dropout are not in the paper: a fifth of the units of every hidden layer is dropped, one mask a "
    "batch, nothing is rescaled.",
    "BatchNorm is off in both figures; the paper says so of Figure 2. Without it weights are drawn as He et al. do, "
    "and the second convolution of a block is divided by the root of the number of blocks.",
    "Both gradients are of the step's own batch: they share its noise, which makes them look more alike than the "
    "gradients of f are.",
    f"{paper.SMOOTHING}.",
)
_SEEDS = (
    "Deviations are over seeds, which change weights, batches, crops, masks, and which images are used and held out."
)


def experiment(name: str, request: Request) -> Experiment:
    request.refuse(name, "source", "target", "start", "layers", *(() if name == "table3" else ("epochs",)))
    return _table(name, request) if name == "table3" else _figure(name, request)


def _describe_network(base: Images, rate: str) -> str:
    mirrored = " and mirror images" if base.flip else ""
    return (
        f"Learning rate, schedule, length, batch and augmentation are not in the paper: {rate}, half a cosine down to "
        f"0 over {paper.describe_length(base)}, {base.batch} images a batch, random crops{mirrored}. "
        f"Network {base.network}, {base.width} channels in the first stage."
    )


def _table(name: str, request: Request) -> Experiment:
    base = _base(request)
    grid = _grid(request, base)
    rate = f"{base.lr:g}" if len(grid.cells) == 1 else "a rate out of the grid"
    untuned = "Learning rate and warm-up are the usual ones of this network, for every row."
    tuning = paper.describe_tuning(grid, base, untuned)
    alone = {"core": "core", "full": "full"}
    return Experiment(
        name=name,
        title="Table 3: a residual network and its half width, alternating and slimmable",
        score="accuracy",
        factor=100.0,
        criterion="accuracy",
        grid=grid,
        rows=lambda folder: list(_rows(base, request.seeds, folder)),
        lines=lambda folder: list(_lines(folder)),
        comparisons=lambda folder: [Comparison(row, row, alone) for row in TABLE_3 if folder.scored(row)],
        choices=lambda _: (_describe_network(base, rate), *_TABLE_CHOICES, tuning, *paper.ALTERNATION, _SEEDS),
    )


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
    name = equal_flops_name("slimmable", "slimmable", folder)
    yield equal_flops("alternating", "slimmable", name, seeds, base.data)
    core = replace(base, alone="core", method="plain")
    yield Row("core", always(core), seeds, tuned_as="core", optional=True)
    full = replace(base, nest="none", method="plain")
    yield Row("full", always(full), seeds, tuned_as="full", optional=True)


def _lines(folder: RunFolder) -> Iterator[Line]:
    equal = {"alternating": "alternating", "slimmable": equal_flops_name("slimmable", "slimmable", folder)}
    for method, printed in TABLE_3.items():
        for level, number in (("core", printed.core), ("full", printed.full)):
            yield Line(_RATIO, level, method, method, level, number, equal[method], printed.epoch_flops)
    for level in ("core", "full"):
        yield Line(_RATIO, level, "alone", level, "full")


def _figure(name: str, request: Request) -> Experiment:
    base = _figure_base(request)
    rows = {"dropout": replace(base, method=_DROPOUT)}
    figure = Figure(2, {"with dropout": "dropout"})
    title = "Figure 2: similarity and alignment of a residual network trained with dropout"
    if name == "figure3":
        rows["without"] = replace(base, method="plain", probe=_DROPOUT)
        figure = Figure(3, {"with dropout": "dropout", "without dropout": "without"})
        title = "Figure 3: alignment with the masks of dropout, trained with and without it"
    return Experiment(
        name=name,
        title=title,
        score="accuracy",
        factor=100.0,
        rows=lambda _: [Row(row, always(rows[row]), request.seeds, None, block=name) for row in rows],
        lines=lambda _: [Line("", "full", row, row, "full") for row in rows],
        choices=lambda _: (_describe_network(base, f"{base.lr:g}"), *_FIGURE_CHOICES, _SEEDS),
        figure=figure,
    )


def _figure_base(request: Request) -> Images:
    shared: dict[str, Any] = {"data": request.data, "nest": "none", "norms": "none", "lr": 0.02}
    if request.scale == "paper":
        return replace(PRESETS["cifar10"], **shared, measure_every=500)
    small: dict[str, Any] = {"network": "tiny", "width": 16, "batch": 64, "keep": 1, "threads": 1, **shared}
    if request.scale == "smoke":
        return replace(PRESETS["digits"], **{**small, "width": 4}, limit=100, max_steps=8, epochs=8, measure_every=2)
    base, epochs = (PRESETS["narrow"], 60) if request.data else (PRESETS["digits"], 72)  # enough for so many steps
    return replace(base, **small, epochs=epochs, max_steps=1200, evaluate_every=6, measure_every=20)
