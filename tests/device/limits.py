"""How often a step may make the host wait for the device."""

from __future__ import annotations

from typing import Any

from partialsgd import CriteriaMeter
from tests.methods.laws import NAME_OF

STEPS = 6
FIRST_COUNTED = 2
"""The steps before make the optimizer's state and try out what the optimizer can do; they happen once in a training."""

LIMITS: dict[str, int] = {
    # Everything that a step needs to know is on the device, or on the host from the beginning.
    "plain": 0,
    "alternating": 0,
    "slimmable": 0,
    "sandwich": 0,
    "only": 0,
    "dropout": 0,
    "random_mask": 0,
    "block_coordinate": 0,
    "layerwise": 0,
    "freezing": 0,
    "independent_subnets": 0,
    "sam": 0,
    "extragradient": 0,
    # The mask depends on the numbers, and the host must know which tensors move at all.
    "top_k": 1,
    "compressed_gradient": 1,
    "meprop": 1,
    "dynamic_pruning": 1,
    "dynamic_sparsity": 1,
    "ac_dc": 1,
    "compose": 1,  # of top_k, in the main case
    # A criterion decides: it is read when it is measured.
    "guarded": 1,
    "scaled_by_alpha": 1,
    "alternating_criterion": 1,
    "freezing_criterion": 1,
    "independent_subnets_criterion": 1,
    # Other cases than a method's main one.
    "compose_freezing": 0,
}
"""The most reads that a step may make, by case or by method."""

OPTIONS: dict[str, tuple[str, dict[str, Any], int]] = {
    "nonfinite='skip'": ("dropout", {"nonfinite": "skip"}, 0),
    "nonfinite='ignore'": ("dropout", {"nonfinite": "ignore"}, 0),
    "clip_norm": ("dropout", {"clip_norm": 0.1}, 1),
    "outside='decay'": ("dropout", {"outside": "decay"}, 0),
    "outside='reset'": ("block_coordinate", {"outside": "reset"}, 0),
    "a meter at every step": ("dropout", {"meter": CriteriaMeter(1)}, 1),
    "a meter that waits for its turn": ("dropout", {"meter": CriteriaMeter(1000)}, 0),
}
"""Options of PartialSGD, each with the method that it is tried with and the most reads that a step may make."""


def limit_of(case: str) -> int:
    """The limit of a case, or of its method."""
    return LIMITS[case] if case in LIMITS else LIMITS[NAME_OF[case]]
