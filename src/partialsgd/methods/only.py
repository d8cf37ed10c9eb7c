"""p = what one level uses, at every step: the level trained by itself."""

from __future__ import annotations

from partialsgd.methods.branches import branch_of, known_levels
from partialsgd.nested import Nested
from partialsgd.rules import Method


def only(nested: Nested, level: str = "core") -> Method:
    """One level: a nested network is trained at this level alone, and nothing outside it moves."""
    known_levels(nested, {level: 1.0}, "level")
    branch = branch_of(nested, level)
    return Method(branches=lambda context: [branch], structural=True, name=f"only(level={level})")
