"""Products: weights that make units of their rows and take them by their columns, and products of two activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from partialsgd.nested.planning.ties import NO_UNIT, broadcast_shape, unique, varying_dims
from partialsgd.nested.planning.trace import Attention, Call, Weight


def _take(call: Call, x: Any, dim: int, columns: Tensor | None) -> None:
    """Tie the columns of a weight to the units that lie along one dimension of an activation."""
    numbers = call.numbers(x)
    if columns is None:
        if numbers is not None:
            call.ties.fix(numbers, call.reason)
        return
    if numbers is None:
        call.ties.fix(columns, call.reason)
        return
    if any(other != dim % numbers.ndim for other in varying_dims(numbers)):
        call.ties.fix(numbers, call.reason)  # the units lie along another dimension than the weight takes
        call.ties.fix(columns, call.reason)
        numbers = numbers.movedim(dim, -1)
        call.ties.tie(numbers, columns.expand(numbers.shape))
        return
    taken = numbers.movedim(dim, -1).reshape(-1, numbers.shape[dim])[0] if numbers.numel() else columns
    call.ties.tie(taken, columns)
    call.labels.trace.taken.add(int(columns[0]))
    call.ties.fix(columns[taken == NO_UNIT], call.reason)


def _make(call: Call, rows: Tensor | None, dim: int, shape: Any) -> Tensor | None:
    """Return the numbers of outputs whose units are the rows of a weight."""
    if rows is None or len(rows) < 2:  # one output alone is not a choice of units
        if rows is not None:
            call.ties.fix(rows, call.reason)
        return None
    call.labels.trace.made.add(int(rows[0]))
    return rows.view([-1 if i == dim % len(shape) else 1 for i in range(len(shape))]).expand(shape)


def _linear(call: Call) -> Any:
    x, weight, bias = call.args[0], call.label(call.args[1]), call.argument(2, "bias")
    if not isinstance(weight, Weight):
        return call.refuse()
    _take(call, x, -1, weight.dims[1])
    return _plus(call, _make(call, weight.dims[0], -1, call.output.shape), bias)


def _plus(call: Call, numbers: Tensor | None, bias: Any) -> Any:
    if not isinstance(bias, Tensor):
        return numbers
    return call.merge(numbers, call.numbers(bias), (call.output.shape, bias.shape))


def _multiply(call: Call, a: Tensor, b: Tensor) -> Any:
    """The rule of mm and bmm: (…, m, k) times (…, k, n)."""
    first, second = call.label(a), call.label(b)
    shape = call.output.shape
    if isinstance(first, Weight) and isinstance(second, Weight):
        return call.refuse()
    if isinstance(second, Weight):
        _take(call, a, -1, second.dims[-2])
        return _make(call, second.dims[-1], -1, shape)
    if isinstance(first, Weight):
        _take(call, b, -2, first.dims[-1])
        return _make(call, first.dims[-2], -2, shape)
    if first is None and second is None:
        return None
    return _multiply_activations(call, a, b, first, second)


def _multiply_activations(call: Call, a: Tensor, b: Tensor, first: Tensor | None, second: Tensor | None) -> Any:
    is_summed = [x is not None and x.ndim + dim in varying_dims(x) for x, dim in ((first, -1), (second, -2))]
    shape = call.output.shape
    if any(is_summed):
        if first is None or second is None:  # a sum over units with factors that do not know of them
            return call.refuse()
        query, key = call.mix(first, [-2]), call.mix(second, [-1])
        return _scores(call, query, key.transpose(-1, -2)).expand(shape)
    left = None if first is None else first.narrow(-1, 0, 1)
    right = None if second is None else second.narrow(-2, 0, 1)
    shapes = ((*a.shape[:-1], 1), (*b.shape[:-2], 1, b.shape[-1]))
    if left is not None and right is not None:
        return _weighted_values(call, left, right, shapes)
    return call.merge(left, right, shapes)


def _scores(call: Call, query: Tensor, key: Tensor) -> Tensor:
    """The product of queries and keys, of shape (…, heads, 1, width): one unit for each head, if anything."""
    shape = broadcast_shape(query.shape, key.shape)
    query, key = query.expand(shape), key.expand(shape)
    call.ties.tie(query, key, by_attention=True)
    for numbers in (query, key):
        call.ties.tie_along(numbers, [numbers.ndim - 1], call.reason, by_attention=True)
    call.labels.trace.attentions.append(Attention(_heads(query), _heads(key), call.labels.module))
    return query.narrow(-1, 0, 1)


def _heads(numbers: Tensor) -> Tensor:
    """Return the numbers of each head once, in the order of the heads."""
    rows = numbers.reshape(-1, numbers.shape[-1])
    return torch.stack([row for i, row in enumerate(rows) if not (rows[:i] == row).all(1).any()])


def _weighted_values(call: Call, scores: Tensor, values: Tensor, shapes: Any) -> Any:
    """The product of attention weights and values: a head is one unit with its queries and keys."""
    for attention in call.labels.trace.attentions:
        if torch.isin(unique(scores), attention.query[:, 0]).all():
            attention.has_values = True
    return call.merge(scores, values, shapes, by_attention=True)


def _attend(call: Call) -> Any:
    """The rule of the fused attention: (…, heads, positions, width) for query, key and value."""
    query, key, value = (call.numbers(x) for x in call.args[:3])
    if query is None and key is None and value is None:
        return None
    if query is None or key is None or value is None or query.ndim < 3:
        return call.refuse()
    heads = query.shape[-3]
    key, value = (x.repeat_interleave(heads // x.shape[-3], -3) if x.shape[-3] != heads else x for x in (key, value))
    scores = _scores(call, call.mix(query, [-2]), call.mix(key, [-2]))
    values = call.mix(value, [-2])
    mask = call.argument(3, "attn_mask", call.kwargs.get("attn_bias"))
    if isinstance(mask, Tensor):
        added = call.numbers(mask)
        added = None if added is None else call.mix(added, [-1, -2])
        scores = call.merge(scores, added, (scores.shape, (*mask.shape[:-2], 1, 1)))
    out = _weighted_values(call, scores, values, (scores.shape, values.shape))
    return [out.expand(call.output.shape)]


def _convolution(call: Call) -> Any:
    x, kernel, bias = call.args[:3]
    weight, (transposed, groups) = call.label(kernel), (call.args[6], call.args[8])
    if not isinstance(weight, Weight):
        return call.refuse()
    columns, rows = (weight.dims[0], weight.dims[1]) if transposed else (weight.dims[1], weight.dims[0])
    if groups == 1:
        _take(call, x, 1, columns)
    elif transposed or rows is None or columns is None:
        return call.refuse()
    elif groups == x.shape[1]:
        rows = _depthwise(call, x, rows)
    else:
        _take(call, x, 1, columns.repeat(groups))
        grid = rows.view(groups, -1)
        call.ties.tie(grid, grid[:1].expand_as(grid))  # the groups must stay equally large
    return _plus_channel(call, _make(call, rows, 1, call.output.shape), bias)


def _depthwise(call: Call, x: Tensor, rows: Tensor) -> Tensor:
    """Each row takes one channel: it is the same unit."""
    numbers = call.numbers(x)
    if numbers is None:
        call.ties.fix(rows, call.reason)
    else:
        taken = call.mix(numbers, [dim for dim in range(numbers.ndim) if dim != 1]).flatten()
        taken = taken.repeat_interleave(len(rows) // len(taken))
        call.ties.tie(taken, rows)
        call.ties.fix(rows[taken == NO_UNIT], call.reason)
    return rows


def _plus_channel(call: Call, numbers: Tensor | None, bias: Any) -> Any:
    if not isinstance(bias, Tensor):
        return numbers
    shape = [1, -1] + [1] * (call.output.ndim - 2)
    own = call.numbers(bias)
    return call.merge(numbers, None if own is None else own.view(shape), (call.output.shape, bias.view(shape).shape))


RULES: dict[str, Callable[[Call], Any]] = {
    "linear": _linear,
    **dict.fromkeys(("mm", "bmm", "_grouped_mm"), lambda call: _multiply(call, call.args[0], call.args[1])),
    **dict.fromkeys(
        ("addmm", "baddbmm"),
        lambda call: _plus(call, _multiply(call, call.args[1], call.args[2]), call.args[0]),
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math",
            "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
        ),
        _attend,
    ),
    "convolution": _convolution,
}  # fmt: skip
