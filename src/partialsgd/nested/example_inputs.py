"""Example inputs for a model: like those of its first call, as a user gives them, or as a Hugging Face config asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

_ROWS = 4
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
_LARGE = 1_000_000  # bytes; of larger batches only a few rows are stored


@final
@dataclass(frozen=True)
class Example:
    """The arguments of one call; of a large batch the first rows."""

    call: Call
    rows: int
    """The length of the first dimension, which is taken for the batch."""
    recorded_on: tuple[torch.dtype, torch.device] | None = None
    """The dtype and device of the model's parameters at the call."""

    def drawn(self, rows: int | None, generator: torch.Generator) -> Call:
        """Return new arguments of the same kind: random floating-point tensors, and random rows of other tensors.

        `rows=None` leaves all shapes as they are.
        """

        def draw(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if rows is None or value.ndim == 0 or len(value) != self.rows:
                return (
                    torch.randn(value.shape, generator=generator, device="cpu").to(value)
                    if value.is_floating_point()
                    else value
                )
            if value.is_floating_point():
                return torch.randn(rows, *value.shape[1:], generator=generator, device="cpu").to(value)
            return value[torch.randint(len(value), (rows,), generator=generator, device="cpu").to(value.device)]

        args, kwargs = tree_map(draw, self.call)
        return args, kwargs

    def moved(self, model: nn.Module) -> Example:
        """Move the example to the model's device, and to its dtype where it had the model's dtype before."""
        now = _dtype_and_device(model)
        if self.recorded_on is None or now is None or now == self.recorded_on:
            return self
        old_dtype, (dtype, device) = self.recorded_on[0], now

        def move(value: Any) -> Any:
            return value.to(device, dtype if value.dtype == old_dtype else None) if isinstance(value, Tensor) else value

        return Example(tree_map(move, self.call), self.rows, now)


def recorded(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Example | None:
    """Return an example of a call, without the values of floating-point tensors, which take no memory then."""

    def without_values(value: Any) -> Any:
        is_floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.detach().new_zeros(()).expand(value.shape) if is_floating else value

    with torch.inference_mode(False):  # the example is used for training too
        args, kwargs = tree_map(without_values, (args, kwargs))
        example = _example_of(args, kwargs)
    return None if example is None else replace(example, recorded_on=_dtype_and_device(model))


def as_example(inputs: Any) -> Example:
    """Return an example from a user's inputs: a tensor, a tuple of arguments or a dict of named ones."""
    example = _example_of(*as_call(inputs))
    if example is None:
        raise ValueError("the example has no tensor: give an input, a tuple of arguments or a dict of named ones")
    return example


def as_call(batch: Any) -> Call:
    """Return a batch as arguments: a mapping by name, a tuple or list by position, anything else as the only one."""
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    if hasattr(batch, "keys"):
        return (), dict(batch)
    return (batch,), {}


def from_config(model: nn.Module) -> Example | None:
    """Return an example for a Hugging Face model, from its config."""
    config, main = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if config is None or main is None:
        return None
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    if main == "pixel_values":
        size = config.image_size
        sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        return as_example(
            {main: torch.randn(_ROWS, config.num_channels, *sides, generator=generator, device="cpu").to(device)}
        )
    ids = torch.randint(config.vocab_size, (_ROWS, 7), generator=generator, device="cpu").to(device)
    both = {main: ids, "decoder_input_ids": ids.flip(1)[:, :5]} if config.is_encoder_decoder else {main: ids}
    return as_example(both)


def tensors_of(outputs: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors among a model's outputs."""
    for leaf in tree_leaves(outputs):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            yield leaf


def is_close(a: Tensor, b: Tensor, *, at_least: float = 0.0) -> bool:
    """True if two outputs are equal to the rounding of their dtype, or to `at_least`."""
    tolerance = max(_TOLERANCE.get(a.dtype, 1e-4), at_least)
    scale = float(a.abs().nan_to_num(posinf=0).max()) if a.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _example_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Example | None:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    lengths = [len(tensor) for tensor in tensors if tensor.ndim > 0]
    if not lengths:
        return None
    is_large = sum(tensor.untyped_storage().nbytes() for tensor in tensors) > _LARGE
    rows = min(lengths[0], _ROWS) if is_large else lengths[0]

    def first_rows(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        is_batch = value.ndim > 0 and len(value) == lengths[0]
        part = (value[:rows] if is_batch else value).detach()
        return part if 0 in part.stride() else part.clone()  # an expanded tensor stays without memory

    return Example(tree_map(first_rows, (args, kwargs)), rows)


def _dtype_and_device(model: nn.Module) -> tuple[torch.dtype, torch.device] | None:
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    return None if first is None else (first.dtype, first.device)
