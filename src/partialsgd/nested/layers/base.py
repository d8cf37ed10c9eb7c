"""What a nested layer is: one layer of several sizes, of which the switch says the one that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from partialsgd.nested.switch import Switch

Part: TypeAlias = nn.Parameter | nn.Module


class NestedModule(nn.Module):
    """A module that is another one at each level. Its parameters are cut so that a level has whole ones."""

    switch: Switch
    by: str
    """What asked for it."""

    def parts(self, level: str) -> Iterator[Part]:
        """The parameters and modules inside that the level uses."""
        raise NotImplementedError

    def shipped(self, level: str) -> Iterator[Part]:
        """Those of them that are left in size when the level is taken out: what is merged into another is not."""
        return self.parts(level)

    def plain(self, level: str, memo: dict[int, Any]) -> nn.Module:
        """A module of torch that computes what this one computes at the level; `memo` as in `deepcopy`."""
        raise NotImplementedError

    def describe(self) -> str:
        """What was nested, for the summary."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return self.describe()


class NestedLayer(NestedModule):
    """A linear or convolutional layer whose weight is joined from blocks.

    `weight` is a property and no parameter: torch's Transformer fast path and T5 read it without calling forward.
    """

    def __init__(self, switch: Switch, counts: Mapping[str, int]) -> None:
        super().__init__()
        self.switch = switch
        self.counts = dict(counts)
        """For each level the number of its blocks, the smallest level's first."""

    @property
    def weight(self) -> Tensor:
        """The dense weight of the level that runs, as the original layer would hold it."""
        return self.weight_at(self.switch.level)

    @property
    def in_features(self) -> int:
        return self.sizes_at(self.switch.level)[1]

    @property
    def out_features(self) -> int:
        return self.sizes_at(self.switch.level)[0]

    in_channels, out_channels = in_features, out_features

    def weight_at(self, level: str) -> Tensor:
        raise NotImplementedError

    def sizes_at(self, level: str) -> tuple[int, int]:
        """(outputs, inputs) of the level."""
        raise NotImplementedError


def level_parameters(module: nn.Module, level: str) -> Iterator[nn.Parameter]:
    """The parameters that a level of the network uses, each once."""
    used = _walk(module, lambda nested: nested.parts(level))
    yield from dict.fromkeys(part for part in used if isinstance(part, nn.Parameter))


def level_size(module: nn.Module, level: str) -> int:
    """How many numbers the level has when it is taken out of the network."""
    left = _walk(module, lambda nested: nested.shipped(level))
    return sum(part.numel() for part in dict.fromkeys(left) if isinstance(part, nn.Parameter))


def level_modules(module: nn.Module, level: str) -> Iterator[nn.Module]:
    """The modules that a level of the network runs, outermost first."""
    run = _walk(module, lambda nested: nested.parts(level))
    yield from dict.fromkeys(part for part in run if isinstance(part, nn.Module))


def _walk(part: Part, chosen: Callable[[NestedModule], Iterator[Part]]) -> Iterator[Part]:
    """The part, and all inside it; of a nested module what is chosen."""
    yield part
    if isinstance(part, NestedModule):
        inside = chosen(part)
    elif isinstance(part, nn.Module):
        inside = iter([*part.parameters(recurse=False), *part.children()])
    else:
        return
    for one in inside:
        yield from _walk(one, chosen)
