"""`NestPlan`: which modules of a model are to be replaced, and by what. Nothing changes before `carry_out`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from torch import nn

from partialsgd.nested.example_inputs import Example
from partialsgd.nested.layers.axes import AnyAxis
from partialsgd.nested.layers.base import NestedModule
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.switch import Switch
from partialsgd.parameters import Parameters, closest, matches

if TYPE_CHECKING:
    from partialsgd.nested.planning.groups import HiddenUnits


@final
@dataclass
class NestPlan:
    """A plan that `nest` fills; it carries out all of it, or raises before the model has changed."""

    model: nn.Module
    switch: Switch
    seed: int = 0
    replacements: dict[str, NestedModule] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """The layers that could have been nested, each with the reason why it is not."""
    norm_axes: dict[str, AnyAxis] = field(default_factory=dict)
    """The BatchNorm modules that have fewer units at some level."""
    caller: str = "Width"
    """The spec or method that asks for hidden units, for error messages."""
    example: Example | None = None
    """Inputs on which the model is run to find its hidden units."""
    hidden_units: HiddenUnits | None = None
    """The hidden units, once they were looked for."""

    def __post_init__(self) -> None:
        self.modules = dict(self.model.named_modules())
        self.parameters = Parameters(self.model)

    def match(self, patterns: Sequence[str]) -> list[str]:
        """Return the modules that any pattern matches; a pattern that matches none is an error."""
        for pattern in patterns:
            if not any(matches(name, pattern) for name in self.modules if name):
                raise ValueError(f"pattern {pattern!r} matches no module; {closest(pattern, self.modules)}")
        return [name for name in self.modules if name and any(matches(name, pattern) for pattern in patterns)]

    def linear_map(self, name: str) -> LinearMap:
        """Return the linear map of a layer that is to be nested, or raise if it cannot be."""
        reason = self.why_not_nestable(name)
        if reason is not None:
            raise ValueError(f"{name!r} cannot be nested: {reason}; exclude it, or name other layers")
        linear = linear_map_of(self.modules[name])
        assert isinstance(linear, LinearMap)  # otherwise there was a reason
        return linear

    def why_not_nestable(self, name: str) -> str | None:
        linear = linear_map_of(self.modules[name])
        return linear if isinstance(linear, str) else self.why_not_replaceable(name)

    def why_not_replaceable(self, name: str) -> str | None:
        """Return what would break if another module took the place of this one, or None."""
        layer = self.modules[name]
        if name and isinstance(self.modules[name.rpartition(".")[0]], nn.MultiheadAttention):
            return "it belongs to nn.MultiheadAttention, which reads its children's weights without calling them"
        if _has_hooks(layer):
            return "it has hooks, which would be lost"
        inside = f"{name}." if name else ""
        for parameter, _ in layer.named_parameters():
            for alias in self.parameters.aliases(inside + parameter):
                if not alias.startswith(inside):
                    return f"its {parameter} is tied to {alias!r}"
        return None

    def require_no_hooks(self, name: str) -> None:
        if _has_hooks(self.modules[name]):
            raise ValueError(f"{name!r} cannot be nested: it has hooks, which would be lost; remove them first")

    def require_registered(self) -> None:
        """Refuse a layer that its owner also holds in a plain attribute, list or dict: the old one would run there."""
        replaced = {self.modules[name]: name for name in self.replacements}
        for owner, module in self.modules.items():
            for attribute, value in vars(module).items():
                for held in _elements(value) if attribute != "_modules" else ():
                    if isinstance(held, nn.Module) and held in replaced:
                        raise ValueError(
                            f"{replaced[held]!r} cannot be nested: the attribute {attribute!r} of "
                            f"{owner or 'the model'!r} holds it too and would keep the old one; use an nn.ModuleList"
                        )

    def replace(self, name: str, replacement: NestedModule) -> None:
        """Plan to replace one module; a module can be replaced once."""
        if name in self.replacements:
            specs = f"{self.replacements[name].spec_name} and {replacement.spec_name}"
            raise ValueError(f"{name!r} is matched by {specs}; a layer can be nested by one spec only")
        self.replacements[name] = replacement
        replacement.training = self.modules[name].training

    def carry_out(self) -> nn.Module:
        """Put the nested modules where the old ones are registered, and return the root of the model."""
        new = {self.modules[name]: replacement for name, replacement in self.replacements.items()}
        for parent in [*self.model.modules(), *new.values()]:
            for child, module in parent._modules.items():
                if module in new and new[module] is not parent:  # a sum contains the layer that it replaces
                    parent._modules[child] = new[module]
        root = new.get(self.model, self.model)
        for module in root.modules():
            if isinstance(module, NestedModule):
                module.switch = self.switch
        return root

    @contextmanager
    def carried_out(self) -> Iterator[nn.Module]:
        """Carry the plan out for a while; afterwards the model has its own modules again."""
        parents = [*self.model.modules()]
        before = [(parent, child, module) for parent in parents for child, module in parent._modules.items()]
        try:
            yield self.carry_out()
        finally:
            for parent, child, module in before:
                parent._modules[child] = module


def _has_hooks(layer: nn.Module) -> bool:
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks)


def _elements(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, set)) else [value]
