"""p = top-k of |e + g|, δx = 0: a compressed gradient, with memory e of what was not sent (Stich et al. 2018).

The memory stands outside Algorithm 1. Without it p is the top-k of |g|, or k coordinates drawn at random.
A top-k mask depends on the stochastic gradient that it masks, which the theorem does not cover (E2).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from partialsgd import masks
from partialsgd._util import randomness, shards
from partialsgd.masks import Mask
from partialsgd.method import Context, Method
from partialsgd.methods._shared.pruning import Scope
from partialsgd.methods._shared.settings import require_one_of, require_share
from partialsgd.methods.top_k import largest
from partialsgd.vectors import Vector

Kind = Literal["top-k", "random-k"]


def compressed_gradient(
    keep: float = 0.01, *, kind: Kind = "top-k", feedback: bool = True, scope: Scope = "global"
) -> Method:
    """Compressed gradient: k coordinates are sent; what is left is added to the next gradient.

    k is the share `keep` of the coordinates that have a gradient, at least one, over the network or in each layer
    (a module's own parameters together): the largest of gradient + memory, or with `kind="random-k"` drawn anew at
    each step. With `feedback=False` what is not sent is lost.
    """
    require_share("keep", keep)
    require_one_of("scope", scope, Scope)
    require_one_of("kind", kind, Kind)
    name = f"compressed_gradient(keep={keep}, kind={kind}, feedback={feedback}, scope={scope})"
    if keep == 1:
        return Method(name=name)

    def mask(context: Context) -> Mask:
        total = _with_unsent(context, context.gradient)
        scores = total if kind == "top-k" else {name: _scores(context, name, value) for name, value in total.items()}
        return masks.from_tensors(context.parameters, largest(scores, keep, scope))

    return Method(mask=mask, correct=_remember, name=name) if feedback else Method(mask=mask, name=name)


@torch.no_grad()
def _with_unsent(context: Context, gradient: Vector) -> Vector:
    """Return e + g; without feedback e is never in memory."""
    total: dict[str, Tensor] = {}
    for name, g in gradient.items():
        unsent = context.memory.get(f"unsent.{name}")
        total[name] = g.detach() + unsent.to(g.device) if isinstance(unsent, Tensor) else g.detach()
    return Vector(total)


@torch.no_grad()
def _remember(context: Context, gradient: Vector) -> Vector:
    """Send p ⊙ (e + g); e ← (1 − p) ⊙ (e + g). A parameter without a gradient keeps its memory."""
    total = _with_unsent(context, gradient)
    for name, value in total.items():
        sent = context.mask[name]
        unsent = value.masked_fill(sent, 0) if isinstance(sent, Tensor) else value * (not sent)
        context.memory[f"unsent.{name}"] = unsent
    return total


def drawn(context: Context, name: str, count: int, device: torch.device, first: int = 0) -> Tensor:
    """Draw a number for each of so many coordinates of a parameter, from the `first` one on; the largest are sent."""
    scores = torch.empty(count, dtype=torch.int64, device=device)
    for start, words in randomness.words(context.key(name), count, device, first):
        scores[start : start + len(words)] = words
    return scores.bitwise_and_(_LARGEST >> 1)


def _scores(context: Context, name: str, value: Tensor) -> Tensor:
    """Draw a score for each coordinate; a value that is not finite gets the largest, so that it is sent and seen."""

    def draw(shape: torch.Size, first: int) -> Tensor:
        return drawn(context, name, shape.numel(), value.device, first).view(shape)

    scores = shards.drawn(value, draw)
    shards.local(scores).masked_fill_(~shards.local(value).isfinite(), _LARGEST)
    return scores


_LARGEST = torch.iinfo(torch.int64).max
