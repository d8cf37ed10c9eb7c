"""What is inside what: fewer ranks, fewer units, fewer blocks, or one term of a sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, TypeAlias, final, get_args

from torch import nn

from partialsgd.nested.layers.low_rank import Init
from partialsgd.nested.planning.groups import Order

Patterns: TypeAlias = str | Sequence[str]
Ratio: TypeAlias = float | Sequence[float]
Hidden: TypeAlias = Sequence[str] | Sequence[Sequence[str]]


@final
@dataclass(frozen=True)
class LowRank:
    """(VU + W)x: the core is U, V, the shared bias and all that is not matched (equation LFC).

    The rank is max(1, round(ratio · min(in, out))); several ratios give a hierarchy of ranks. `where` names
    layers by patterns; by default it is every Linear, Conv2d and Hugging Face Conv1D but the last, whose
    rank would bound what the network can say, and those whose weights are tied. `ratios` are for single layers.
    `init="svd"` is for trained weights, `"zero"` for training from scratch (the network begins as its core),
    `"matched"` gives VU the variance of the layer.
    """

    ratio: Ratio
    where: Patterns | None = field(default=None, kw_only=True)
    exclude: Patterns = field(default=(), kw_only=True)
    ratios: Mapping[str, Ratio] = field(default_factory=dict, kw_only=True)
    init: Init = field(default="svd", kw_only=True)

    def __post_init__(self) -> None:
        require_choice("init", self.init, get_args(Init))
        for ratio in (self.ratio, *self.ratios.values()):
            require_ratios(ratio)
        if any(len(as_tuple(r)) != len(as_tuple(self.ratio)) for r in self.ratios.values()):
            raise ValueError(
                f"ratios must give each layer as many ratios as the others have, {len(as_tuple(self.ratio))}"
            )

    def split(self) -> list[tuple[str, LowRank]]:
        """One spec for each ratio, with its name."""
        each = [{p: as_tuple(r)[i] for p, r in self.ratios.items()} for i in range(len(as_tuple(self.ratio)))]
        pairs = zip(as_tuple(self.ratio), each, strict=True)
        return [(name_of(r), replace(self, ratio=r, ratios=single)) for r, single in pairs]


@final
@dataclass(frozen=True)
class Width:
    """Fewer hidden units: feed-forward networks of Transformers, channels of convolutional networks, units of MLPs.

    A level has max(1, round(ratio · units)) units of each hidden layer; several ratios give a hierarchy.
    `hidden` says the layers where structure does not: `("*.up", "*.gate", "*.down")`, the last one takes
    the units that the others make; several such tuples for several kinds. `query_key=True` also narrows query
    and key in each head, padded with zeros to the head's width. `order` puts the most important units into
    the core: by the norm of their weights, or of the gradients that the parameters hold when `nest` is called.
    """

    ratio: Ratio
    hidden: Hidden | None = field(default=None, kw_only=True)
    exclude: Patterns = field(default=(), kw_only=True)
    query_key: bool = field(default=False, kw_only=True)
    order: Order = field(default="first", kw_only=True)

    def __post_init__(self) -> None:
        require_choice("order", self.order, get_args(Order))
        require_ratios(self.ratio)
        chains_of(self.hidden)

    @property
    def chains(self) -> tuple[tuple[str, ...], ...]:
        return chains_of(self.hidden)

    def split(self) -> list[tuple[str, Width]]:
        return [(name_of(ratio), replace(self, ratio=ratio)) for ratio in as_tuple(self.ratio)]


@final
@dataclass(frozen=True)
class Depth:
    """Fewer residual blocks of the lists that `layers` names: the first `keep`, or that many evenly spaced.

    `keep` is a number of blocks, or as a float a share of them; several give a hierarchy. The first block
    always stays. In a pre-norm network a block whose parameters are zero is the identity, so this is a mask;
    in a post-norm network it is not, and the level is what runs.
    """

    layers: Patterns
    keep: int | float | Sequence[int | float] = field(kw_only=True)
    pick: Literal["first", "even"] = field(default="first", kw_only=True)

    def __post_init__(self) -> None:
        require_choice("pick", self.pick, ("first", "even"))
        if not self._keeps():
            raise ValueError("keep must say how many blocks stay")
        for keep in self._keeps():
            if isinstance(keep, float):
                require_ratios(keep)
            elif isinstance(keep, (bool, str)) or not isinstance(keep, int) or keep < 1:
                raise ValueError(f"keep must be a number of blocks, at least 1, or a share of them; got {keep!r}")

    def _keeps(self) -> tuple[int | float, ...]:
        several = isinstance(self.keep, Sequence) and not isinstance(self.keep, str)
        return tuple(self.keep) if several else (self.keep,)  # type: ignore[arg-type, return-value]  # just asked

    def count(self, total: int) -> int:
        """How many of `total` blocks stay."""
        keep = self._keeps()[0]
        return max(1, round(keep * total)) if isinstance(keep, float) else keep

    def split(self) -> list[tuple[str, Depth]]:
        return [
            (name_of(keep) if isinstance(keep, float) else str(keep), replace(self, keep=keep))
            for keep in self._keeps()
        ]


@final
@dataclass(frozen=True)
class LayerSum:
    """old(x) + new(x) in each matched layer, where `make(old)` is a module of the same signature (Figure 1, right).

    The core has `core="old"`, the layer that was there, or `"new"`, the one that was made. LowRank is the
    special case in which VU is new and in the core. The full network is another function than before, unless
    `make` gives a module that starts at zero.
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


def as_patterns(patterns: Patterns) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def chains_of(hidden: Hidden | None) -> tuple[tuple[str, ...], ...]:
    """The patterns of `hidden`, one tuple a kind."""
    if not hidden:
        return ()
    kinds = (hidden,) if all(isinstance(pattern, str) for pattern in hidden) else hidden
    if isinstance(hidden, str) or any(isinstance(kind, str) or len(kind) < 2 for kind in kinds):
        raise ValueError(f'hidden must name makers and a taker, like ("*.fc1", "*.fc2"); got {hidden!r}')
    return tuple(tuple(str(pattern) for pattern in kind) for kind in kinds)


def as_tuple(ratio: Ratio) -> tuple[float, ...]:
    return tuple(ratio) if isinstance(ratio, Sequence) else (ratio,)


def name_of(ratio: float) -> str:
    """1/32 for 0.03125."""
    return str(Fraction(ratio).limit_denominator(100_000))


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}")


def require_ratios(ratio: Ratio) -> None:
    ratios = (ratio,) if isinstance(ratio, str) else as_tuple(ratio)
    if not ratios:
        raise ValueError("at least one ratio is needed")
    for value in ratios:
        if isinstance(value, (bool, str)) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise ValueError(f"a ratio must be in (0, 1], got {value!r}")
