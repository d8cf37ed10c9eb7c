"""Which channels are coupled: a trace of the network tells, through normalisation, activations and residual sums."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from partialsgd._util.snapshots import Modes
from partialsgd.nested.layers.kinds import Form, form_of
from partialsgd.nested.planning.groups import Group, Producer
from partialsgd.nested.planning.nest_plan import NestPlan

_FIXED = -1  # the group of what must not be narrowed: the network's inputs and outputs

_KEEP_CHANNELS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Identity, _DropoutNd, nn.Flatten),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample),
)
_KEEP_FUNCTIONS = (
    *(F.relu, torch.relu, F.gelu, F.silu, F.leaky_relu, F.elu, F.tanh, torch.tanh, F.sigmoid, torch.sigmoid),
    *(F.dropout, F.dropout2d, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.interpolate),
)
_KEEP_METHODS = ("relu", "tanh", "sigmoid", "contiguous", "clone", "detach")
_OVER_PLACES = {"mean": ((2, 3), (-2, -1), (-1, -2), [2, 3], [-2, -1]), "flatten": (1,)}
_SUMS = (operator.add, operator.iadd, torch.add)


def channel_groups(site: NestPlan) -> list[Group]:
    """The hidden channels and units of a network that torch.fx can trace."""
    modes = Modes(site.model)
    try:
        found = [_groups_in(site, site.model.train(training)) for training in (True, False)]
    finally:
        modes.restore()
    if found[0] != found[1]:
        raise ValueError(
            f"{site.caller} does not understand {type(site.model).__name__}, which runs other layers in training than "
            'in evaluation; say the hidden layers by patterns: hidden=("*.fc1", "*.fc2")'
        )
    return found[0]


def _groups_in(site: NestPlan, model: nn.Module) -> list[Group]:
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"{site.caller} does not understand {type(model).__name__}: no Transformer layer of a known structure, and "
            f'it cannot be traced ({error}); say the hidden layers by patterns: hidden=("*.fc1", "*.fc2")'
        ) from error
    trace = _Trace(site)
    for node in graph.nodes:
        trace.visit(node)
    return trace.groups()


@final
@dataclass
class _Trace:
    site: NestPlan
    of: dict[fx.Node, int] = field(default_factory=dict)
    parent: list[int] = field(default_factory=list)
    producers: dict[int, list[str]] = field(default_factory=dict)
    consumers: dict[int, list[str]] = field(default_factory=dict)
    norms: dict[int, list[str]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)

    def visit(self, node: fx.Node) -> None:
        given = [self.root(self.of[arg]) for arg in node.all_input_nodes]
        if node.op in ("placeholder", "get_attr"):
            self.of[node] = _FIXED
        elif node.op == "output":
            for group in given:
                self.join(group, _FIXED)
        elif node.op == "call_module":
            self.of[node] = self._module(str(node.target), given)
        elif node.op == "call_method" and node.target == "size":
            self.of[node] = _FIXED
        elif node.target in _SUMS and given:
            self.of[node] = self._sum(given)
        elif _keeps_channels(node):
            self.of[node] = given[0]
        elif all(group == _FIXED for group in given):
            self.of[node] = _FIXED
        else:
            raise ValueError(self._not_understood(f"{_name(node.target)} (at {node.name!r})"))

    def groups(self) -> list[Group]:
        roots = dict.fromkeys(self.root(group) for group in self.producers)
        found = [self._group(root) for root in roots if root != _FIXED]
        if not found:
            raise ValueError(f"{type(self.site.model).__name__} has no hidden units that could be fewer")
        return found

    def _group(self, root: int) -> Group:
        makers, takers = self._members(self.producers, root), self._members(self.consumers, root)
        forms = [form for name in makers if isinstance(form := form_of(self.site.modules[name]), Form)]
        units = forms[0].outputs
        if any(form.outputs != units for form in forms):
            raise ValueError(self._not_understood(f"the sum of the outputs of {', '.join(map(repr, makers))}"))
        for name in takers:
            form = form_of(self.site.modules[name])
            assert isinstance(form, Form)  # only such layers were noted
            # A flattened image has its places within a channel, a flattened sequence its units within a place.
            if form.inputs != units and (form.inputs % units or any(f.kind != "conv2d" for f in forms)):
                raise ValueError(self._not_understood(f"{name!r}, which takes {form.inputs} inputs of {units} units"))
        norms = self._members(self.norms, root)
        for name in norms:
            if self.site.modules[name].num_features != units:
                raise ValueError(self._not_understood(f"{name!r}, which normalises more than {units} units"))
        return Group(units, tuple(Producer(name) for name in makers), takers, norms)

    def root(self, group: int) -> int:
        while group != _FIXED and self.parent[group] != group:
            group = self.parent[group]
        return group

    def join(self, a: int, b: int) -> int:
        a, b = self.root(a), self.root(b)
        if a == _FIXED or b == _FIXED:
            a, b = _FIXED, max(a, b)
        if b != _FIXED:
            self.parent[b] = a
        return a

    def _module(self, name: str, given: list[int]) -> int:
        module = self.site.modules[name]
        form = form_of(module)
        if isinstance(module, (nn.Linear, nn.Conv2d)) and isinstance(form, str):
            raise ValueError(self._not_understood(f"{name!r}: {form}"))
        if isinstance(form, Form):
            if name in self.called:
                raise ValueError(self._not_understood(f"{name!r}, which runs twice"))
            self.called.add(name)
            self.consumers.setdefault(given[0], []).append(name)
            self.parent.append(len(self.parent))
            self.producers[len(self.parent) - 1] = [name]
            return len(self.parent) - 1
        if isinstance(module, _BatchNorm):
            if name in self.called:
                raise ValueError(self._not_understood(f"{name!r}, which runs twice"))
            self.called.add(name)
            self.norms.setdefault(given[0], []).append(name)
            return given[0]
        cuts_channels = isinstance(module, nn.Flatten) and module.start_dim != 1
        if (isinstance(module, _KEEP_CHANNELS) and not cuts_channels) or all(group == _FIXED for group in given):
            return given[0] if given else _FIXED
        raise ValueError(self._not_understood(f"{name!r}, a {type(module).__name__}"))

    def _sum(self, given: list[int]) -> int:
        total = given[0]
        for other in given[1:]:
            total = self.join(total, other)
        return total

    def _members(self, table: dict[int, list[str]], root: int) -> tuple[str, ...]:
        return tuple(name for group, names in table.items() if self.root(group) == root for name in names)

    def _not_understood(self, what: str) -> str:
        return (
            f"{self.site.caller} does not understand {what}: it cannot tell which hidden units go together; "
            'say the hidden layers by patterns: hidden=("*.fc1", "*.fc2")'
        )


def _keeps_channels(node: fx.Node) -> bool:
    if node.op == "call_function" and node.target in _KEEP_FUNCTIONS:
        return True
    if node.op == "call_method" and node.target in _KEEP_METHODS:
        return True
    # Means over places and flattening keep channels apart if they begin after the channels.
    given = [*node.args[1:], *node.kwargs.values()]
    return bool(given) and given[0] in _OVER_PLACES.get(_name(node.target), ())


def _name(target: Any) -> str:
    return getattr(target, "__name__", str(target))
