"""The chain of levels: a name for each size, smallest first, and what it has less than the whole network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torch import nn

from partialsgd.nested.layers.base import NestedModule
from partialsgd.nested.specs import Spec
from partialsgd.nested.switch import FULL

# A BatchNorm of a family has a child for each level, beside these attributes.
_TAKEN = frozenset((*dir(NestedModule()), "axis", "levels", "switch"))

Levels: TypeAlias = dict[str, tuple[Spec, ...]]


def resolve(spec: Spec | Sequence[Spec] | None, levels: Mapping[str, Spec | Sequence[Spec]] | None) -> Levels:
    """Each level's specs, of one ratio each, smallest level first; without the full one."""
    if levels is not None:
        if spec is not None:
            raise ValueError("give either a spec or levels, not both")
        return _named(levels)
    specs = _as_specs(() if spec is None else spec)
    if spec is not None and not specs:
        raise ValueError("the list of specs is empty; say what is inside the network")
    split = [one.split() for one in specs]
    depth = max((len(parts) for parts in split), default=1)
    if any(len(parts) not in (1, depth) for parts in split):
        raise ValueError(f"specs with several ratios must have the same number; got {[len(p) for p in split]}")
    names = ["core"] if depth == 1 else [name for name, _ in next(parts for parts in split if len(parts) == depth)]
    if len(set(names)) < len(names):
        raise ValueError(f"two levels would be called alike: {', '.join(names)}")
    return {name: tuple(parts[i if len(parts) > 1 else 0][1] for parts in split) for i, name in enumerate(names)}


def _named(levels: Mapping[str, Spec | Sequence[Spec]]) -> Levels:
    if not isinstance(levels, Mapping):
        raise TypeError(f"levels maps names to specs: levels={{'small': [...]}}; got a {type(levels).__name__}")
    named: Levels = {}
    for name, given in levels.items():
        if name == FULL:
            raise ValueError(f"the level {FULL!r} is the whole network; name only the smaller ones")
        if not name or "." in name or name in _TAKEN:
            raise ValueError(f"a level cannot be called {name!r}: names have no dots and are no attributes of a module")
        specs = _as_specs(given)
        if not specs:
            raise ValueError(f"the level {name!r} has no spec; the whole network is the level {FULL!r}")
        for one in specs:
            if len(one.split()) > 1:
                raise ValueError(f"the level {name!r} has a spec with several ratios; give each level its own")
        named[name] = specs
    return named


def _as_specs(given: Spec | Sequence[Spec]) -> tuple[Spec, ...]:
    specs = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    for one in specs:
        if not isinstance(one, Spec):
            hint = "; for named levels write levels={…}" if isinstance(one, Mapping) else ""
            hint = "; an OutputSum is the model: nest(OutputSum(…))" if isinstance(one, nn.Module) else hint
            raise TypeError(f"a spec is LowRank, Width, Depth or LayerSum, got a {type(one).__name__}{hint}")
    return specs


def require_growing(name: str, sizes: Mapping[str, int], full: int, levels: Sequence[str]) -> None:
    """Levels form a chain: each has what the one before it has."""
    before, of = 0, ""
    for level in levels:
        size = sizes.get(level, full)
        if size < before:
            raise ValueError(
                f"levels go from the smallest to the largest, and {name!r} has {before} at {of!r} and then {size} at "
                f"{level!r}: order the levels"
            )
        before, of = size, level
