"""Make the nested model that --nest, --ratio and --alone describe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, TypeAlias

from torch import nn

import partialsgd as ps
from partialsgd.lab.training.settings import LevelOptions, parse_ratio
from partialsgd.nested import Nested
from partialsgd.nested.layers.batch_norm import Norms
from partialsgd.nested.specs import Spec

MakeSpec: TypeAlias = Callable[[tuple[float, ...]], Spec]
"""Makes the spec with these ratios for the layers that the recipe chooses."""


def nest_model(
    model: nn.Module,
    levels: LevelOptions,
    specs: Mapping[str, MakeSpec],
    *,
    seed: int,
    norms: Norms = "separate",
    example: Any = None,
) -> Nested:
    """Nest the model. `nest="none"` and `alone` give a nested model with a single level."""
    if levels.nest == "none":
        if levels.alone is not None:
            raise ValueError(f'alone is {levels.alone!r}, but with nest="none" there are no levels; drop one of them')
        return ps.nest(model, levels={})
    if levels.nest not in specs:
        raise ValueError(f"nest must be one of {', '.join([*specs, 'none'])}; got {levels.nest!r}")
    ratios = tuple(sorted(parse_ratio(ratio) for ratio in levels.ratio))
    nested = ps.nest(model, specs[levels.nest](ratios), norms=norms, seed=seed)
    for small, large in pairwise(nested.levels):
        if nested.size(small) >= nested.size(large):
            raise ValueError(f"level {small!r} is not smaller than {large!r}; use a smaller ratio or a larger network")
    if levels.alone is None:
        return nested
    if levels.alone not in nested.levels:
        raise ValueError(f"alone must be one of the levels {', '.join(nested.levels)}; got {levels.alone!r}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the statistics of .* never updated")  # the level is about to be trained
        return ps.nest(nested.extract(levels.alone, example=example), levels={})
