"""The ways to go on from a trained network, and the two axes along which it is cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import partialsgd as ps
from partialsgd import methods
from partialsgd.engine.level_states import StateOf
from partialsgd.method import Method
from partialsgd.nested.specs import Spec

AXES: Mapping[str, Callable[[], Spec]] = {
    "width": lambda: ps.Width(1 / 4, hidden=("blocks.*.up", "blocks.*.down"), order="norm"),
    "low-rank": lambda: ps.LowRank(1 / 8, where=("blocks.*",), init="svd"),
}
"""A quarter of the feed-forward units, the largest first; or an eighth of the ranks of every matrix in the blocks."""

LENGTHS = (100, 400)
"""Steps of a network that is trained alone. The joint run of two networks has about twice as many."""
RATES = (1.5e-4, 5e-4, 1.5e-3, 4.5e-3, 1.35e-2)
SEEDS = (0, 1, 2)


@final
@dataclass(frozen=True)
class Joint:
    """A joint training: its method for a run of so many steps, and what it does beside."""

    method: Callable[[int], Method] = lambda steps: methods.alternating()
    full_share: float = 0.5
    """The share of the steps that train the full level."""
    taught: float = 0.0
    """The weight of a teacher in the loss of a core step, if the method gives one."""
    state: StateOf = "shared"
    """The optimizer state of parameters that both levels train."""
    apart: float = 0.0
    """The last share of the budget, in which each network is extracted and trained alone."""


_THREE_TO_TWO = ("full", "core", "full", "core", "full")
_EVEN, _MORE_FULL, _EARLY = {"full": 1, "core": 1}, {"full": 7, "core": 3}, 0.6


def _late_skew(steps: int) -> Method:
    return methods.alternating(weights={0: _EVEN, round(_EARLY * steps): _MORE_FULL})


def _cached(steps: int) -> Method:
    return methods.alternating(distill="cached")


CORE_ALONE, FULL_ALONE = "core alone", "full alone"
JOINT: Mapping[str, Joint] = {
    "jointly": Joint(),
    "jointly, 3 full to 2 core": Joint(lambda steps: methods.alternating(order=_THREE_TO_TWO), 0.6),
    "jointly, cached teacher": Joint(_cached, taught=0.5),
    "jointly, parting at 85 %": Joint(apart=0.15),
    "jointly, cached teacher, parting at 85 %": Joint(_cached, taught=0.5, apart=0.15),
    "jointly, full at a third of the rate": Joint(lambda steps: methods.alternating(lr={"full": 1 / 3})),
    "jointly, state for each level": Joint(state="per_level"),
    "jointly, late skew": Joint(_late_skew, _EARLY * 0.5 + (1 - _EARLY) * 0.7),
}
WAYS = (CORE_ALONE, FULL_ALONE, *JOINT)
