"""The effect of each ATen operation on units: it keeps, mixes or moves them, or makes and takes them by weights.

A rule returns the label of the outputs. An operation without a rule fixes every unit that goes into it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from partialsgd.nested.planning.products import RULES as PRODUCT_RULES
from partialsgd.nested.planning.ties import broadcast_shape, varying_dims
from partialsgd.nested.planning.trace import Call, Weight

Rule = Callable[[Call], Any]


def rule_of(function: Any) -> Rule:
    """Return the rule of an operation."""
    name = function.overloadpacket.__name__
    if name in _RULES:
        return _RULES[name]
    if name.endswith("_") and name[:-1] in _RULES:
        return _RULES[name[:-1]]
    if torch.Tag.pointwise in function.tags:
        return _pointwise
    return _view if function.is_view else _unknown


def _unknown(call: Call) -> None:
    call.refuse()


def _pointwise(call: Call) -> Any:
    operands = [*call.tensors]
    if call.function.overloadpacket.__name__.endswith("_") and call.tensors[0].shape != call.output.shape:
        return call.refuse()
    numbers, shape = call.numbers(operands[0]), operands[0].shape
    for operand in operands[1:]:
        numbers = call.merge(numbers, call.numbers(operand), (shape, operand.shape))
        shape = broadcast_shape(shape, operand.shape)
    if numbers is None or shape != call.output.shape:
        return None
    if _is_part(call.tensors[0]) and call.function._schema.is_mutable:
        call.ties.fix(numbers, call.reason)  # the tensor that it is a part of would keep its old label
    return numbers


def _same(call: Call) -> Any:
    """Keep the label: copies, casts, and numbers that are drawn into a tensor."""
    return call.label(call.tensors[0])


def _like(call: Call) -> Any:
    """A new tensor that is as large as an activation has its units: masks of dropout, zeros to add to."""
    numbers, shape = call.numbers(call.tensors[0]), call.output.shape
    if numbers is None or numbers.ndim != len(shape):
        return None
    for dim, length in enumerate(shape):
        if length == 1:
            numbers = numbers.narrow(dim, 0, 1)
    return numbers if numbers.shape == shape else None


def _view(call: Call) -> Any:
    """Views, concatenations, selections: do the same to the numbers."""
    label = call.label(call.tensors[0])
    if isinstance(label, Weight) and len(call.tensors) == 1:
        return _view_of_weight(call, label)
    try:
        mapped = call.mapped()
    except RuntimeError:
        if call.function.overloadpacket.__name__ not in ("view", "_unsafe_view") or not isinstance(label, Tensor):
            return call.refuse()
        return label.reshape(call.output.shape)  # numbers that are expanded have other strides
    return list(mapped) if isinstance(mapped, (list, tuple)) else mapped


def _index(call: Call) -> Any:
    label = call.label(call.args[0])
    if isinstance(label, Weight):  # of a stack of weights some are selected along the first dimension
        first, *rest = call.args[1]
        if first is None or first.dtype is torch.bool or any(index is not None for index in rest):
            return call.refuse()
        return Weight(label.name, (None,) * first.ndim + label.dims[1:])
    if any(call.label(index) is not None for index in call.args[1]):
        return call.refuse()
    return _view(call)


def _view_of_weight(call: Call, weight: Weight) -> Any:
    """Follow the dimensions of a parameter through selections and permutations."""
    name, args = call.function.overloadpacket.__name__, call.args[1:]
    dims: list[Tensor | None] = list(weight.dims)
    count = len(dims)
    if name == "t":
        dims = dims[::-1]
    elif name == "transpose":
        a, b = args[0] % count, args[1] % count
        dims[a], dims[b] = dims[b], dims[a]
    elif name == "permute":
        dims = [dims[dim % count] for dim in args[0]]
    elif name == "select":
        del dims[args[0] % count]
    elif name == "unbind":
        del dims[call.argument(1, "dim", 0) % count]
        return [Weight(weight.name, tuple(dims)) for _ in call.outputs]
    elif name == "unsqueeze":
        dims.insert(args[0] % (count + 1), None)
    elif name == "squeeze" and all(length > 1 for length in call.output.shape):
        dims = [dim for dim, length in zip(dims, call.tensors[0].shape, strict=True) if length > 1]
    elif name == "slice":
        filled: list[Any] = [*args, *(0, None, None, 1)[len(args) :]]
        dim, start, end, step = filled
        if (numbers := dims[dim % count]) is not None:
            dims[dim % count] = numbers[slice(start, end, step)]
    elif name in ("split", "split_with_sizes"):
        return _split_weight(call, weight)
    elif name == "expand":
        dims = [*(None for _ in range(call.output.ndim - count)), *dims]
    elif name in ("view", "_unsafe_view") and call.output.shape[-2:] == call.tensors[0].shape[-2:]:
        dims = [*(None for _ in range(call.output.ndim - 2)), *dims[-2:]]
    elif name not in ("alias", "detach", "lift_fresh"):
        return call.refuse()
    return Weight(weight.name, tuple(dims))


def _split_weight(call: Call, weight: Weight) -> list[Weight]:
    dim = call.argument(2, "dim", 0) % len(weight.dims)
    parts, start = [], 0
    for output in call.outputs:
        numbers, end = weight.dims[dim], start + output.shape[dim]
        part = None if numbers is None else numbers[start:end]
        parts.append(Weight(weight.name, (*weight.dims[:dim], part, *weight.dims[dim + 1 :])))
        start = end
    return parts


def _along(position: int, *, default: Any = None) -> Rule:
    """The rule of an operation that mixes along one dimension and keeps it: softmax, sums up to each place."""

    def rule(call: Call) -> Any:
        numbers, dim = call.numbers(call.tensors[0]), call.argument(position, "dim", default)
        if numbers is None:
            return None
        mixed = call.mix(numbers, [dim] if numbers.ndim else [])
        return numbers if numbers.shape == call.output.shape else mixed.expand(call.output.shape)

    return rule


def _reduced(position: int) -> Rule:
    """The rule of a sum, mean or the like over some dimensions, or over all."""

    def rule(call: Call) -> Any:
        numbers = call.numbers(call.tensors[0])
        if numbers is None or numbers.ndim == 0:
            return numbers
        dims = call.argument(position, "dim")
        dims = [dims] if isinstance(dims, int) else list(dims or range(numbers.ndim))
        mixed, shape = call.mix(numbers, dims), call.output.shape
        reduced = mixed if len(shape) == mixed.ndim else _without(mixed, dims)
        return [reduced] * 2

    return rule


def _without(numbers: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in sorted((dim % numbers.ndim for dim in dims), reverse=True):
        numbers = numbers.select(dim, 0)
    return numbers


def _over_positions(count: int) -> Rule:
    """The rule of pooling and resizing, which mix along the last dimensions and change their length."""

    def rule(call: Call) -> Any:
        numbers = call.numbers(call.args[0])
        if numbers is None:
            return None
        dims = range(numbers.ndim - count, numbers.ndim)
        return call.mix(numbers, list(dims)).expand(call.output.shape)

    return rule


def _pad(call: Call) -> Any:
    numbers = call.numbers(call.args[0])
    if numbers is None:
        return None
    padded = [numbers.ndim - 1 - i // 2 for i, length in enumerate(call.args[1]) if length]
    if set(padded) & set(varying_dims(numbers)):
        return torch.constant_pad_nd(numbers, call.args[1], 0)
    for dim in padded:
        numbers = numbers.narrow(dim, 0, 1)
    return numbers.expand(call.output.shape)


def _gated(call: Call) -> Any:
    numbers = call.numbers(call.args[0])
    if numbers is None:
        return None
    first, second = numbers.chunk(2, call.argument(1, "dim", -1))
    return call.merge(first, second, (first.shape, second.shape))


def _layer_norm(call: Call) -> Any:
    """Mix the normalised dimensions, and multiply by weight and bias."""
    numbers, shape = call.numbers(call.args[0]), call.args[0].shape
    if numbers is None:
        return None
    count = len(call.args[1])
    call.mix(numbers, list(range(numbers.ndim - count, numbers.ndim)))
    for parameter in call.args[2:4]:
        if isinstance(parameter, Tensor):
            numbers = call.merge(numbers, call.numbers(parameter), (shape, parameter.shape))
    return [numbers]


def _batch_norm(call: Call) -> Any:
    """Normalise each channel: weight, bias and statistics have an entry for each."""
    x = call.args[0]
    numbers = call.numbers(x)
    call.mix(numbers, [dim for dim in range(x.ndim) if dim != 1]) if numbers is not None else None
    for parameter in call.args[1:4]:  # running_mean stands for running_var too
        if isinstance(parameter, Tensor):
            shape = [1, -1] + [1] * (x.ndim - 2)
            own = call.numbers(parameter)
            own = None if own is None else own.view(shape)
            numbers = call.merge(numbers, own, (x.shape, parameter.view(shape).shape))
    return [numbers]


def _copy(call: Call) -> Any:
    target, source = call.args[:2]
    numbers = call.numbers(source)
    if _is_part(target):
        call.refuse()
    return None if numbers is None else numbers.expand(target.shape)


def _embedding(call: Call) -> Any:
    """The width of an embedding stays; its numbers are kept to see where the residual stream goes."""
    weight = call.label(call.args[0])
    if not isinstance(weight, Weight) or weight.dims[1] is None:
        return call.refuse()
    call.ties.fix(weight.dims[1], call.reason)
    return weight.dims[1].expand(call.output.shape)


def _is_part(tensor: Tensor) -> bool:
    """True if the tensor is a view of a part of another."""
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


_GROUPS: dict[tuple[str, ...], Rule] = {
    ("hardswish", "_prelu_kernel", "hardsigmoid", "rrelu_with_noise", "log_sigmoid_forward"): _pointwise,
    ("clone", "_to_copy", "detach", "alias", "lift_fresh", "contiguous", "tril", "triu"): _same,
    ("bernoulli", "uniform", "normal", "fill", "zero", "random", "exponential"): _same,
    ("native_dropout", "_fused_dropout"): lambda call: [_same(call)] * 2,
    ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"): _like,
    ("new_empty", "new_zeros", "new_ones", "new_full"): _like,
    ("cat", "stack", "repeat", "index_select", "flip", "roll", "gather", "_unsafe_view"): _view,
    ("index",): _index,
    ("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp"): _along(1),
    ("topk",): _along(2, default=-1),
    ("sort",): _along(1, default=-1),
    ("mean", "sum", "amax", "amin", "logsumexp", "var", "std", "var_mean", "prod"): _reduced(1),
    ("max", "min", "all", "any"): _reduced(1),
    ("linalg_vector_norm",): _reduced(2),
    ("avg_pool1d", "max_pool1d", "upsample_linear1d", "upsample_nearest1d"): _over_positions(1),
    ("reflection_pad1d", "replication_pad1d"): _over_positions(1),
    ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d"): _over_positions(2),
    ("upsample_bilinear2d", "upsample_nearest2d", "upsample_bicubic2d"): _over_positions(2),
    ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_nearest_exact2d"): _over_positions(2),
    ("reflection_pad2d", "replication_pad2d", "grid_sampler_2d"): _over_positions(2),
    ("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d"): _over_positions(3),
    ("constant_pad_nd",): _pad,
    ("glu",): _gated,
    ("native_layer_norm", "_fused_rms_norm"): _layer_norm,
    ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm"): _batch_norm,
    ("copy",): _copy,
    ("embedding",): _embedding,
}
_RULES = {**PRODUCT_RULES, **{name: rule for names, rule in _GROUPS.items() for name in names}}
