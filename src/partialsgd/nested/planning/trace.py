"""Following units through a network: a dispatch mode that runs it once and labels tensors by the units they hold.

Each element of an activation belongs to one unit, or to none. A tensor of numbers (see `ties`) has the activation's
shape; views, slices, concatenations and the like are simply applied to it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from partialsgd.nested.planning.ties import NO_UNIT, Reason, Ties, broadcast_shape, varying_dims


@final
@dataclass(frozen=True)
class Weight:
    """A parameter, or a part of it that is selected along dimensions; the numbers of the entries of each dimension.

    A dimension that is not one of the parameter has None.
    """

    name: str
    dims: tuple[Tensor | None, ...]


Label = Tensor | Weight


@final
@dataclass
class Attention:
    """One product of queries and keys: the entries of both, one row for each head."""

    query: Tensor
    key: Tensor
    module: str
    has_values: bool = False


@final
@dataclass
class Trace:
    """Facts about the units of a network, recorded while it runs."""

    model: nn.Module
    ties: Ties = field(default_factory=Ties)
    attentions: list[Attention] = field(default_factory=list)
    branches: set[str] = field(default_factory=set)
    """The modules whose code depends on numbers that the network computes."""
    made: set[int] = field(default_factory=set)
    """The first entry of each dimension whose rows make units, and below of each whose columns take them."""
    taken: set[int] = field(default_factory=set)
    unknown: dict[Reason, None] = field(default_factory=dict)
    """The operations that have no rule."""

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the network and learn from its operations; outputs keep all of their units."""
        from partialsgd.nested.planning.operations import rule_of

        path: list[str] = []
        labels = _Labels(self, path, rule_of)
        for i, leaf in enumerate(tree_leaves((args, kwargs))):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                continue
            labels.mark_computed(leaf)
            if leaf.ndim == 3:  # a residual stream begins
                labels.put(leaf, self.ties.numbers(f"input {i}", 0, leaf.shape[-1]).expand(leaf.shape))
                self.ties.fix(self.ties.numbers(f"input {i}", 0, leaf.shape[-1]), Reason("it is an input", ""))
        with torch.no_grad(), module_path(model, path), labels:
            outputs = model(*args, **kwargs)
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, Tensor) and isinstance(label := labels.get(leaf), Tensor):
                self.ties.fix(label, Reason("it is an output of the model", ""))
        return outputs


@final
class _Labels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Labels the outputs of each operation by its rule."""

    def __init__(self, trace: Trace, path: list[str], rule_of: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self.trace, self.ties, self.path, self._rule_of = trace, trace.ties, path, rule_of
        self._labels: Any = WeakTensorKeyDictionary()
        self._computed: Any = WeakTensorKeyDictionary()
        """The tensors that were computed from parameters or from floating-point inputs."""
        for name, parameter in trace.model.named_parameters():
            self._computed[parameter] = True
            dims = [self.ties.numbers(name, dim, length) for dim, length in enumerate(parameter.shape)]
            if len(dims) == 1 and len(dims[0]) > 1:
                self._labels[parameter] = dims[0]
            elif len(dims) > 1:
                self._labels[parameter] = Weight(name, tuple(dims))
        for name, norm in trace.model.named_modules():
            if isinstance(norm, _BatchNorm) and norm.running_mean is not None:
                numbers = self.ties.numbers(f"{name}.running_mean" if name else "running_mean", 0, norm.num_features)
                self._labels[norm.running_mean] = numbers

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so torch would import its compiler

    def put(self, tensor: Tensor, label: Label) -> None:
        self._labels[tensor] = label

    def mark_computed(self, tensor: Tensor) -> None:
        self._computed[tensor] = True

    def get(self, value: Any) -> Label | None:
        return self._labels.get(value) if isinstance(value, Tensor) else None

    @property
    def module(self) -> str:
        return self.path[-1] if self.path else ""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        outputs = function(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_computed = any(t in self._computed for t in tensors)
        name = function.overloadpacket.__name__
        if is_computed and name in _READS_NUMBERS:
            self.trace.branches.add(self.module)
        if any(t in self._labels for t in tensors):
            reason = Reason(name.rstrip("_"), self.module)
            label = self._rule_of(function)(Call(self, function, args, kwargs, outputs, tensors, reason))
        else:
            label = None
        results = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
        labels = label if isinstance(label, list) else [label] * len(results)
        for i, result in enumerate(results):
            one = labels[i] if i < len(labels) else None
            if is_computed:
                self._computed[result] = True
            if one is None or (isinstance(one, Tensor) and one.shape != result.shape):
                self._labels.pop(result, None)
            else:
                self._labels[result] = one
        return outputs


_READS_NUMBERS = frozenset(("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2"))


@final
@dataclass
class Call:
    """One call of an operation, and what rules need of it."""

    labels: _Labels
    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: Any
    tensors: list[Tensor]
    reason: Reason

    @property
    def ties(self) -> Ties:
        return self.labels.ties

    @property
    def output(self) -> Tensor:
        first: Tensor = next(leaf for leaf in tree_leaves(self.outputs) if isinstance(leaf, Tensor))
        return first

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def label(self, value: Any) -> Label | None:
        return self.labels.get(value)

    def numbers(self, value: Any) -> Tensor | None:
        """Return the units of an activation; the units of a weight that is used as one are fixed."""
        label = self.label(value)
        if isinstance(label, Weight):
            self.fix_weight(label)
            return None
        return label

    def fix_weight(self, weight: Weight) -> None:
        for numbers in weight.dims:
            if numbers is not None:
                self.ties.fix(numbers, self.reason)

    def refuse(self) -> None:
        """Fix every unit that goes into the operation: it has no rule, or is used in a way that has none."""
        for tensor in self.tensors:
            numbers = self.numbers(tensor)
            if numbers is not None:
                self.ties.fix(numbers, self.reason)
                self.labels.trace.unknown[self.reason] = None

    def mapped(self) -> Any:
        """Apply the operation to the numbers in the place of the activations; others have no unit."""

        def numbers_of(value: Any) -> Any:
            if not isinstance(value, Tensor) or not (value.is_floating_point() or value in self.labels._labels):
                return value.cpu() if isinstance(value, Tensor) else value
            numbers = self.numbers(value)
            return torch.zeros((), dtype=torch.long).expand(value.shape) if numbers is None else numbers

        args, kwargs = tree_map(numbers_of, (self.args, dict(self.kwargs)))
        return self.function(*args, **kwargs)

    def mix(self, numbers: Tensor, dims: Sequence[int]) -> Tensor:
        """Tie what an operation mixes along dimensions; return the numbers with these dimensions of length 1."""
        dims = [dim % numbers.ndim for dim in dims]
        if varying := [dim for dim in varying_dims(numbers) if dim in dims]:
            self.ties.tie_along(numbers, varying, self.reason)
        for dim in dims:
            numbers = numbers.narrow(dim, 0, 1)
        return numbers

    def merge(self, a: Tensor | None, b: Tensor | None, shapes: tuple[Any, Any], *, by_attention: bool = False) -> Any:
        """Return the units of an elementwise operation of two operands, of which None has no units."""
        shape = broadcast_shape(*shapes)
        if a is None and b is None:
            return None
        if a is None or b is None:
            numbers, fixed = (b, shapes[0]) if a is None else (a, shapes[1])
            assert numbers is not None
            return self._merge_with_fixed(numbers.expand(shape), fixed)
        a, b = a.expand(shape), b.expand(shape)
        self.ties.tie(a, b, by_attention=by_attention)
        for one, other in ((a, b), (b, a)):
            alone = (one != NO_UNIT) & (other == NO_UNIT)
            if bool(alone.any()):
                self.ties.fix(one[alone], self.reason)
        return a if len(varying_dims(a)) >= len(varying_dims(b)) else b

    def _merge_with_fixed(self, numbers: Tensor, shape: Sequence[int]) -> Tensor:
        """An operand without units that has an entry for each of some units keeps those units, or ties them."""
        offset = numbers.ndim - len(shape)
        covered = {dim + offset for dim, length in enumerate(shape) if length > 1}
        varying = varying_dims(numbers)
        both = [dim for dim in varying if dim in covered]
        if both and len(both) == len(varying):
            self.ties.fix(numbers, self.reason)
        elif both:
            self.ties.tie_along(numbers, both, self.reason)
        return numbers


@contextmanager
def module_path(model: nn.Module, path: list[str]) -> Iterator[None]:
    """Keep the names of the modules that are running in `path`, the innermost last."""

    def push(name: str, *_: Any) -> None:
        path.append(name)

    def pop(*_: Any) -> None:
        if path:
            path.pop()

    with ExitStack() as after:
        for name, module in model.named_modules():
            after.callback(module.register_forward_pre_hook(partial(push, name)).remove)
            after.callback(module.register_forward_hook(pop, always_call=True).remove)
        yield
