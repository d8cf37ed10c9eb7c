"""p = what one level uses, at every step: the level trained by itself."""

from __future__ import annotations

from partialsgd.method import Method
from partialsgd.methods._shared.levels import require_levels
from partialsgd.nested import Nested
from partialsgd.nested.branches import branch_of
from partialsgd.nested.nested import family_of


def only(nested: Nested, level: str = "core") -> Method:
    """One level: a nested network is trained at this level alone, and nothing outside it moves."""
    nested = family_of(nested)
    require_levels(nested, [level], "level")
    branch = branch_of(nested, level)
    return Method(branches=lambda context: [branch], structural=True, name=f"only(level={level})")
