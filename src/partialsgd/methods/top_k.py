"""p = top-k of |g|, δx = 0: meProp as the paper reads it (Sun et al. 2017; Section 3.3, erratum E1).

The mask depends on the stochastic gradient that it masks, which the theorem does not cover (E2).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import Tensor

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.methods.settings import require_share
from partialsgd.rules import Context, Method

Scope = Literal["global", "layer"]


def top_k(keep: float = 0.1, *, scope: Scope = "global") -> Method:
    """Top-k: only the coordinates with the largest gradient move.

    k is the share `keep` of all coordinates, at least one, over the network or in each layer (a module's
    own parameters together). Exactly k are chosen, ties as `torch.topk` breaks them; c_norm is at most √(d / k).
    """
    require_share("keep", keep)
    if scope not in get_args(Scope):
        raise ValueError(f"scope must be one of {', '.join(get_args(Scope))}; got {scope!r}")

    def mask(context: Context) -> Mask:
        if keep == 1:
            return masks.everything(context.parameters)
        chosen: dict[str, Tensor] = {}
        for names in _groups(context.gradient, scope):
            chosen |= _largest({name: context.gradient[name] for name in names}, keep)
        return masks.from_tensors(context.parameters, chosen, rest=False)

    return Method(mask=mask, name=f"top_k(keep={keep}, scope={scope})")


def _groups(names: Iterable[str], scope: Scope) -> Iterable[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0] if scope == "layer" else "", []).append(name)
    return groups.values()


def _largest(gradient: dict[str, Tensor], keep: float) -> dict[str, Tensor]:
    magnitude = torch.cat([g.detach().abs().reshape(-1) for g in gradient.values()])
    k = min(max(1, round(keep * len(magnitude))), len(magnitude))
    inside = torch.zeros(len(magnitude), dtype=torch.bool, device=magnitude.device)
    inside[magnitude.topk(k, sorted=False).indices] = True
    parts = torch.split(inside, [g.numel() for g in gradient.values()])
    return {name: part.view(g.shape) for (name, g), part in zip(gradient.items(), parts, strict=True)}
