"""The work of a training, in torch's convention and in the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from partialsgd._util.snapshots import Modes
from partialsgd.engine.rules import choose
from partialsgd.method import Branch, Context, Method
from partialsgd.nested import Nested
from partialsgd.nested.inspect.flops import Flops, count, paper_epoch_flops
from partialsgd.nested.specs import LowRank
from partialsgd.parameters import parameters_of


@final
class Work:
    """What a pass of each level costs. It is counted once, or once for each size of a batch, by running it."""

    def __init__(self, network: Nested, shape: Sequence[int]) -> None:
        self.network, self.shape = network, tuple(shape)
        self._counted: dict[tuple[str, int], Flops] = {}
        # W + VU is multiplied once for the whole batch; everything else is done for each image.
        self._is_shared = any(isinstance(spec, LowRank) for specs in network.specs.values() for spec in specs)

    def training(self, level: str, images: int) -> int:
        """FLOPs of forward and backward, as torch counts them."""
        if self._is_shared:
            return self._of(level, images).training
        return self._of(level, 1).training * images

    def multiply_adds(self, level: str) -> int:
        """Of the forward pass of one image, as the paper counts them."""
        return self._of(level, 1).multiply_adds

    def epoch(self, passes: Mapping[str, float], sizes: Sequence[int]) -> list[dict[str, str | float]]:
        """FLOPs of an epoch over batches of these sizes: of each level if all go through it, and of a method."""
        levels, images = self.network.levels, sum(sizes)
        torchs = {level: sum(self.training(level, size) for size in sizes) for level in levels}
        papers = {
            level: paper_epoch_flops([self.multiply_adds(level)], every_batch=True, images=images) for level in levels
        }

        def row(name: str, often: Mapping[str, float]) -> dict[str, str | float]:
            sums = (sum(often[level] * flops[level] for level in often) for flops in (torchs, papers))
            return {"an epoch of": name, **dict(zip(("torch", "paper"), map(float, sums), strict=True))}

        return [*(row(level, {level: 1.0}) for level in levels), row("the method", passes)]

    def _of(self, level: str, images: int) -> Flops:
        if (level, images) not in self._counted:
            self._counted[level, images] = self._count(level, images)
        return self._counted[level, images]

    def _count(self, level: str, images: int) -> Flops:
        device, modes = next(self.network.parameters()).device, Modes(self.network)
        self.network.eval()  # in training BatchNorm refuses a single image, and its FLOPs are the same
        try:
            with self.network.at(level):
                return count(self.network.model, torch.zeros(images, *self.shape, device=device))
        finally:
            modes.restore()


def passes(method: Method, network: Nested, seed: int) -> dict[str, float]:
    """How often each level runs forward and backward in a step, on average over some steps.

    What a meter, a guard or a teacher runs beside it is not counted.
    """
    method = method.bind(network)
    steps = 100 * len(network.levels)  # whole rounds of all levels
    context = Context(0, seed, parameters_of(network), {})
    counts: Counter[str] = Counter()
    gradients: dict[str | None, int] = {}
    for t in range(steps):
        for branch in method.branches_at(replace(context, t=t)):
            if branch.level not in gradients:
                gradients[branch.level] = _gradients(method, branch, replace(context, t=t))
            counts[branch.level if branch.level in network.levels else network.levels[-1]] += gradients[branch.level]
    return {level: counts[level] / steps for level in network.levels if counts[level]}


def _gradients(method: Method, branch: Branch, context: Context) -> int:
    """Two where the gradient at x says where the next one is taken (SAM), else one."""
    choice = choose(method, branch, replace(context, level=branch.level))
    return 2 if choice.needs_gradient and choice.leaves_base else 1
