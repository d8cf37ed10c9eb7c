"""p = what one level uses, at every step: the level trained by itself."""

from __future__ import annotations

from torch import nn

from partialsgd.method import Method
from partialsgd.methods._shared.settings import nested_in, require_levels
from partialsgd.nested.branches import branch_of


def only(level: str = "core") -> Method:
    """One level: a nested network is trained at this level alone, and nothing outside it moves."""
    if not isinstance(level, str):
        raise TypeError(f"level must be the name of a level such as 'core', got {level!r}")
    name = f"only(level={level})"

    def build(model: nn.Module) -> Method:
        nested = nested_in(model)
        require_levels(nested, [level], "level")
        branch = branch_of(nested, level)
        return Method(branches=lambda context: [branch], structural=True, name=name)

    return Method(build=build, name=name)
