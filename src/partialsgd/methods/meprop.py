"""g ≈ ∇f(x) by a truncated backward pass, p = the rows that received gradient: meProp (Sun et al. 2017; Section 3.3).

Of the gradient that arrives at a linear layer's outputs only the k largest entries go on, to its weight and to the
layers below, so g is not the gradient of f at any point. `top_k` is what the paper makes of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from torch import nn

from partialsgd import masks
from partialsgd._util.bitwise_select import over_rows
from partialsgd.masks import Entry, Mask
from partialsgd.method import Context, Method, everything
from partialsgd.methods._shared.hooks import hooks_of, new_owner
from partialsgd.methods._shared.settings import require_count
from partialsgd.methods._shared.truncated import Truncation
from partialsgd.parameters import unwrap

_log = logging.getLogger("partialsgd")


def meprop(k: int = 30, *, mask: bool = True) -> Method:
    """meProp: only the k largest entries of each linear layer's output gradient go on in the backward pass.

    In every `nn.Linear` but the last, the same k outputs for the whole batch, so that the backward pass is one of small
    matrices. Gradients of biases are whole. Rows of weights that received no gradient stay outside the mask; with
    `mask=False` every coordinate moves, as in the authors' code, where an optimizer with momentum moves those rows too.
    """
    require_count("k", k)
    name = f"meprop(k={k}, unified=True, mask={mask})"  # as in checkpoints from when there was a choice

    def build(model: nn.Module) -> Method:
        layers = [layer for layer in _linear_layers(model)[:-1] if layer.out_features > k]
        if not layers:
            _log.warning(
                "meprop: no nn.Linear but the last has more than %d outputs, so nothing is truncated: plain training", k
            )
            return Method(name=name)
        owner = new_owner()
        for layer in layers:
            # First of all hooks: what others add to the output is not the layer's.
            layer.register_forward_hook(Truncation(k, owner), prepend=True, with_kwargs=True)

        def rows(context: Context) -> Mask:
            entries: dict[str, Entry] = {}
            weights = {p: name for name, p in context.parameters.items()}
            for layer, truncation in hooks_of(context.parameters, Truncation, owner):
                weight = layer._parameters.get("weight")  # none where it is computed from others, which then move
                if weight is not None:
                    g = context.gradient.get(weights[weight])
                    entries[weights[weight]] = False if g is None else over_rows(truncation.rows(g), g.shape)
            return masks.from_tensors(context.parameters, entries, rest=True)

        def truncated(context: Context) -> AbstractContextManager[None]:
            return _all_on([truncation for _, truncation in hooks_of(context.parameters, Truncation, owner)])

        return Method(mask=rows if mask else everything, within=truncated, name=name)

    return Method(build=build, name=name)


@contextmanager
def _all_on(truncations: Sequence[Truncation]) -> Iterator[None]:
    with ExitStack() as stack:
        for truncation in truncations:
            stack.enter_context(truncation.on())
        yield


def _linear_layers(model: nn.Module) -> list[nn.Linear]:
    layers = [module for module in unwrap(model).modules() if type(module) is nn.Linear]
    if not layers:
        raise ValueError(f"{type(unwrap(model)).__name__} has no nn.Linear whose backward could be truncated")
    return layers
