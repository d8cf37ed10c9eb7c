"""What the paper leaves open, and what is done here: the sentences that several experiments share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from partialsgd.lab.page.formatting import plural
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce.plans import Grid
from partialsgd.lab.training.settings import Settings

OF_ALTERNATION = (
    "The whole network has the first step, the core the second, and so on in turns, also where a run was stopped and "
    "goes on. Each step draws its own noise.",
    "Optimizer state outside the trained network holds still: moments, step counts and weight decay. The gradient is "
    "not clipped.",
)
OF_SEEDS = "Deviations are over seeds, which change weights, order of batches and dropout together."
OF_SEEDS_OF_IMAGES = (
    "Deviations are over seeds, which change weights, batches, crops, masks, and which images are used and held out."
)
SMOOTH = "The lines are running medians of five measurements"

_FALLS = {"linear": "along a line to 0", "inverse-sqrt": "with the root of the steps"}


def of_transformer(base: Translation) -> str:
    """The sizes, and how it is trained but for what the grid says."""
    return (
        f"Network: {plural(base.layers, 'block')} on each side of width {base.d_model}, {base.ffn:,} hidden units, "
        f"{base.heads} heads, dropout {base.dropout:g}. Training: {_length(base)} of batches with at most "
        f"{base.max_tokens:,} pieces on a side, out of a vocabulary of {base.vocabulary:,}; label smoothing "
        f"{base.label_smoothing:g}; after its warm-up the rate falls {_FALLS[base.schedule]}."
    )


def of_search(base: Translation) -> str:
    beam = f"beam search over {base.beam} hypotheses with length penalty {base.lenpen:g}"
    search = "greedy search" if base.beam == 1 else beam
    return (
        f"The translation is from {base.source!r} into {base.target!r}, by {search}. "
        "BLEU is sacrebleu's on detokenised text, of one checkpoint, no average: the best by validation loss, of a "
        "joint run by the mean of both networks' losses."
    )


def of_residual_network(base: Images, rate: str) -> str:
    mirrored = " and mirror images" if base.flip else ""
    return (
        f"Learning rate, schedule, length, batch and augmentation are not in the paper: {rate}, half a cosine down to "
        f"0 over {_length(base)}, {base.batch} images a batch, random crops{mirrored}. Network {base.network}, "
        f"{base.width} channels in the first stage."
    )


def of_tuning(grid: Grid, base: Settings, untuned: str) -> str:
    """Which cells are searched, and by how much training."""
    if len(grid.cells) == 1:
        return untuned
    changes: Any = dict(grid.shorter)
    return (
        f"Every row is tuned over the same {len(grid.cells)} cells, each a run of its own with seed 0, of "
        f"{_length(replace(base, **changes))} instead of {_length(base)}. Of a row with whole runs at several cells "
        "the best by validation, with seed 0, is shown. Rows without a grid, like those at equal FLOPs, take the cell "
        "of the row that they follow."
    )


def _length(base: Settings) -> str:
    return plural(base.epochs, "epoch") if base.max_steps is None else plural(base.max_steps, "step")
