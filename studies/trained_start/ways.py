"""The ways to go on from a trained network, and the two axes along which it is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, final

import partialsgd as ps
from partialsgd import methods
from partialsgd.engine.level_states import StateOf
from partialsgd.method import Method
from partialsgd.nested.layers.low_rank import FullWeight
from partialsgd.nested.specs import Spec

WIDTH, LOW_RANK = "width", "low-rank"
AXES: Mapping[str, Callable[[FullWeight], Spec]] = {
    WIDTH: lambda full: ps.Width(1 / 4, hidden=("blocks.*.up", "blocks.*.down"), order="norm"),
    LOW_RANK: lambda full: ps.LowRank(1 / 8, where=("blocks.*",), init="svd", full=full),
}
"""A quarter of the feed-forward units, the largest first; or an eighth of the ranks of every matrix in the blocks."""

LENGTHS = (400, 100)
"""Steps of a network that is trained alone. The joint run of two networks has about twice as many."""
RATES = (5e-4, 1.5e-3, 4.5e-3, 1.35e-2, 2.7e-2)
SEEDS = (0, 1, 2)


@final
@dataclass(frozen=True)
class Joint:
    """A joint training: its method, and what it does beside."""

    options: Callable[[int], Mapping[str, Any]] = lambda steps: {}
    """The options of `alternating` for a run of so many steps, but for the learning rates of the levels."""
    full_share: float = 0.5
    """The share of the steps that train the full level."""
    taught: float = 0.0
    """The weight of a teacher in the loss of a core step, if the method gives one."""
    state: StateOf = "shared"
    """The optimizer state of parameters that both levels train."""
    apart: float = 0.0
    """The last share of the budget, in which each network is extracted and trained alone."""
    full: FullWeight = "sum"
    """The weights of the full network: W + VU, or weights of its own."""
    full_factor: float = 1.0
    """A factor of the learning rate at the steps of the full level."""
    full_rates: Sequence[float] = ()
    """Rates of the full level that are tried with each rate of the core, in the place of a factor. Two of them make as
    many trials as both networks alone have together."""
    shares_nothing: bool = False
    """The levels have weights of their own from the start, so that neither moves the other's."""
    passes_of_teacher: float = 0.0
    """How many forward passes of the full network a core step takes for its teacher."""
    turns: int = 1
    """How many steps have the same rate: with two, levels that share nothing have the schedules of runs alone."""
    is_screened: bool = False
    """It is tried with one seed."""

    def trials(self, rates: Sequence[float]) -> list[tuple[float, float]]:
        """Return the pairs of rates that are tried: of the core, and of the full level."""
        if self.full_rates:
            return list(product(rates, self.full_rates))
        return [(rate, self.full_factor * rate) for rate in rates]

    def method(self, steps: int, rate: float, full_rate: float) -> Method:
        return methods.alternating(**self.options(steps), lr={"full": full_rate / rate})


_THREE_TO_TWO = ("full", "core", "full", "core", "full")
_EVEN, _MORE_FULL, _EARLY = {"full": 1, "core": 1}, {"full": 7, "core": 3}, 0.6


def _late_skew(steps: int) -> Mapping[str, Any]:
    return {"weights": {0: _EVEN, round(_EARLY * steps): _MORE_FULL}}


def _cached(steps: int) -> Mapping[str, Any]:
    return {"distill": "cached"}


CORE_ALONE, FULL_ALONE = "core alone", "full alone"
JOINTLY = "jointly"
OWN_HALF = "jointly, the full network with weights of its own and half the rate"
APART = "jointly, nothing shared, cached teacher"
OWN_RATES = "jointly, a rate for each level"
KEPT = "the original kept, all FLOPs for the core"
KEPT_TEACHES = "the original kept and teaching, all FLOPs for the core"
RATES_OF_FULL = (RATES[0], RATES[3])
"""Those that validation chose for the full network alone, with 100 and with 400 steps."""
JOINT: Mapping[str, Joint] = {
    JOINTLY: Joint(),
    "jointly, 3 full to 2 core": Joint(lambda steps: {"order": _THREE_TO_TWO}, 0.6),
    "jointly, the full network with weights of its own": Joint(full="own"),
    OWN_HALF: Joint(full="own", full_factor=0.5),
    "jointly, parting at 85 %": Joint(apart=0.15),
    OWN_RATES: Joint(full="own", full_rates=RATES_OF_FULL),
    APART: Joint(_cached, taught=0.5, full="own", full_rates=RATES_OF_FULL, shares_nothing=True, turns=2),
    KEPT: Joint(lambda steps: {"order": ("core",)}, full_share=0.0, full="own", shares_nothing=True),
    KEPT_TEACHES: Joint(
        lambda steps: {"order": ("core",), "distill": True},
        full_share=0.0,
        taught=0.5,
        full="own",
        shares_nothing=True,
        passes_of_teacher=1.0,
    ),
    "jointly, cached teacher": Joint(_cached, taught=0.5, is_screened=True),
    "jointly, late skew": Joint(_late_skew, _EARLY * 0.5 + (1 - _EARLY) * 0.7, is_screened=True),
    "jointly, state for each level": Joint(state="per_level", is_screened=True),
}
OF_LOW_RANK = [
    way for way, joint in JOINT.items() if joint.full == "own" and not (joint.shares_nothing or joint.full_rates)
]
"""Ways that differ from others by low rank only."""


def trainings() -> Iterator[tuple[int, int, str, str]]:
    """Yield the length, the seed, the axis and the way of each training, in order of value."""
    common = [way for way in (CORE_ALONE, FULL_ALONE, *JOINT) if way not in JOINT or not JOINT[way].is_screened]
    for length, seed, axis, way in product(LENGTHS, SEEDS, AXES, common):
        if axis == LOW_RANK or way not in OF_LOW_RANK:
            yield length, seed, axis, way
    for length, axis, way in product(LENGTHS, AXES, (way for way, joint in JOINT.items() if joint.is_screened)):
        yield length, SEEDS[0], axis, way
