"""What a step is worth, and that nobody is passed over for long, whoever decides."""

from __future__ import annotations

import math

import pytest
import torch

from partialsgd.meters.criteria import Criteria
from partialsgd.methods.alternating import EVEN_SHARE, step_shares, step_value, take_turn


def play(shares_at, levels: tuple[str, ...], steps: int) -> list[str]:
    """`shares_at(t, credits)` is asked before each step."""
    credits: dict[str, float] = {}
    chosen = []
    for t in range(steps):
        level, credits = take_turn(credits, shares_at(t, credits))
        assert sum(credits.values()) == pytest.approx(0, abs=1e-9) and set(credits) == set(levels)
        chosen.append(level)
    return chosen


def longest_wait(chosen: list[str], level: str) -> int:
    """How many steps in a row were others'."""
    waits, since = [0], 0
    for one in chosen:
        since = 0 if one == level else since + 1
        waits.append(since)
    return max(waits)


def test_a_step_is_worth_the_descent_of_lemma_3_relative_to_the_whole_and_to_its_size() -> None:
    draw = torch.Generator().manual_seed(0)
    for size in (0.1, 0.5):
        g, h = torch.randn(2, 40, generator=draw, dtype=torch.float64)
        h = g + 0.5 * h
        inside = torch.arange(40) < 40 * size
        pg, ph = g * inside, h * inside
        alpha = min(1.0, float(pg @ ph / (ph @ ph)))
        assert alpha > 0
        found = Criteria(*(float(v.norm()) for v in (g, pg, pg, ph)), inner=float(pg @ ph))
        assert step_value(found.q, size) == pytest.approx(alpha**2 * float(ph @ ph) / float(g @ g) / size)
    assert step_value(1.0, 1.0) == 1, "the whole network"


def test_a_random_mask_is_worth_as_much_as_the_whole_network() -> None:
    """1/q² = ‖p ⊙ G‖² / ‖G‖² without a perturbation, whose mean is the share of the coordinates."""
    draw = torch.Generator().manual_seed(0)
    g = torch.randn(60, generator=draw)
    found = []
    for _ in range(2000):
        pg = g * (torch.rand(60, generator=draw) < 0.25)
        numbers = (float(g.norm()), *(float(pg.norm()),) * 3)
        found.append(step_value(Criteria(*numbers, inner=numbers[1] ** 2).q, 0.25))
    assert sum(found) / len(found) == pytest.approx(1, abs=0.05)


def test_steps_that_lead_uphill_or_nowhere_are_worth_nothing() -> None:
    apart = Criteria(2.0, 1.0, 1.0, 1.0, inner=-0.5)
    stationary = Criteria(2.0, 0.0, 0.0, 1.0, inner=0.0)
    still = Criteria(2.0, 1.0, 1.0, 0.0, inner=0.0)
    at_a_minimum = Criteria(0.0, 0.0, 0.0, 0.0, inner=0.0)
    assert [step_value(found.q, 0.1) for found in (apart, stationary, still, at_a_minimum)] == [0] * 4


def test_shares_are_one_in_all_and_none_is_below_the_least() -> None:
    for worths in ({"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1e9}, {"a": 1.0, "b": 2.0, "c": 0.0}):
        found = step_shares(worths)
        assert sum(found.values()) == pytest.approx(1) and min(found.values()) >= EVEN_SHARE / len(worths)
    assert step_shares({"a": 1.0, "b": 3.0}) == {"a": 1 / 8 + 3 / 16, "b": 1 / 8 + 9 / 16}


def test_where_no_step_is_worth_anything_the_shares_are_even() -> None:
    """A loss that is flat gives no level a gradient."""
    assert step_shares({"full": 0.0, "core": 0.0}) == {"full": 0.5, "core": 0.5}


def test_equal_shares_are_the_cycle_from_the_largest_down() -> None:
    for levels in (("full", "core"), ("full", "1/2", "1/4"), tuple("abcdefg")):
        even = dict.fromkeys(levels, 1 / len(levels))
        assert play(lambda t, c, even=even: even, levels, 50 * len(levels)) == [*levels] * 50


def test_three_to_one_by_hand() -> None:
    """Owed before each step: (¾, ¼) full, (½, ½) full, being first, (¼, ¾) core, (1, 0) full, and again."""
    found = play(lambda t, c: {"full": 0.75, "core": 0.25}, ("full", "core"), 8)
    assert found == ["full", "full", "core", "full"] * 2


def test_in_the_long_run_each_has_its_share_to_within_a_step_or_so() -> None:
    draw = torch.Generator().manual_seed(1)
    for n in (2, 3, 5):
        raw = torch.rand(n, generator=draw, dtype=torch.float64) + 0.05
        fixed = {str(k): float(v / raw.sum()) for k, v in enumerate(raw)}
        chosen = play(lambda t, c, fixed=fixed: fixed, tuple(fixed), 1000)
        for level, share in fixed.items():
            assert abs(chosen.count(level) - 1000 * share) <= n - 1


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("kind", ["worthless", "random", "against the one who is owed most"])
def test_nobody_is_passed_over_for_long_over_1000_steps(n: int, kind: str) -> None:
    levels = tuple(str(k) for k in range(n))
    draw = torch.Generator().manual_seed(n)

    def adversary(t: int, credits: dict[str, float]) -> dict[str, float]:
        if kind == "random":
            values = torch.rand(n, generator=draw).pow(8).tolist()
            return step_shares(dict(zip(levels, values, strict=True)))
        victim = levels[-1]
        others = [level for level in levels if level != victim]
        ahead = max(others, key=lambda level: credits.get(level, 0.0))
        favoured = others if kind == "worthless" else [ahead]
        return step_shares({level: float(level in favoured) for level in levels})

    chosen = play(adversary, levels, 1000)
    bound = n * (n - 1) / EVEN_SHARE
    for level in levels:
        assert longest_wait(chosen, level) <= bound
    if kind == "worthless":
        assert chosen.count(levels[-1]) == pytest.approx(1000 * EVEN_SHARE / n, abs=n)
        assert math.isclose(longest_wait(chosen, levels[-1]), n / EVEN_SHARE, rel_tol=0.5), (
            "not far below what is promised"
        )
