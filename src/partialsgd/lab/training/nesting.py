"""Which networks are inside: --nest, --ratio and --init as a family."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from torch import nn

import partialsgd as ps
from partialsgd.lab.training.settings import ratio_of
from partialsgd.nested import Nested
from partialsgd.nested.layers.batch_norm import Norms
from partialsgd.nested.specs import Spec

Nest: TypeAlias = Literal["low-rank", "width", "depth", "none"]
Make: TypeAlias = Callable[[tuple[float, ...]], Spec]
"""A spec with these ratios, for the layers that the recipe means."""


def family(
    model: nn.Module,
    nest: str,
    ratios: Sequence[str],
    makes: Mapping[str, Make],
    *,
    seed: int,
    norms: Norms = "separate",
    alone: str | None = None,
    example: Any = None,
) -> Nested:
    """The model with its smaller networks; "none" is a family of one, as is a level that is taken out to be alone."""
    if nest == "none":
        if alone is not None:
            raise ValueError(f'alone is {alone!r}, and with nest="none" there are no levels; leave one of them out')
        return ps.nest(model, levels={})
    if nest not in makes:
        raise ValueError(f"nest must be one of {', '.join([*makes, 'none'])}; got {nest!r}")
    numbers = tuple(sorted(ratio_of(ratio) for ratio in ratios))
    made = ps.nest(model, makes[nest](numbers), norms=norms, seed=seed)
    for small, large in pairwise(made.levels):
        if made.size(small) >= made.size(large):
            raise ValueError(f"level {small!r} is no smaller than {large!r}; give a smaller ratio, or a larger network")
    if alone is None:
        return made
    if alone not in made.levels:
        raise ValueError(f"alone must be one of the levels, {', '.join(made.levels)}; got {alone!r}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the statistics of .* never updated")  # it is about to be trained
        return ps.nest(made.extract(alone, example=example), levels={})
