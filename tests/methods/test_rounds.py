"""When a round ends: all have had as many steps, all were measured, and it is decided before the step."""

from __future__ import annotations

import math

import pytest
from torch import nn

from partialsgd.meters.criteria import Criteria, add_to_summary
from partialsgd.method import Context
from partialsgd.methods.independent_subnets import Rounds
from partialsgd.parameters import Parameters

WORKERS = ("worker 0", "worker 1", "worker 2")


def context(t: int, memory: dict | None = None, measured: dict | None = None) -> Context:
    kept = {} if memory is None else memory
    return Context(t, 0, Parameters(nn.Linear(1, 1)), kept, measured={} if measured is None else measured)


def seen(cosine: float, moved: float = 1.0) -> Criteria:
    return Criteria(2.0, 1.0, 1.0, 1.0, cosine, moved, math.sqrt(2 - 2 * cosine) if math.isfinite(cosine) else math.nan)


def play(rounds: Rounds, cosine_at, steps: int, measure_every: int = 1) -> list[int]:
    """The round of each step, where `cosine_at(t)` is measured."""
    memory: dict = {}
    measured: dict = {}
    found = []
    for t in range(steps):
        now = context(t, memory, measured)
        rounds.remember(now)
        found.append(rounds.of(now)[0])
        began = rounds.of(now)[1]
        if t // len(rounds.workers) % measure_every == 0:
            add_to_summary(measured, rounds.workers[t % len(rounds.workers)], seen(cosine_at(t)))
        kept = dict(memory)
        rounds.remember(now)
        assert memory == kept, "asked again, it remembers what was so before the step"
        assert rounds.of(now) == (found[-1], began), "what a step measures does not move it into another round"
        following = rounds.of(context(t + 1, memory, measured))
        assert rounds.ends(now) == (following[1] == t + 1) == (following[0] == found[-1] + 1)
        assert rounds.starts(now) == (began == t)
    return found


def lengths(found: list[int]) -> list[int]:
    return [found.count(number) for number in range(found[-1])]  # the last may go on


def test_without_a_bound_a_round_is_a_number_of_steps() -> None:
    rounds = Rounds(WORKERS, 4)
    assert [rounds.of(context(t)) for t in (0, 11, 12, 30)] == [(0, 0), (0, 0), (1, 12), (2, 24)]
    memory: dict = {}
    rounds.remember(context(12, memory))
    assert memory == {} and rounds.starts(context(12)) and rounds.ends(context(11)) and not rounds.ends(context(12))


def test_a_bound_that_nothing_exceeds_leaves_the_same_rounds() -> None:
    plain, judged = Rounds(WORKERS, 4), Rounds(WORKERS, 4, math.inf)
    assert play(judged, lambda t: 1.0, 50) == [plain.of(context(t))[0] for t in range(50)]


@pytest.mark.parametrize(("measure_every", "expected"), [(1, [3] * 9), (2, [3, 6, 6, 6, 6]), (5, [3, 12, 3])])
def test_a_round_ends_with_a_whole_turn_in_which_all_were_measured(measure_every: int, expected: list[int]) -> None:
    """A bound that is always exceeded: rounds end at the next measurement, or after 4 steps of each worker."""
    rounds = Rounds(WORKERS, 4, 1.0)
    assert lengths(play(rounds, lambda t: 0.0, 30, measure_every)) == expected


def test_the_mean_cosine_of_this_rounds_measurements_decides() -> None:
    """Bad at t = 7 for one worker is not bad on the mean; from t = 12 it is."""
    rounds = Rounds(WORKERS, 100, 2.0)

    def cosine(t: int) -> float:
        return -0.1 if t == 7 else 0.3 if t >= 12 else 0.9

    # 0.9, 0.9 and −0.1 have the mean 0.567; of the turn that begins at t = 12 it is 0.3
    assert lengths(play(rounds, cosine, 21)) == [15, 3]


@pytest.mark.parametrize("bad", [{3: -1.0}, {3: 0.0, 4: 0.0}], ids=["at its first step", "in the middle"])
def test_a_turn_that_has_begun_is_finished(bad: dict[int, float]) -> None:
    """The mean is too low after t = 3, or after t = 4, and all were measured before; the round ends at t = 6."""
    rounds = Rounds(WORKERS, 100, 2.0)
    assert lengths(play(rounds, lambda t: bad.get(t, 0.9), 12)) == [6]


def test_the_mean_cosine_is_compared_with_the_inverse_of_the_bound() -> None:
    def judged(*cosines: float, bound: float = 2.0) -> bool:
        measured: dict = {}
        for worker, cosine in zip(WORKERS, cosines, strict=True):
            add_to_summary(measured, worker, seen(cosine))
        return not Rounds(WORKERS, 4, bound)._is_aligned(context(9, {}, measured), bound)

    assert not judged(0.5, 0.5, 0.5) and judged(0.5, 0.5, 0.49) and judged(-1.0, -1.0, -1.0)
    assert not judged(1.0, 1.0, 1.0, bound=1.0) and judged(1.0, 1.0, 0.999, bound=1.0)
    assert not judged(1.0, 0.9, -0.39) and judged(math.nan, 1.0, 1.0), "a worker without a gradient ends the round"
