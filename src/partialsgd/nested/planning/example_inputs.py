"""Fresh inputs for a network: like those it was called with, or as its configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_ROWS = 4
_LARGE = 1_000_000  # bytes; of larger batches only a few rows are kept


@final
@dataclass(frozen=True)
class Example:
    """The arguments of one call, of a large one a few rows."""

    call: Call
    rows: int
    """The length of the first dimension, which is taken for the batch."""
    of: tuple[torch.dtype, torch.device] | None = None
    """What the network's parameters were when it was recorded."""

    def drawn(self, rows: int | None, generator: torch.Generator) -> Call:
        """New arguments: floating-point tensors drawn anew, of others rows drawn from the example.

        Without a number of rows, of the shapes that the example has.
        """

        def fresh(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if rows is None or value.ndim == 0 or len(value) != self.rows:
                return torch.randn(value.shape, generator=generator).to(value) if value.is_floating_point() else value
            if value.is_floating_point():
                return torch.randn(rows, *value.shape[1:], generator=generator).to(value)
            return value[torch.randint(len(value), (rows,), generator=generator).to(value.device)]

        args, kwargs = tree_map(fresh, self.call)
        return args, kwargs

    def moved(self, model: nn.Module) -> Example:
        """On the device of the model, and in its dtype where it had the model's before."""
        now = _kind(model)
        if self.of is None or now is None or now == self.of:
            return self
        was, (dtype, device) = self.of[0], now

        def move(value: Any) -> Any:
            return value.to(device, dtype if value.dtype == was else None) if isinstance(value, Tensor) else value

        return Example(tree_map(move, self.call), self.rows, now)


def recorded(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Example | None:
    """An example without the numbers of floating-point inputs, which are drawn anew anyway."""

    def hollow(value: Any) -> Any:
        is_floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.detach().new_zeros(()).expand(value.shape) if is_floating else value

    with torch.inference_mode(False):  # what is kept will be used for training too
        args, kwargs = tree_map(hollow, (args, kwargs))
        example = example_of(args, kwargs)
    return None if example is None else replace(example, of=_kind(model))


def _kind(model: nn.Module) -> tuple[torch.dtype, torch.device] | None:
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    return None if first is None else (first.dtype, first.device)


def example_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Example | None:
    """What is worth keeping of a call; None if it has no tensors."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    lengths = [len(tensor) for tensor in tensors if tensor.ndim > 0]
    if not lengths:
        return None
    is_large = sum(tensor.untyped_storage().nbytes() for tensor in tensors) > _LARGE
    few = min(lengths[0], _ROWS) if is_large else lengths[0]

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        batched = value.ndim > 0 and len(value) == lengths[0]
        part = (value[:few] if batched else value).detach()
        return part if 0 in part.stride() else part.clone()  # what is hollow stays so

    return Example(tree_map(cut, (args, kwargs)), few)


def as_example(given: Any) -> Example:
    """An example as a user gives it: a tensor, a tuple of arguments or a dict of named ones."""
    args, kwargs = as_call(given)
    example = example_of(args, kwargs)
    if example is None:
        raise ValueError("the example has no tensor: give an input, a tuple of arguments or a dict of named ones")
    return example


def as_call(given: Any) -> Call:
    """A batch as arguments: a mapping by name, a tuple or list in order, anything else as the one argument."""
    if isinstance(given, (tuple, list)):
        return tuple(given), {}
    if hasattr(given, "keys"):
        return (), dict(given)
    return (given,), {}


def from_config(model: nn.Module) -> Example | None:
    """Inputs for a Hugging Face model, by its configuration."""
    config, main = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if config is None or main is None:
        return None
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    if main == "pixel_values":
        size = config.image_size
        sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        return as_example({main: torch.randn(_ROWS, config.num_channels, *sides, generator=generator).to(device)})
    ids = torch.randint(config.vocab_size, (_ROWS, 7), generator=generator).to(device)
    both = {main: ids, "decoder_input_ids": ids.flip(1)[:, :5]} if config.is_encoder_decoder else {main: ids}
    return as_example(both)


def tensors_of(outputs: Any) -> Iterator[Tensor]:
    """The floating-point tensors among a network's outputs."""
    for leaf in tree_leaves(outputs):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            yield leaf
