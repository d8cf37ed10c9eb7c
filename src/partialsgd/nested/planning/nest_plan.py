"""Where a family is built: the model as it is, and what is to be replaced in it. Nothing changes before `commit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from torch import nn

from partialsgd._util import randomness
from partialsgd.nested.layers.axes import Axis
from partialsgd.nested.layers.base import NestedModule
from partialsgd.nested.layers.kinds import Form, form_of
from partialsgd.nested.switch import Switch
from partialsgd.parameters import Parameters, closest, matches


@final
@dataclass
class NestPlan:
    """A plan in the making. `nest` either carries out all of it or raises before it has touched the model."""

    model: nn.Module
    switch: Switch
    seed: int = 0
    replaced: dict[str, NestedModule] = field(default_factory=dict)
    claimed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Layers that could have been nested, with why they were not."""
    narrowed: dict[str, Axis] = field(default_factory=dict)
    """BatchNorm layers whose units are fewer at some level."""
    caller: str = "Width"
    """Who asks for the hidden units, for messages."""

    def __post_init__(self) -> None:
        self.modules = dict(self.model.named_modules())
        self.parameters = Parameters(self.model)

    def match(self, patterns: Sequence[str]) -> list[str]:
        """The modules that a pattern covers; every pattern must cover some."""
        for pattern in patterns:
            if not any(matches(name, pattern) for name in self.modules if name):
                raise ValueError(f"pattern {pattern!r} matches no module; {closest(pattern, self.modules)}")
        return [name for name in self.modules if name and any(matches(name, pattern) for pattern in patterns)]

    def form(self, name: str) -> Form:
        """The form of a layer that is to be nested; a layer that cannot be is refused, with why."""
        reason = self.refusal(name)
        if reason is not None:
            raise ValueError(f"{name!r} cannot be nested: {reason}; exclude it, or name other layers")
        form = form_of(self.modules[name])
        assert isinstance(form, Form)  # else there was a reason
        return form

    def refusal(self, name: str) -> str | None:
        form = form_of(self.modules[name])
        return form if isinstance(form, str) else self.entanglement(name)

    def entanglement(self, name: str) -> str | None:
        """What would break if another module stood in the place of this one."""
        layer = self.modules[name]
        if name and isinstance(self.modules[name.rpartition(".")[0]], nn.MultiheadAttention):
            return "it belongs to nn.MultiheadAttention, which reads its children's weights without calling them"
        if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
            return "it has hooks, which would be lost"
        inside = f"{name}." if name else ""
        for parameter, _ in layer.named_parameters():
            for alias in self.parameters.aliases(inside + parameter):
                if not alias.startswith(inside):
                    return f"its {parameter} is tied to {alias!r}"
        return None

    def claim(self, name: str, by: str, replacement: NestedModule) -> None:
        if name in self.claimed:
            raise ValueError(f"{name!r} is claimed by {self.claimed[name]} and by {by}; a layer is nested in one way")
        self.claimed[name], self.replaced[name] = by, replacement
        replacement.training = self.modules[name].training

    def require_no_hooks(self, name: str) -> None:
        module = self.modules[name]
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            raise ValueError(f"{name!r} cannot be nested: it has hooks, which would be lost; remove them first")

    def require_registered(self) -> None:
        """A layer that is also kept in a list or a dict of its owner would run there as it was."""
        replaced = {self.modules[name]: name for name in self.replaced}
        for owner, module in self.modules.items():
            for attribute, value in vars(module).items():
                if attribute == "_modules":
                    continue
                inside = value.values() if isinstance(value, dict) else value
                for one in inside if isinstance(inside, (list, tuple, set, type({}.values()))) else [inside]:
                    if isinstance(one, nn.Module) and one in replaced:
                        raise ValueError(
                            f"{replaced[one]!r} cannot be nested: it is also kept in the attribute {attribute!r} of "
                            f"{owner or 'the model'!r}, which would go on with the old one; use an nn.ModuleList"
                        )

    def key(self, name: str) -> int:
        return randomness.key(self.seed, "nest", name)

    def commit(self) -> nn.Module:
        """Put the nested modules in the places of the old ones, wherever these are registered."""
        new = {self.modules[name]: replacement for name, replacement in self.replaced.items()}
        for parent in [*self.model.modules(), *new.values()]:
            for child, module in parent._modules.items():
                if module in new and new[module] is not parent:  # a sum keeps the layer that it replaces
                    parent._modules[child] = new[module]
        root = new.get(self.model, self.model)
        for module in root.modules():
            if isinstance(module, NestedModule):
                module.switch = self.switch
        return root
