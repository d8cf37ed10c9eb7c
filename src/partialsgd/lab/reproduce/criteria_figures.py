"""Figures 2, 3 and 4: the criteria along trainings, with and without dropout, standard and alternating."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from partialsgd.lab.recipes.images.settings import PRESETS as IMAGES
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import PRESETS as TRANSLATION
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import paper
from partialsgd.lab.reproduce.experiment import Experiment, Figure, Grid, Line, Request, Row, always
from partialsgd.lab.training.settings import Settings

_DROPOUT = "dropout(keep=0.8, unit='neurons')"
_NARROWED = ("*.fc1", "*.fc2", "*.q_proj", "*.k_proj")

_DROPOUT_CHOICES = (
    "Rate and place of dropout are not in the paper: a fifth of the units of every hidden layer is dropped, one mask a "
    "batch, nothing is rescaled.",
    "BatchNorm is off in both figures; the paper says so of Figure 2. Without it weights are drawn as He et al. do, "
    "and the second convolution of a block is divided by the root of the number of blocks.",
    "Both gradients are of the step's own batch: they share its noise, which makes them look more alike than the "
    "gradients of f are.",
    f"{paper.SMOOTHING}.",
)
_WIDTH_CHOICES = (
    "The core is measured at full steps and at core steps alike, from the step's own batch, with the same dropout in "
    "both gradients.",
    "The first units of each layer and head form the core.",
    f"{paper.SMOOTHING}; under alternation they come in turns from before full and before core steps.",
)


def experiment(name: str, request: Request) -> Experiment:
    is_images = name != "figure4"
    request.refuse(name, "start", "epochs", *(("source", "target", "layers") if is_images else ()))
    base: Settings
    if is_images:
        images = _images(request)
        base, choices = images, _dropout_choices(images)
    else:
        sentences = _translation(request)
        base, choices = sentences, _width_choices(sentences, request)
    title, figure, changes = _FIGURES[name]
    rows = [Row(row, always(replace(base, **changes[row])), request.seeds, None, block=name) for row in changes]
    return Experiment(
        name=name,
        title=title,
        score="accuracy" if is_images else "BLEU",
        factor=100.0 if is_images else 1.0,
        criterion="loss",
        grid=Grid(()),
        rows=lambda folder: rows,
        lines=lambda folder: [Line("" if is_images else "1/2", "full", row, row, "full") for row in changes],
        comparisons=lambda folder: [],
        choices=lambda folder: choices,
        figure=figure,
    )


_FIGURES: dict[str, tuple[str, Figure, dict[str, dict[str, Any]]]] = {
    "figure2": (
        "Figure 2: similarity and alignment of a residual network trained with dropout",
        Figure(2, {"with dropout": "dropout"}, smooth=5),
        {"dropout": {"method": _DROPOUT}},
    ),
    "figure3": (
        "Figure 3: alignment with the masks of dropout, trained with and without it",
        Figure(3, {"with dropout": "dropout", "without dropout": "without"}, smooth=5),
        {"dropout": {"method": _DROPOUT}, "without": {"method": "plain", "probe": _DROPOUT}},
    ),
    "figure4": (
        "Figure 4: overlap, similarity and alignment of a Transformer's half width",
        Figure(4, {"standard": "standard", "alternating": "alternating"}, smooth=5, group="layers"),
        {"alternating": {"method": "alternating"}, "standard": {"method": "plain"}},
    ),
}
"""Title, curves, and the settings of each row, by name."""


def _dropout_choices(base: Images) -> tuple[str, ...]:
    return (paper.describe_residual_network(base, f"{base.lr:g}"), *_DROPOUT_CHOICES, paper.SEEDS_OF_IMAGES)


def _width_choices(base: Translation, request: Request) -> tuple[str, ...]:
    small = f"a smaller network, and {'the corpus that was given' if request.data else 'the embedded corpus'}."
    corpus = "Which of its two corpora Figure 4 is of is not in the paper; here it is "
    corpus += "IWSLT14's setting." if request.scale == "paper" else small
    rate = f"The learning rate is {base.lr:g} after a warm-up of {base.warm_up} steps, for both trainings."
    sentences = (corpus, paper.describe_transformer(base), rate, paper.describe_search(base))
    return (*sentences, *_WIDTH_CHOICES, *paper.ALTERNATION, paper.SEEDS)


def _images(request: Request) -> Images:
    shared: dict[str, Any] = {"data": request.data, "nest": "none", "norms": "none", "lr": 0.02}
    if request.scale == "paper":
        return replace(IMAGES["cifar10"], **shared, measure_every=500)
    small: dict[str, Any] = {"network": "tiny", "width": 16, "batch": 64, "keep": 1, "threads": 1, **shared}
    if request.scale == "smoke":
        return replace(IMAGES["digits"], **{**small, "width": 4}, limit=100, max_steps=8, epochs=8, measure_every=2)
    base, epochs = (IMAGES["narrow"], 60) if request.data else (IMAGES["digits"], 72)  # enough for so many steps
    return replace(base, **small, epochs=epochs, max_steps=1200, evaluate_every=6, measure_every=20)


def _translation(request: Request) -> Translation:
    base = _of_scale(request)
    return replace(base, layers=request.layers or base.layers)


def _of_scale(request: Request) -> Translation:
    paper = TRANSLATION["iwslt14"]
    shared: dict[str, Any] = {
        "data": request.data,
        "source": request.source or paper.source,
        "target": request.target or paper.target,
        "nest": "width",
        "ratio": ("1/2",),
        "probe": "only('core')",
        "measure_layers": _NARROWED,
    }
    if request.scale == "paper":
        return replace(paper, **shared, measure_every=500)
    shared |= {"measure_every": 20, "lr": 1e-3, "warm_up": 100, "beam": 1, "keep": 1, "threads": 1}
    small = replace(TRANSLATION["laptop"], **shared)
    if request.scale == "smoke":
        sizes: dict[str, Any] = {"size": 120, "valid_size": 20, "test_size": 8, "d_model": 32, "ffn": 32, "layers": 1}
        return replace(small, **sizes, vocabulary=400, max_steps=8, epochs=8, measure_every=2)
    return replace(small, max_steps=1200, epochs=8, evaluate_every=4)
