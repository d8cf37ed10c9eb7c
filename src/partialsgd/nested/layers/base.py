"""Base classes of nested modules, and the parameters and modules that a level of a model uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from partialsgd.nested.switch import Switch
from partialsgd.parameters import SHARE

Member: TypeAlias = nn.Parameter | nn.Module


class NestedModule(nn.Module):
    """A module that is smaller at smaller levels. Its parameters are stored in blocks, so a level uses whole ones."""

    switch: Switch
    spec_name: str
    """The spec or option that put the module here, for the summary."""

    def members(self, level: str) -> Iterator[Member]:
        """Yield the parameters and child modules that the level uses."""
        raise NotImplementedError

    def extracted_members(self, level: str) -> Iterator[Member]:
        """Yield parameters as many and as large as the extracted level has; some are merged into others there."""
        return self.members(level)

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        """Return a plain torch module that computes the same at the level; `memo` is the one of `deepcopy`."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return one line for the summary."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return self.describe()

    def blocks(self, name: str, count: int) -> list[nn.Parameter]:
        """Return the parameters `name0`, `name1`, … up to `count`; a level may add no block of a name."""
        parameters = self.shared_parameters() if self._modules else self._parameters
        blocks = (parameters.get(f"{name}{i}") for i in range(count))
        return [block for block in blocks if block is not None]

    def shared_parameters(self) -> Mapping[str, nn.Parameter | None]:
        """Return the parameters that lie in shares, by their names in the layer."""
        return {}


@final
class Share(nn.Module):
    """Some parameters of a nested layer as a module of their own: those that the same set of levels uses.

    `fully_shard` gathers the parameters of a module before its forward. A layer whose parameters lie in shares runs
    inside the forwards of those that its level uses, so that at a small level the others are never gathered. The names
    of the parameters, in a state dict too, are those that they have in the layer.
    """

    def __init__(self, levels: frozenset[str]) -> None:
        super().__init__()
        self.levels = levels
        """The levels that use the parameters."""

    def forward(self, compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return compute(x), which reads the parameters of this share.

        It is never a view: `fully_shard` hooks the outputs of a unit, and a change of a view in place loses the hook.
        """
        y = compute(x)
        return y if y._base is None else y.clone()

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        return super().state_dict(destination=destination, prefix=prefix.rpartition(SHARE)[0], keep_vars=keep_vars)

    def extra_repr(self) -> str:
        return f"{', '.join(self._parameters)} of {', '.join(sorted(self.levels))}"


class NestedLayer(NestedModule):
    """A linear or convolutional layer whose weight is joined from blocks.

    `weight` is a property and not a parameter: torch's Transformer fast path and T5 read it without calling forward.
    """

    def __init__(self, switch: Switch, block_counts: Mapping[str, int]) -> None:
        super().__init__()
        self.switch = switch
        self.block_counts = dict(block_counts)
        """The number of blocks that each level uses; the first blocks are the smallest level's."""

    def compute(self, x: Tensor) -> Tensor:
        """Return the outputs of the current level, whose parameters can be read."""
        raise NotImplementedError

    def split_into_shares(self) -> list[Share]:
        """Move the parameters into modules of their own, one for each set of levels that uses them."""
        users: dict[nn.Parameter, set[str]] = {}
        for level in self.switch.levels:
            for member in self.members(level):
                assert isinstance(member, nn.Parameter)  # a layer has no child modules
                users.setdefault(member, set()).add(level)
        shares: dict[frozenset[str], Share] = {}
        for name, parameter in list(self._parameters.items()):
            if parameter is not None:
                levels = frozenset(users[parameter])
                shares.setdefault(levels, Share(levels)).register_parameter(name, parameter)
                del self._parameters[name]
        ordered = sorted(shares.values(), key=lambda share: -len(share.levels))
        for i, share in enumerate(ordered):
            self.add_module(f"{SHARE}{i}", share)
        return ordered

    def run_in_shares(self, x: Tensor) -> Tensor:
        """Run `compute` inside the shares of the current level, which gather their parameters for it."""
        compute, level = self.compute, self.switch.level
        for share in self._modules.values():
            if isinstance(share, Share) and level in share.levels:
                compute = partial(share, compute)
        return compute(x)

    def shared_parameters(self) -> Mapping[str, nn.Parameter | None]:
        return {name: p for share in self._modules.values() if share for name, p in share._parameters.items()}

    def __getattr__(self, name: str) -> Any:
        """Find a parameter that lies in a share, or an option such as the stride, as if it were the layer's own."""
        for share in self.__dict__.get("_modules", {}).values():
            if name in share._parameters:
                return share._parameters[name]
        linear = self.__dict__.get("linear")
        if linear is not None and name in linear.attributes:
            return linear.attributes[name]
        return super().__getattr__(name)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, share in self._modules.items():
            for leaf in () if share is None else share._parameters:
                if prefix + leaf in state_dict:
                    state_dict[f"{prefix}{name}.{leaf}"] = state_dict.pop(prefix + leaf)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def weight(self) -> Tensor:
        """The dense weight of the current level, in the layout of the original layer."""
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
        """Return (outputs, inputs) of the level."""
        raise NotImplementedError


def level_parameters(module: nn.Module, level: str) -> Iterator[nn.Parameter]:
    """Yield the parameters that a level of the model uses, each once."""
    yield from (one for one in _walk(module, lambda m: m.members(level)) if isinstance(one, nn.Parameter))


def level_modules(module: nn.Module, level: str) -> Iterator[nn.Module]:
    """Yield the modules that a level of the model runs, each once and outermost first."""
    yield from (one for one in _walk(module, lambda m: m.members(level)) if isinstance(one, nn.Module))


def extracted_size(module: nn.Module, level: str) -> int:
    """Count the parameters of the level once it is extracted."""
    members = _walk(module, lambda m: m.extracted_members(level))
    return sum(one.numel() for one in members if isinstance(one, nn.Parameter))


@contextmanager
def exact_arithmetic(model: nn.Module) -> Iterator[None]:
    """Switch autocast and inference mode off, so that new parameters are exact and can be trained."""
    devices = {parameter.device.type for parameter in model.parameters()} - {"meta"}
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _walk(member: Member, members_of: Callable[[NestedModule], Iterator[Member]]) -> dict[Member, None]:
    """Return the member and all inside it, each once, as the keys of a dict."""
    inner: Iterable[Member] = ()
    if isinstance(member, NestedModule):
        inner = members_of(member)
    elif isinstance(member, nn.Module):
        inner = [*member.parameters(recurse=False), *member.children()]
    return {member: None} | {one: None for child in inner for one in _walk(child, members_of)}
