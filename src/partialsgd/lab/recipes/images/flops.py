"""FLOPs of a training on images, in torch's convention and in the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from partialsgd import masks
from partialsgd.engine.rules import choose
from partialsgd.lab.training.recipe_tools import evaluation_mode
from partialsgd.method import Context, Method
from partialsgd.nested import Nested
from partialsgd.nested.inspect.flops import Flops, count, paper_epoch_flops
from partialsgd.nested.specs import LowRank
from partialsgd.parameters import parameters_of


@final
class ImageFlops:
    """The cost of a pass of each level, counted by running it once."""

    def __init__(self, network: Nested, shape: Sequence[int]) -> None:
        self.network, self.shape = network, tuple(shape)
        self._counted: dict[tuple[str, int], Flops] = {}
        # W + VU is computed once for the whole batch; everything else once for each image.
        self._has_batch_cost = any(isinstance(spec, LowRank) for specs in network.specs.values() for spec in specs)

    def training(self, level: str, images: int) -> int:
        """FLOPs of forward and backward for a batch, as torch counts them."""
        if self._has_batch_cost:
            return self._count(level, images).training
        return self._count(level, 1).training * images

    def multiply_adds(self, level: str) -> int:
        """Multiply-adds of the forward pass of one image, as the paper counts them."""
        return self._count(level, 1).multiply_adds

    def epoch(self, passes: Mapping[str, float], sizes: Sequence[int]) -> list[dict[str, str | float]]:
        """FLOPs of an epoch over batches of these sizes: for each level alone, and for a method with these passes."""
        levels, images = self.network.levels, sum(sizes)
        by_torch = {level: sum(self.training(level, size) for size in sizes) for level in levels}
        by_paper = {
            level: paper_epoch_flops([self.multiply_adds(level)], every_batch=True, images=images) for level in levels
        }

        def row(name: str, passes: Mapping[str, float]) -> dict[str, str | float]:
            sums = (sum(passes[level] * flops[level] for level in passes) for flops in (by_torch, by_paper))
            return {"an epoch of": name, **dict(zip(("torch", "paper"), map(float, sums), strict=True))}

        return [*(row(level, {level: 1.0}) for level in levels), row("the method", passes)]

    def _count(self, level: str, images: int) -> Flops:
        if (level, images) not in self._counted:
            inputs = torch.zeros(images, *self.shape, device=next(self.network.parameters()).device)
            # In training mode BatchNorm refuses a single image; the FLOPs are the same.
            with evaluation_mode(self.network), self.network.at(level):
                self._counted[level, images] = count(self.network.model, inputs)
        return self._counted[level, images]


def passes_per_step(method: Method, network: Nested, seed: int) -> dict[str, float]:
    """The average number of forward and backward passes of each level in a step of a method.

    Extra passes of meters, guards and teachers are not counted.
    """
    method = method.bind(network)
    steps = 100 * len(network.levels)  # complete rounds of all levels
    context = Context(0, seed, parameters_of(network), {})
    all_ones = masks.everything(context.parameters)
    counts: Counter[str] = Counter()
    gradients: dict[str | None, int] = {}
    for t in range(steps):
        for branch in method.branches_at(replace(context, t=t)):
            if branch.level not in gradients:
                plan = choose(method, branch, replace(context, t=t, level=branch.level), all_ones)
                # Two if the gradient at x decides where the next one is taken, as in SAM.
                gradients[branch.level] = 2 if plan.needs_gradient and plan.leaves_base else 1
            counts[branch.level if branch.level in network.levels else network.levels[-1]] += gradients[branch.level]
    return {level: counts[level] / steps for level in network.levels if counts[level]}
