"""Example inputs for a model: like those of its first call, as a user gives them, or as a Hugging Face config asks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from partialsgd._util.snapshots import Buffers, Modes, RandomState

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

_ROWS = 4
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
_SIDES = (32, *range(3, 32), 36, 40, 48, 56, 64, 96, 112, 128, 160, 192, 224, 256, 299)  # of images, to be tried
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
    if config is None or main is None or not hasattr(config, "to_dict"):
        return None
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    taken = inspect.signature(model.forward).parameters
    # A model of text and images has a config for each, and takes both.
    both = {"input_ids", "pixel_values"} <= taken.keys() and hasattr(config, "vision_config")
    shapes: dict[str, tuple[int, ...]] = {}
    if main == "pixel_values" or both:
        shapes["pixel_values"] = _image_shape(getattr(config, "vision_config", config))
    if main == "input_values":
        shapes[main] = (_ROWS, 4000)
    if main == "input_features":
        frames, bins = _field(config, "max_source_positions", 20), _field(config, "num_mel_bins", None)
        features = _field(config, "input_feat_per_channel", _field(config, "feature_size", 16))
        shapes[main] = (_ROWS, 40, features) if bins is None else (_ROWS, bins, 2 * frames)
    inputs = {name: torch.randn(s, generator=generator, device="cpu").to(device) for name, s in shapes.items()}
    if main == "input_ids" or both:
        tokens = _field(getattr(config, "text_config", config), "vocab_size", None)
        if tokens is None:
            return None
        inputs["input_ids"] = torch.randint(tokens, (_ROWS, 7), generator=generator, device="cpu").to(device)
    if not inputs:
        return None
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in taken:
        tokens = _field(config, "vocab_size", 2)
        ids = torch.randint(tokens, (_ROWS, 7), generator=generator, device="cpu").to(device)
        inputs["decoder_input_ids"] = inputs.get("input_ids", ids).flip(1)[:, :5]
    return as_example(inputs)


def _image_shape(config: Any) -> tuple[int, ...]:
    size = _field(config, "image_size", 32)
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    return (_ROWS, _field(config, "num_channels", 3), *sides)


def _field(config: Any, name: str, default: Any) -> Any:
    value = getattr(config, name, None)
    return default if value is None else value


def guessed(model: nn.Module) -> Example | None:
    """Return an example for a model that takes one tensor, or several alike, by trying shapes that fit its layers."""
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is None:
        return None
    parameters = inspect.signature(model.forward).parameters.values()
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    snapshots = RandomState(model), Buffers(model), Modes(model)
    generator = torch.Generator().manual_seed(0)
    try:
        model.eval()
        for shape, tokens in _shapes(model):
            if tokens:
                value = torch.randint(tokens, shape, generator=generator, device="cpu").to(first.device)
            else:
                value = torch.randn(shape, generator=generator, device="cpu").to(first)
            args = (value,) * max(1, len(required))
            try:
                with torch.no_grad():
                    model(*args)
            except Exception:  # whatever the code of the model raises for inputs that do not fit
                continue
            return as_example(args)
    finally:
        for snapshot in snapshots:
            snapshot.restore()
    return None


def _shapes(model: nn.Module) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield shapes of inputs that the first layers of a model may take; with a number of tokens for embeddings."""
    layers = [module for module in model.modules() if list(module.parameters(recurse=False))]
    for layer in dict.fromkeys(layers[:8]):
        if isinstance(layer, nn.Embedding):
            yield (_ROWS, 7), layer.num_embeddings
        elif isinstance(layer, (nn.Conv2d, nn.BatchNorm2d)):
            channels = layer.in_channels if isinstance(layer, nn.Conv2d) else layer.num_features
            yield from (((_ROWS, channels, side, side), 0) for side in _SIDES)
        elif isinstance(layer, (nn.Conv1d, nn.BatchNorm1d)):
            channels = layer.in_channels if isinstance(layer, nn.Conv1d) else layer.num_features
            yield from ((shape, 0) for shape in ((_ROWS, channels), (_ROWS, channels, 16), (_ROWS, channels, 128)))
        else:
            names, weight = ("in_features", "embed_dim", "input_size", "nx"), layer._parameters.get("weight")
            widths = [width for name in names if isinstance(width := getattr(layer, name, None), int)]
            widths += [] if weight is None else [weight.shape[-1]]
            yield from ((shape, 0) for width in widths[:1] for shape in ((_ROWS, width), (_ROWS, 5, width)))


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
