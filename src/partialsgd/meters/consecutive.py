"""⟨p_t ⊙ g_t, p_{t−1} ⊙ g_{t−1}⟩: whether the mini-batch gradients of consecutive steps agree.

Taking small steps on one mini-batch after the other rewards that they do, and the paper leans on it: a step of the
whole network between two of the core makes the two agree (Section 4).
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from partialsgd.masks import Mask
from partialsgd.meters.criteria import Criteria
from partialsgd.vectors import Vector, inner

_BEFORE = "before/"


@torch.no_grad()
def compare(memory: MutableMapping[str, Any], mask: Mask, gradient: Vector) -> None:
    """Remember this step's masked gradient, and its inner product with the last one's."""
    before = {name: memory.pop(name) for name in list(memory) if name.startswith(_BEFORE)}
    now = {f"{_BEFORE}{name}": _masked(mask, name, g) for name, g in gradient.items() if mask[name] is not False}
    product = sum(float(inner(g, before[name])) for name, g in now.items() if name in before)
    lengths = [math.sqrt(sum(float(inner(g, g)) for g in vector.values())) for vector in (now, before)]
    memory.update(now)
    if before:
        cosine = product / math.prod(lengths) if math.prod(lengths) > 0 else math.nan
        memory.update({"consecutive": product, "consecutive_cosine": cosine})


def told(found: Criteria, memory: MutableMapping[str, Any]) -> Criteria:
    """The measurement with what the steps before it have to say."""
    if "consecutive" not in memory:
        return found
    inner, cosine = memory["consecutive"], memory["consecutive_cosine"]
    return replace(found, consecutive=inner, consecutive_cosine=cosine)


def _masked(mask: Mask, name: str, gradient: Tensor) -> Tensor:
    entry = mask[name]
    return gradient * entry if isinstance(entry, Tensor) else gradient.clone()
