"""g ≈ ∇f(x) by a truncated backward pass, p = the rows that received gradient: meProp (Sun et al. 2017; Section 3.3).

Of the gradient that arrives at a linear layer's outputs only the k largest entries go on, to its weight and to the
layers below, so g is not the gradient of f at any point. `top_k` is what the paper makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from partialsgd import masks
from partialsgd.masks import Entry, Mask
from partialsgd.methods.truncated import Truncation
from partialsgd.names import Parameters, unwrap
from partialsgd.rules import Context, Method
from partialsgd.selects import over_rows


def meprop(model: nn.Module, k: int = 30, *, unified: bool = True, mask: bool = True) -> Method:
    """meProp: only the k largest entries of each linear layer's output gradient go on in the backward pass.

    In every `nn.Linear` but the last. `unified=True` chooses the same k outputs for the whole batch, so that the
    backward pass is one of small matrices; otherwise each example has its own, which saves nothing here. Gradients
    of biases are whole. Rows of weights that received no gradient stay outside the mask; with `mask=False` every
    coordinate moves, as in the authors' code, where an optimizer with momentum moves those rows too.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}; for a whole backward pass use methods.plain()")
    truncations: dict[nn.Linear, Truncation] = {}
    for layer in _linear_layers(model)[:-1]:
        if layer.out_features > k:
            truncations[layer] = Truncation(k, unified)
            layer.register_forward_hook(truncations[layer].hook)
    name = f"meprop(k={k}, unified={unified}, mask={mask})"
    if not truncations:
        return Method(name=name)

    def rows(context: Context) -> Mask:
        entries: dict[str, Entry] = {}
        for weight, truncation in _by_name(context.parameters, truncations).items():
            g = context.gradient.get(weight)
            entries[weight] = False if g is None else over_rows(truncation.rows(g), g.shape)
        return masks.from_tensors(context.parameters, entries, rest=True)

    @contextmanager
    def truncated(context: Context) -> Iterator[None]:
        with ExitStack() as stack:
            for truncation in truncations.values():
                stack.enter_context(truncation.on())
            yield

    return Method(mask=rows, within=truncated, name=name) if mask else Method(within=truncated, name=name)


def _linear_layers(model: nn.Module) -> list[nn.Linear]:
    layers = [module for module in unwrap(model).modules() if type(module) is nn.Linear]
    if not layers:
        raise ValueError(f"{type(unwrap(model)).__name__} has no nn.Linear whose backward could be truncated")
    return layers


def _by_name(parameters: Parameters, truncations: dict[nn.Linear, Truncation]) -> dict[str, Truncation]:
    """Tied weights receive gradient elsewhere too; what `rows` finds covers it."""
    of = {layer.weight: truncation for layer, truncation in truncations.items()}
    return parameters.once(
        ("meprop", id(truncations)), lambda: {name: of[p] for name, p in parameters.items() if p in of}
    )
