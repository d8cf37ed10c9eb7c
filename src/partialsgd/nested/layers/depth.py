"""Fewer residual blocks: a list of blocks with a shorter list inside it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from torch import nn

from partialsgd.nested.layers.base import NestedModule
from partialsgd.nested.switch import Switch


class ShortenedBlocks(NestedModule):
    """A container whose iteration, length and index show the blocks of the current level."""

    spec_name = "Depth"

    def __init__(self, blocks: nn.Module, indices: Mapping[str, tuple[int, ...]], switch: Switch) -> None:
        nn.Module.__init__(self)
        self.switch = switch
        self.names = tuple(blocks._modules)
        self.indices = {level: indices.get(level, tuple(range(len(self.names)))) for level in switch.levels}
        """The blocks that each level has."""
        self.training = blocks.training
        for name, block in blocks._modules.items():
            self.add_module(name, block)

    def blocks_at(self, level: str) -> list[nn.Module]:
        return [self.get_submodule(self.names[i]) for i in self.indices[level]]

    def members(self, level: str) -> Iterator[nn.Module]:
        yield from self.blocks_at(level)

    def describe(self) -> str:
        full = self.indices["full"]
        shorter = [f"{level} has blocks {list(own)}" for level, own in self.indices.items() if own != full]
        return f"{'; '.join(shorter)} of {len(full)}"

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.blocks_at(self.switch.level))

    def __len__(self) -> int:
        return len(self.indices[self.switch.level])

    def __getitem__(self, index: Any) -> Any:
        return self.blocks_at(self.switch.level)[index]

    def _refuse(self, *args: Any) -> Any:
        raise TypeError("a nested list of blocks cannot be changed; change the list before nest")

    __setitem__ = __delitem__ = insert = append = extend = _refuse

    def _copies(self, level: str, memo: dict[int, Any]) -> list[nn.Module]:
        copies = [copy.deepcopy(block, memo) for block in self.blocks_at(level)]
        for i, block in enumerate(copies):
            for module in block.modules():
                if isinstance(getattr(module, "layer_idx", None), int):  # attention finds its key-value cache by it
                    module.layer_idx = i  # type: ignore[assignment]  # a plain number on the module
        return copies


@final
class ShortenedModuleList(ShortenedBlocks, nn.ModuleList):
    """An nn.ModuleList, also for `isinstance`."""

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        return nn.ModuleList(self._copies(level, memo))


@final
class ShortenedSequential(ShortenedBlocks, nn.Sequential):
    """An nn.Sequential, also for `isinstance`."""

    def __getitem__(self, index: Any) -> Any:
        blocks = super().__getitem__(index)
        return nn.Sequential(*blocks) if isinstance(blocks, list) else blocks

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        copies = self._copies(level, memo)
        if all(name.isdigit() for name in self.names):
            return nn.Sequential(*copies)
        names = [self.names[i] for i in self.indices[level]]
        return nn.Sequential(OrderedDict(zip(names, copies, strict=True)))


def block_indices(total: int, keep: int, pick: str | Sequence[int], name: str = "") -> tuple[int, ...]:
    """Return the blocks that stay. The first always stays: it may own what the others need (T5's position bias)."""
    if not isinstance(pick, str):
        if len(pick) != total:
            raise ValueError(f"pick lists {len(pick)} blocks, and {name!r} has {total}")
        return tuple(sorted(pick[:keep]))
    if pick == "first" or keep == 1:
        return tuple(range(keep))
    return tuple(round(i * (total - 1) / (keep - 1)) for i in range(keep))
