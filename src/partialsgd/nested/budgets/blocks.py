"""Which blocks a level may leave out: each is worth what the loss grows without it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import final

from torch import nn

from partialsgd.nested.budgets.choices import Choice, LossBatch, UnitChoice, loss_at
from partialsgd.nested.budgets.costs import SHORT
from partialsgd.nested.layers.depth import ShortenedModuleList, ShortenedSequential
from partialsgd.nested.planning.build import block_lists
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import Depth
from partialsgd.nested.switch import FULL, Switch

_STATES = 6  # so many numbers of blocks are compared for a level


@final
@dataclass(frozen=True)
class BlockList:
    """A list of blocks, in the order in which a level keeps them; the first block always stays."""

    name: str
    order: tuple[int, ...]
    growth: tuple[float, ...]
    """How much the loss grows without each block of `order`; infinite if it cannot be left out."""


@final
@dataclass(frozen=True)
class Blocks:
    """The lists of blocks that may be shorter, and the blocks in the order in which they are left out."""

    lists: tuple[BlockList, ...] = ()

    @property
    def removable(self) -> list[tuple[float, str]]:
        """How much the loss grows without each block that may go, and its list; the least first."""
        return sorted((g, one.name) for one in self.lists for g in one.growth[1:] if math.isfinite(g))

    def kept(self, removed: int) -> dict[str, int]:
        """Return how many blocks of each list stay if so many are left out."""
        gone = [name for _, name in self.removable[:removed]]
        return {one.name: len(one.order) - gone.count(one.name) for one in self.lists}

    def states(self, removed: int) -> list[int]:
        """Return the numbers of blocks left out that are compared, from `removed` on."""
        last = len(self.removable)
        count = min(_STATES, last - removed + 1)
        return sorted({removed + round(i * (last - removed) / max(1, count - 1)) for i in range(count)})

    def shortened(self, model: nn.Module, kept: Mapping[str, int]) -> AbstractContextManager[None]:
        """Leave blocks out of the model inside a `with` block."""
        return _replaced(model, {one.name: tuple(sorted(one.order[: kept[one.name]])) for one in self.lists})

    def remaining(self, model: nn.Module, choices: Sequence[Choice], kept: Mapping[str, int]) -> list[Choice]:
        """Return what is left of choices, of which those in the blocks that are left out are gone."""
        gone = tuple(
            f"{one.name}.{list(model.get_submodule(one.name)._modules)[i]}."
            for one in self.lists
            for i in one.order[kept[one.name] :]
        )
        remaining: list[Choice] = []
        for choice in choices:
            if isinstance(choice, UnitChoice):
                slices = tuple(part for part in choice.slices if not part.parameter.startswith(gone))
                if slices:
                    remaining.append(replace(choice, slices=slices))
            elif not choice.name.startswith(gone):
                remaining.append(choice)
        return remaining


def find_blocks(plan: NestPlan, specs: Sequence[Depth], batches: Sequence[LossBatch]) -> Blocks:
    """Measure the loss without each block but the first of the lists that the specs name."""
    full = loss_at(plan.model, [], {}, batches) if specs else 0.0
    lists = []
    for name in dict.fromkeys(name for spec in specs for name in block_lists(plan, spec)):
        total = len(plan.modules[name]._modules)
        growth = {0: math.inf}
        for i in range(1, total):
            growth[i] = _loss_without(plan.model, name, i, total, batches) - full
        order = tuple(sorted(growth, key=lambda i: (i != 0, -growth[i], i)))
        lists.append(BlockList(name, order, tuple(growth[i] for i in order)))
    return Blocks(tuple(lists))


def _loss_without(model: nn.Module, name: str, block: int, total: int, batches: Sequence[LossBatch]) -> float:
    try:
        with _replaced(model, {name: tuple(i for i in range(total) if i != block)}):
            loss = loss_at(model, [], {}, batches)
    except Exception:  # whatever the code raises that needs the block, as where it changes the shape
        return math.inf
    return math.inf if math.isnan(loss) else loss


@contextmanager
def _replaced(model: nn.Module, indices: Mapping[str, tuple[int, ...]]) -> Iterator[None]:
    """Put lists that iterate over some blocks in the place of whole ones; names of parameters stay."""
    switch = Switch((SHORT, FULL))
    before = {name: model.get_submodule(name) for name in indices}
    lists = {
        blocks: (ShortenedModuleList if isinstance(blocks, nn.ModuleList) else ShortenedSequential)(
            blocks, {SHORT: indices[name]}, switch
        )
        for name, blocks in before.items()
    }
    places = [(parent, key, m) for parent in model.modules() for key, m in parent._modules.items() if m in lists]
    try:
        for parent, key, module in places:
            parent._modules[key] = lists[module]
        with switch.at(SHORT):
            yield
    finally:
        for parent, key, module in places:
            parent._modules[key] = module
