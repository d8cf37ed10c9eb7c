"""Specs say what a smaller level has less of: ranks, hidden units, blocks, or one term of a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, TypeAlias, TypeVar, final, get_args

from torch import nn

from partialsgd.nested.layers.base import NestedModule
from partialsgd.nested.layers.low_rank import FullWeight, Init
from partialsgd.nested.planning.groups import Order
from partialsgd.nested.switch import FULL

Patterns: TypeAlias = str | Sequence[str]
Ratio: TypeAlias = float | Sequence[float]
Hidden: TypeAlias = Sequence[str] | Sequence[Sequence[str]]
SpecOfRatios = TypeVar("SpecOfRatios", "LowRank", "Width")

# A SeparateBatchNorm has a child named after each level, beside these attributes.
_ATTRIBUTES = frozenset((*dir(NestedModule()), "axis", "levels", "switch"))


@final
@dataclass(frozen=True)
class LowRank:
    """(VU + W)x: the core is U, V, the shared bias and every layer that is not matched (equation LFC).

    The rank is max(1, round(ratio · min(in, out))); several ratios give several levels. `where` names layers by
    patterns; the default is every Linear, Conv2d and Hugging Face Conv1D except tied ones and the last, whose rank
    would limit the outputs. `ratios` gives single layers another ratio. `init="svd"` is for trained weights, `"zero"`
    for training from scratch (the full network starts as its core), `"matched"` gives VU the variance of the layer.
    With `full="own"` the full network multiplies by a weight of its own, which starts as the one that was there; the
    levels then share everything but the matched weights. It is for trained networks.
    """

    ratio: Ratio
    where: Patterns | None = field(default=None, kw_only=True)
    exclude: Patterns = field(default=(), kw_only=True)
    ratios: Mapping[str, Ratio] = field(default_factory=dict, kw_only=True)
    init: Init = field(default="svd", kw_only=True)
    full: FullWeight = field(default="sum", kw_only=True)

    def __post_init__(self) -> None:
        require_choice("init", self.init, get_args(Init))
        require_choice("full", self.full, get_args(FullWeight))
        _require_ratios_of_layers(self.ratio, self.ratios)

    def split(self) -> list[tuple[str, LowRank]]:
        """Return one spec for each ratio, with its name."""
        return _split_ratios(self)


@final
@dataclass(frozen=True)
class Width:
    """Fewer hidden units: feed-forward networks of Transformers, channels of convolutional networks, units of MLPs.

    A level has max(1, round(ratio · units)) units of each hidden layer; several ratios give several levels.
    `ratios` gives single hidden layers another ratio, by the names of the layers that make the units.
    `hidden` names the layers where they are not found automatically: in `("*.up", "*.gate", "*.down")` the last takes
    the units that the others make; give several such tuples for several kinds. `query_key=True` also narrows query
    and key in each head, padded with zeros to the head's width; `heads=True` also removes whole attention heads, with
    their queries, keys, values and the columns that take them. `order` puts the most important units into the core:
    by the norm of their weights, or of the gradients that the parameters hold when `nest` is called; a mapping gives
    the units of single hidden layers in their order, by the name of the first layer that makes them.
    """

    ratio: Ratio
    hidden: Hidden | None = field(default=None, kw_only=True)
    exclude: Patterns = field(default=(), kw_only=True)
    ratios: Mapping[str, Ratio] = field(default_factory=dict, kw_only=True)
    query_key: bool = field(default=False, kw_only=True)
    heads: bool = field(default=False, kw_only=True)
    order: Order | Mapping[str, Sequence[int]] = field(default="first", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.order, Mapping):
            require_choice("order", self.order, get_args(Order))
        _require_ratios_of_layers(self.ratio, self.ratios)
        chains_of(self.hidden)
        if self.heads and self.query_key:
            raise ValueError("heads=True and query_key=True both cut the queries and keys; choose one of them")

    def split(self) -> list[tuple[str, Width]]:
        return _split_ratios(self)


@final
@dataclass(frozen=True)
class Depth:
    """Fewer residual blocks of the lists that `layers` names: the first `keep`, or that many evenly spaced.

    `pick` may also be the numbers of all blocks, the most important first: a level keeps the first `keep` of them.
    `keep` is a number of blocks, or a share of them if it is a float; several give several levels. The first block
    always stays. In a pre-norm network a block whose parameters are zero is the identity, so a level is a mask; in a
    post-norm network it is not.
    """

    layers: Patterns
    keep: int | float | Sequence[int | float] = field(kw_only=True)
    pick: Literal["first", "even"] | Sequence[int] = field(default="first", kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.pick, str):
            require_choice("pick", self.pick, ("first", "even"))
        elif sorted(self.pick) != list(range(len(self.pick))) or self.pick[0] != 0:
            raise ValueError(f"pick must list the number of each block once, 0 first; got {self.pick!r}")
        if not as_tuple(self.keep):
            raise ValueError("keep must be a number of blocks, or several; it is empty")
        for keep in as_tuple(self.keep):
            if isinstance(keep, float):
                _require_ratios(keep)
            elif isinstance(keep, (bool, str)) or not isinstance(keep, int) or keep < 1:
                raise ValueError(f"keep must be a number of blocks, at least 1, or a share of them; got {keep!r}")

    def count(self, total: int) -> int:
        """Return how many of `total` blocks stay."""
        keep = as_tuple(self.keep)[0]
        return max(1, round(keep * total)) if isinstance(keep, float) else int(keep)

    def split(self) -> list[tuple[str, Depth]]:
        keeps = as_tuple(self.keep)
        return [(level_name(k) if isinstance(k, float) else str(k), replace(self, keep=k)) for k in keeps]


@final
@dataclass(frozen=True)
class LayerSum:
    """old(x) + new(x) in each matched layer, where `make(old)` is a module of the same signature (Figure 1, right).

    The core is `core="old"`, the layer that was there, or `"new"`, the one that was made. The full network is another
    function than before `nest`, unless `make` returns a module that starts at zero.
    """

    where: Patterns
    make: Callable[[nn.Module], nn.Module]
    core: Literal["old", "new"] = field(default="old", kw_only=True)

    def __post_init__(self) -> None:
        require_choice("core", self.core, ("old", "new"))
        if not callable(self.make) or isinstance(self.make, nn.Module):
            raise TypeError(f"make must be a function of the layer that returns another module, got {self.make!r}")

    def split(self) -> list[tuple[str, LayerSum]]:
        return [("core", self)]


Spec: TypeAlias = LowRank | Width | Depth | LayerSum
Levels: TypeAlias = dict[str, tuple[Spec, ...]]
"""The specs of each level but the full one, smallest level first; each spec has one ratio."""


def resolve_levels(spec: Spec | Sequence[Spec] | None, levels: Mapping[str, Spec | Sequence[Spec]] | None) -> Levels:
    """Return the levels that the arguments of `nest` describe."""
    if levels is not None:
        if spec is not None:
            raise ValueError("give either a spec or levels, not both")
        return _named_levels(levels)
    specs = _as_specs(() if spec is None else spec)
    if spec is not None and not specs:
        raise ValueError("the list of specs is empty; give LowRank, Width, Depth or LayerSum")
    split = [one.split() for one in specs]
    count = max((len(parts) for parts in split), default=1)
    if any(len(parts) not in (1, count) for parts in split):
        raise ValueError(f"specs with several ratios must have the same number; got {[len(p) for p in split]}")
    names = ["core"] if count == 1 else [name for name, _ in next(parts for parts in split if len(parts) == count)]
    if len(set(names)) < len(names):
        raise ValueError(f"two levels would have the same name: {', '.join(names)}; give different ratios")
    return {name: tuple(parts[i if len(parts) > 1 else 0][1] for parts in split) for i, name in enumerate(names)}


def chains_of(hidden: Hidden | None) -> tuple[tuple[str, ...], ...]:
    """Return the patterns of `hidden`: tuples whose last pattern takes the units that the others make."""
    if not hidden:
        return ()
    chains = (hidden,) if all(isinstance(pattern, str) for pattern in hidden) else hidden
    if isinstance(hidden, str) or any(isinstance(chain, str) or len(chain) < 2 for chain in chains):
        raise ValueError(
            f'hidden must name layers that make units and one that takes them, like ("*.fc1", "*.fc2"); got {hidden!r}'
        )
    return tuple(tuple(str(pattern) for pattern in chain) for chain in chains)


def as_tuple(value: Ratio) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def as_patterns(patterns: Patterns) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def _named_levels(levels: Mapping[str, Spec | Sequence[Spec]]) -> Levels:
    if not isinstance(levels, Mapping):
        raise TypeError(f"levels must map names to specs: levels={{'small': [...]}}; got a {type(levels).__name__}")
    named: Levels = {}
    for name, level_specs in levels.items():
        if name == FULL:
            raise ValueError(f"the level {FULL!r} is the whole network; name only the smaller ones")
        if not name or "." in name or name in _ATTRIBUTES:
            raise ValueError(
                f"a level cannot be called {name!r}: use a name without dots that no nn.Module attribute has"
            )
        specs = _as_specs(level_specs)
        if not specs:
            raise ValueError(f"the level {name!r} has no spec; the whole network is the level {FULL!r}")
        if any(len(one.split()) > 1 for one in specs):
            raise ValueError(f"the level {name!r} has a spec with several ratios; give each level its own")
        named[name] = specs
    return named


def _as_specs(specs: Spec | Sequence[Spec]) -> tuple[Spec, ...]:
    specs = tuple(specs) if isinstance(specs, Sequence) and not isinstance(specs, str) else (specs,)
    for spec in specs:
        if not isinstance(spec, Spec):
            hint = "; for named levels write levels={…}" if isinstance(spec, Mapping) else "; write Width(1 / 2)"
            hint = "; an OutputSum is the model: nest(OutputSum(…))" if isinstance(spec, nn.Module) else hint
            hint = "; call it: Width(1 / 2)" if isinstance(spec, type) else hint
            hint = f"; write Width({spec}) or LowRank({spec})" if isinstance(spec, int | float) else hint
            raise TypeError(f"a spec must be LowRank, Width, Depth or LayerSum, got a {type(spec).__name__}{hint}")
    return specs


def level_name(ratio: float) -> str:
    """Return "1/32" for 0.03125."""
    return str(Fraction(ratio).limit_denominator(100_000))


def _require_ratios(ratio: Ratio) -> None:
    if not as_tuple(ratio):
        raise ValueError("at least one ratio is needed, and the list is empty")
    for value in as_tuple(ratio):
        if isinstance(value, (bool, str)) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise ValueError(
                f"a ratio must be in (0, 1], got {value!r}; it is the share that a level keeps, such as 1/2"
            )


def _require_ratios_of_layers(ratio: Ratio, ratios: Mapping[str, Ratio]) -> None:
    for one in (ratio, *ratios.values()):
        _require_ratios(one)
    count = len(as_tuple(ratio))
    if any(len(as_tuple(one)) != count for one in ratios.values()):
        raise ValueError(f"ratios must give each layer as many ratios as `ratio` has ({count}); got {ratios}")


def _split_ratios(spec: SpecOfRatios) -> list[tuple[str, SpecOfRatios]]:
    """Return a copy of the spec for each of its ratios, with the name of its level."""
    by_layer = [(pattern, as_tuple(ratio)) for pattern, ratio in spec.ratios.items()]
    return [
        (level_name(ratio), replace(spec, ratio=ratio, ratios={pattern: ratios[i] for pattern, ratios in by_layer}))
        for i, ratio in enumerate(as_tuple(spec.ratio))
    ]
