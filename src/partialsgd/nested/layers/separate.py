"""The networks of several levels side by side: each level runs its own, and nothing is shared."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, final

from torch import nn

from partialsgd.nested.layers.base import Member, NestedModule
from partialsgd.nested.switch import Switch


@final
class SeparateLevels(NestedModule):
    """One network for each level, smallest first. It answers for public names that it does not have itself."""

    spec_name = "SeparateLevels"

    def __init__(self, networks: Sequence[nn.Module], switch: Switch) -> None:
        super().__init__()
        self.switch = switch
        self.networks = nn.ModuleList(networks)

    def network(self, level: str) -> nn.Module:
        """Return the network of a level."""
        return self.networks[self.switch.levels.index(level)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.network(self.switch.level)(*args, **kwargs)

    def members(self, level: str) -> Iterator[Member]:
        yield self.network(level)

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        return copy.deepcopy(self.network(level), memo)

    def describe(self) -> str:
        return f"{len(self.networks)} networks that share nothing"

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "networks" not in self.__dict__.get("_modules", {}):
                raise
        return getattr(self.network(self.switch.level), name)
