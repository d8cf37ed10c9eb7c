"""Fewer residual blocks: a list of layers with a shorter list inside it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, final

from torch import nn

from partialsgd.nested.layers.base import NestedModule
from partialsgd.nested.switch import Switch


class Shortened(NestedModule):
    """A container of blocks that shows those of the level to whoever iterates, counts or indexes."""

    by = "Depth"

    def __init__(self, blocks: nn.Module, kept: Mapping[str, tuple[int, ...]], switch: Switch) -> None:
        nn.Module.__init__(self)
        self.switch = switch
        self.names = tuple(blocks._modules)
        self.kept = {level: kept.get(level, tuple(range(len(self.names)))) for level in switch.levels}
        self.training = blocks.training
        for name, block in blocks._modules.items():
            self.add_module(name, block)

    def blocks_at(self, level: str) -> list[nn.Module]:
        return [self.get_submodule(self.names[i]) for i in self.kept[level]]

    def parts(self, level: str) -> Iterator[nn.Module]:
        yield from self.blocks_at(level)

    def describe(self) -> str:
        shorter = [f"{level} has blocks {list(kept)}" for level, kept in self.kept.items() if kept != self.kept["full"]]
        return f"{'; '.join(shorter)} of {len(self.names)}"

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.blocks_at(self.switch.level))

    def __len__(self) -> int:
        return len(self.kept[self.switch.level])

    def __getitem__(self, index: Any) -> Any:
        return self.blocks_at(self.switch.level)[index]

    def __setitem__(self, index: Any, block: nn.Module) -> None:
        raise TypeError(f"a list of blocks that is nested does not change ({index!r}); change it before nest")

    def insert(self, index: int, block: nn.Module) -> Any:
        self[index] = block

    def append(self, block: nn.Module) -> Any:
        self[len(self)] = block

    def extend(self, blocks: Any) -> Any:
        self[len(self)] = blocks

    def __delitem__(self, index: Any) -> None:
        self[index] = nn.Identity()

    def _copies(self, level: str, memo: dict[int, Any]) -> list[nn.Module]:
        return [renumbered(copy.deepcopy(block, memo), i) for i, block in enumerate(self.blocks_at(level))]


@final
class ShortList(Shortened, nn.ModuleList):
    """An nn.ModuleList to all who ask."""

    def plain(self, level: str, memo: dict[int, Any]) -> nn.Module:
        return nn.ModuleList(self._copies(level, memo))


@final
class ShortSequential(Shortened, nn.Sequential):
    """An nn.Sequential to all who ask."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return nn.Sequential(*found) if isinstance(found, list) else found

    def plain(self, level: str, memo: dict[int, Any]) -> nn.Module:
        copies = self._copies(level, memo)
        names = [self.names[i] for i in self.kept[level]]
        if all(name.isdigit() for name in self.names):
            return nn.Sequential(*copies)
        return nn.Sequential(OrderedDict(zip(names, copies, strict=True)))


def renumbered(block: nn.Module, place: int) -> nn.Module:
    """Attention layers know their place, by which caches of keys and values find their entry."""
    for module in block.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            module.layer_idx = place  # type: ignore[assignment]  # a plain number on the module
    return block


def spread(total: int, keep: int, *, even: bool) -> tuple[int, ...]:
    """The blocks that stay: always the first, which may own what the others need (T5's position bias)."""
    if not even or keep == 1:
        return tuple(range(keep))
    return tuple(round(i * (total - 1) / (keep - 1)) for i in range(keep))
