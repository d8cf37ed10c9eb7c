"""a(x) + b(x): the sum of two layers, or of two networks, of which one is the core (Figure 1)."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, fx, nn

from partialsgd.nested.layers.base import NestedModule, Part
from partialsgd.nested.layers.kinds import Form, form_of, weight_of
from partialsgd.nested.switch import FULL, Switch

Taken: TypeAlias = Sequence[int | str]
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class Sum(NestedModule):
    """The core alone at small levels, and the sum at the others."""

    core_name: str

    def is_sum(self, level: str) -> bool:
        raise NotImplementedError

    def parts(self, level: str) -> Iterator[nn.Module]:
        for name, child in self.named_children():
            if self.is_sum(level) or name == self.core_name:
                yield child

    def describe(self) -> str:
        parts = " + ".join(f"{name} ({type(child).__name__})" for name, child in self.named_children())
        return f"{parts}, core = {self.core_name}"


@final
class SumLayer(Sum):
    """old(x) + new(x)."""

    by = "LayerSum"

    def __init__(
        self, old: nn.Module, new: nn.Module, core: Literal["old", "new"], small: Sequence[str], switch: Switch
    ) -> None:
        super().__init__()
        self.old, self.new = old, new
        self.core_name, self.small, self.switch = core, frozenset(small), switch

    def is_sum(self, level: str) -> bool:
        return level not in self.small

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.switch.level in self.small:
            return getattr(self, self.core_name)(*args, **kwargs)
        return add(self.old(*args, **kwargs), self.new(*args, **kwargs))

    @property
    def weight(self) -> Tensor:
        """For code that reads a layer's weight: of two linear layers the sum is linear too."""
        core: Tensor = getattr(self, self.core_name).weight
        return (
            core
            if self.switch.level in self.small
            else self.old.get_parameter("weight") + self.new.get_parameter("weight")
        )

    @property
    def in_features(self) -> int:
        return int(getattr(self, self.core_name).in_features)

    @property
    def out_features(self) -> int:
        return int(getattr(self, self.core_name).out_features)

    @property
    def bias(self) -> Tensor | None:
        terms = [self.old, self.new] if self.is_sum(self.switch.level) else [getattr(self, self.core_name)]
        return _total([layer._parameters.get("bias") for layer in terms])

    def shipped(self, level: str) -> Iterator[Part]:
        """Two linear layers become one, with a bias if either has one."""
        if not self.is_sum(level) or _shared_form(self.old, self.new) is None:
            yield from self.parts(level)
            return
        yield self.old.get_parameter("weight")
        biases = (layer._parameters["bias"] for layer in (self.old, self.new))
        yield from [bias for bias in biases if bias is not None][:1]

    def plain(self, level: str, memo: dict[int, Any]) -> nn.Module:
        if level in self.small:
            return copy.deepcopy(self.get_submodule(self.core_name), memo)
        return _merged(self.old, self.new) or _sum_of(
            {"old": copy.deepcopy(self.old, memo), "new": copy.deepcopy(self.new, memo)}
        )


@final
class OutputSum(Sum):
    """core(x) + extension(x): two networks whose outputs are added; nested, the core also runs alone.

    Wide-and-deep is `nest(OutputSum(core=deep, extension=wide))`. By default both get all inputs; with
    `inputs=((0,), (1, "mask"))` the core gets the first argument, the extension the second and `mask`.
    """

    by = "OutputSum"

    def __init__(self, core: nn.Module, extension: nn.Module, *, inputs: tuple[Taken, Taken] | None = None) -> None:
        super().__init__()
        self.core, self.extension = core, extension
        self.core_name, self.switch = "core", Switch((FULL,))
        if inputs is not None and (len(inputs) != 2 or any(isinstance(i, (int, str)) for i in inputs)):
            raise ValueError(f"inputs must be two lists, the core's arguments and the extension's; got {inputs!r}")
        self.inputs = inputs

    def is_sum(self, level: str) -> bool:
        return level == FULL

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        theirs, others = self.share(0, args, kwargs)
        y = self.core(*theirs, **others)
        if self.switch.level != FULL:
            return y
        theirs, others = self.share(1, args, kwargs)
        return add(y, self.extension(*theirs, **others))

    def share(self, part: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the core (0) or the extension (1)."""
        if self.inputs is None:
            return args, kwargs
        taken = self.inputs[part]
        if missing := [i for i in taken if (i not in kwargs if isinstance(i, str) else i >= len(args))]:
            raise ValueError(f"the {('core', 'extension')[part]} takes argument {missing[0]!r}, which was not given")
        return tuple(args[i] for i in taken if isinstance(i, int)), {i: kwargs[i] for i in taken if isinstance(i, str)}

    def plain(self, level: str, memo: dict[int, Any]) -> nn.Module:
        names = ("core", "extension") if self.is_sum(level) else ("core",)
        return _sum_of({name: copy.deepcopy(self.get_submodule(name), memo) for name in names}, self.inputs)


def add(a: Any, b: Any) -> Any:
    """a + b without broadcasting: a sum of networks is of outputs of one shape."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        raise TypeError(f"a sum is of tensors, got {type(a).__name__} and {type(b).__name__}")
    if a.shape != b.shape:
        raise ValueError(
            f"the two terms of a sum have shapes {tuple(a.shape)} and {tuple(b.shape)}; they must be equal"
        )
    return a + b


def require_same_signature(old: nn.Module, new: nn.Module, name: str) -> None:
    """Where the inputs of a layer are known, both are tried before anything is changed."""
    form = form_of(old)
    if isinstance(form, str):
        return
    x = weight_of(old, form).new_zeros(2, form.inputs, *[9 * k for k in form.kernel])
    try:
        with torch.no_grad():  # copies, in evaluation: no statistics move, no noise is drawn
            add(copy.deepcopy(old).eval()(x), copy.deepcopy(new).eval()(x))
    except Exception as error:
        raise ValueError(
            f"{name!r} and the layer made for it do not add up on an input of shape {tuple(x.shape)}: {error}"
        ) from error


def _merged(old: nn.Module, new: nn.Module) -> nn.Module | None:
    """One layer with the weights added, where both are linear in the same way."""
    form = _shared_form(old, new)
    if form is None:
        return None
    weight = old.get_parameter("weight") + new.get_parameter("weight")
    return form.plain(form.as_stored(weight), _total([layer._parameters["bias"] for layer in (old, new)]))


def _shared_form(old: nn.Module, new: nn.Module) -> Form | None:
    form = form_of(old)
    return None if isinstance(form, str) or form != form_of(new) else form


def _total(terms: Sequence[Tensor | None]) -> Tensor | None:
    there = [term for term in terms if term is not None]
    return torch.stack(there).sum(0) if there else None


def _sum_of(parts: dict[str, nn.Module], inputs: tuple[Taken, Taken] | None = None) -> nn.Module:
    """A module of torch that adds the outputs of its parts. One part of all inputs stands for itself."""
    if inputs is None and len(parts) == 1:
        return next(iter(parts.values()))
    graph = fx.Graph()
    shares = _shared(graph, list(parts.values())) if inputs is None else _chosen(graph, inputs)
    terms = [graph.call_module(name, args, kwargs) for name, (args, kwargs) in zip(parts, shares, strict=False)]
    graph.output(graph.call_function(operator.add, tuple(terms)) if len(terms) > 1 else terms[0])
    return fx.GraphModule(parts, graph)


def _shared(graph: fx.Graph, parts: Sequence[nn.Module]) -> list[Arguments]:
    """All inputs for each: what the first part must have in order, what it may have by name, to those who know it."""
    known = [inspect.signature(part.forward).parameters for part in parts]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in known[0].values() if p.kind not in variadic]
    needed = [p for p in named if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
    args = tuple(graph.placeholder(p.name) for p in needed) or (graph.placeholder("x"),)
    others = {p.name: graph.placeholder(p.name, default_value=p.default) for p in named if p not in needed}
    return [(args, {name: node for name, node in others.items() if name in theirs}) for theirs in known]


def _chosen(graph: fx.Graph, inputs: tuple[Taken, Taken]) -> list[Arguments]:
    """For each part its own inputs."""
    wanted = [i for taken in inputs for i in taken]
    count = 1 + max((i for i in wanted if isinstance(i, int)), default=-1)
    given: dict[int | str, fx.Node] = {i: graph.placeholder(f"input_{i}") for i in range(count)}
    for i in wanted:
        if isinstance(i, str) and i not in given:
            given[i] = graph.placeholder(i)
    return [
        (tuple(given[i] for i in taken if isinstance(i, int)), {i: given[i] for i in taken if isinstance(i, str)})
        for taken in inputs
    ]
