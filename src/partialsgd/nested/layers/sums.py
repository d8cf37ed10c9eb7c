"""a(x) + b(x): the sum of two layers or of two networks, of which one is the core (Figure 1)."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, fx, nn

from partialsgd.nested.example_inputs import Call
from partialsgd.nested.layers.base import Member, NestedModule
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.switch import FULL, Switch

ArgumentKeys: TypeAlias = Sequence[int | str]
"""Positions of positional arguments and names of keyword arguments."""


class _Sum(NestedModule):
    """A module with two terms: small levels run the core alone, the others add both."""

    terms: tuple[str, str]
    core_name: str
    inputs: tuple[ArgumentKeys, ArgumentKeys] | None = None
    """The arguments of each term; None if both get all."""

    def is_sum(self, level: str) -> bool:
        raise NotImplementedError

    def terms_at(self, level: str) -> tuple[str, ...]:
        return self.terms if self.is_sum(level) else (self.core_name,)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = []
        for term in self.terms_at(self.switch.level):
            own_args, own_kwargs = self.arguments_of(term, args, kwargs)
            outputs.append(getattr(self, term)(*own_args, **own_kwargs))
        return add(*outputs) if len(outputs) > 1 else outputs[0]

    def arguments_of(self, term: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Return the arguments that one of the two terms gets."""
        if self.inputs is None:
            return args, kwargs
        keys = self.inputs[self.terms.index(term)]
        if missing := [key for key in keys if (key not in kwargs if isinstance(key, str) else key >= len(args))]:
            raise ValueError(f"the {term} takes argument {missing[0]!r}, which was not given")
        by_name = {key: kwargs[key] for key in keys if isinstance(key, str)}
        return tuple(args[key] for key in keys if isinstance(key, int)), by_name

    def members(self, level: str) -> Iterator[Member]:
        yield from (self.get_submodule(term) for term in self.terms_at(level))

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        copies = {term: copy.deepcopy(self.get_submodule(term), memo) for term in self.terms_at(level)}
        return _sum_module(copies, self.inputs)

    def describe(self) -> str:
        terms = " + ".join(f"{term} ({type(getattr(self, term)).__name__})" for term in self.terms)
        return f"{terms}, core = {self.core_name}"


@final
class SumLayer(_Sum):
    """old(x) + new(x). Two linear layers of one class and size are extracted as one layer of that class."""

    spec_name = "LayerSum"
    terms = ("old", "new")

    def __init__(
        self, old: nn.Module, new: nn.Module, core: Literal["old", "new"], core_levels: Sequence[str], switch: Switch
    ) -> None:
        super().__init__()
        self.old, self.new = old, new
        self.core_name, self.core_levels, self.switch = core, frozenset(core_levels), switch

    def is_sum(self, level: str) -> bool:
        return level not in self.core_levels

    @property
    def weight(self) -> Tensor:
        """The weight that code may read from a layer without calling it."""
        first, *rest = (getattr(self, term).weight for term in self.terms_at(self.switch.level))
        total: Tensor = sum(rest, start=first)
        return total

    @property
    def bias(self) -> Tensor | None:
        return _summed_bias(*(getattr(self, term) for term in self.terms_at(self.switch.level)))

    @property
    def in_features(self) -> int:
        return int(getattr(self, self.core_name).in_features)

    @property
    def out_features(self) -> int:
        return int(getattr(self, self.core_name).out_features)

    def extracted_members(self, level: str) -> Iterator[Member]:
        if self._merged_linear_map(level) is None:
            yield from self.members(level)
            return
        yield self.old.get_parameter("weight")
        yield from [bias for layer in (self.old, self.new) if (bias := layer._parameters["bias"]) is not None][:1]

    def extract(self, level: str, memo: dict[int, Any]) -> nn.Module:
        linear = self._merged_linear_map(level)
        if linear is None:
            return super().extract(level, memo)
        weight = self.old.get_parameter("weight") + self.new.get_parameter("weight")
        return linear.build(linear.stored(weight), _summed_bias(self.old, self.new))

    def _merged_linear_map(self, level: str) -> LinearMap | None:
        """Return the linear map of both terms if the extracted level adds them to one layer."""
        linear = linear_map_of(self.old)
        if not self.is_sum(level) or isinstance(linear, str) or linear != linear_map_of(self.new):
            return None
        return linear


@final
class OutputSum(_Sum):
    """core(x) + extension(x): two networks whose outputs are added; nested, the core also runs alone.

    Wide-and-deep is `nest(OutputSum(core=deep, extension=wide))`. By default both networks get all inputs; with
    `inputs=((0,), (1, "mask"))` the core gets the first argument, the extension the second one and `mask`.
    """

    spec_name = "OutputSum"
    terms = ("core", "extension")
    core_name = "core"

    def __init__(
        self, core: nn.Module, extension: nn.Module, *, inputs: tuple[ArgumentKeys, ArgumentKeys] | None = None
    ) -> None:
        super().__init__()
        self.core, self.extension, self.switch = core, extension, Switch((FULL,))
        if inputs is not None and (len(inputs) != 2 or any(isinstance(keys, (int, str)) for keys in inputs)):
            raise ValueError(f"inputs must be two lists, the core's arguments and the extension's; got {inputs!r}")
        self.inputs = inputs

    def is_sum(self, level: str) -> bool:
        return level == FULL


def add(a: Any, b: Any) -> Any:
    """Add two tensors of one shape; nothing is broadcast."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        raise TypeError(f"the two terms of a sum must be tensors, got {type(a).__name__} and {type(b).__name__}")
    if a.shape != b.shape:
        raise ValueError(
            f"the two terms of a sum have shapes {tuple(a.shape)} and {tuple(b.shape)}; they must be equal"
        )
    return a + b


def require_same_signature(old: nn.Module, new: nn.Module, name: str) -> None:
    """Try both layers on an input, if its shape is known, before anything is changed."""
    linear = linear_map_of(old)
    if isinstance(linear, str):
        return
    x = linear.weight_of(old).new_zeros(2, linear.inputs, *[9 * k for k in linear.kernel])
    try:
        with torch.no_grad():  # on copies in evaluation mode: no statistics move and no random number is drawn
            add(copy.deepcopy(old).eval()(x), copy.deepcopy(new).eval()(x))
    except Exception as error:
        raise ValueError(
            f"{name!r} and the layer made for it cannot be added on an input of shape {tuple(x.shape)}: {error}"
        ) from error


def _summed_bias(*layers: nn.Module) -> Tensor | None:
    biases: list[Tensor] = [bias for layer in layers if (bias := layer._parameters.get("bias")) is not None]
    return torch.stack(biases).sum(0) if biases else None


def _sum_module(terms: dict[str, nn.Module], inputs: tuple[ArgumentKeys, ArgumentKeys] | None = None) -> nn.Module:
    """Build a torch.fx module that adds the outputs of its terms; one term that takes all inputs stays itself."""
    if inputs is None and len(terms) == 1:
        return next(iter(terms.values()))
    graph = fx.Graph()
    calls = _same_arguments(graph, list(terms.values())) if inputs is None else _own_arguments(graph, inputs)
    outputs = [graph.call_module(name, args, kwargs) for name, (args, kwargs) in zip(terms, calls, strict=False)]
    graph.output(graph.call_function(operator.add, tuple(outputs)) if len(outputs) > 1 else outputs[0])
    return fx.GraphModule(terms, graph)


def _same_arguments(graph: fx.Graph, terms: Sequence[nn.Module]) -> list[Call]:
    """Give each term the required arguments of the first by position, and its optional ones by name if known there."""
    signatures = [inspect.signature(term.forward).parameters for term in terms]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in signatures[0].values() if p.kind not in variadic]
    required = [p for p in named if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
    args = tuple(graph.placeholder(p.name) for p in required) or (graph.placeholder("x"),)
    optional = {p.name: graph.placeholder(p.name, default_value=p.default) for p in named if p not in required}
    return [(args, {name: node for name, node in optional.items() if name in names}) for names in signatures]


def _own_arguments(graph: fx.Graph, inputs: tuple[ArgumentKeys, ArgumentKeys]) -> list[Call]:
    """Give each term the arguments that `inputs` lists for it."""
    keys = [key for term_keys in inputs for key in term_keys]
    count = 1 + max((key for key in keys if isinstance(key, int)), default=-1)
    nodes: dict[int | str, fx.Node] = {i: graph.placeholder(f"input_{i}") for i in range(count)}
    for key in keys:
        if isinstance(key, str) and key not in nodes:
            nodes[key] = graph.placeholder(key)
    return [
        (tuple(nodes[key] for key in own if isinstance(key, int)), {k: nodes[k] for k in own if isinstance(k, str)})
        for own in inputs
    ]
