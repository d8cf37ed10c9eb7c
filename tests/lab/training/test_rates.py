"""γ_t against the schedulers that are stepped."""

from __future__ import annotations

from functools import partial

import pytest

from partialsgd.lab.training import recipe_tools as rates


@pytest.mark.parametrize(("warm_up", "initial"), [(4, 0.0), (10, 1e-7 / 5e-4), (1, 0.0)])
def test_inverse_sqrt_is_fairseqs(warm_up: int, initial: float) -> None:
    """lr_step and decay_factor as its scheduler has them, set after each update for the next."""
    lr, stepped = initial, []
    for updates in range(1, 60):
        stepped.append(lr)
        lr = initial + updates * (1 - initial) / warm_up if updates < warm_up else warm_up**0.5 * updates**-0.5
    rate = partial(rates.inverse_sqrt, warm_up=warm_up, initial=initial)
    assert [rate(t) for t in range(59)] == pytest.approx(stepped)
    assert max(map(rate, range(1000))) == rate(warm_up) == 1.0


def test_inverse_sqrt_without_warm_up_begins_at_the_top() -> None:
    rate = partial(rates.inverse_sqrt, warm_up=0)
    assert [rate(t) for t in (0, 1, 4, 100)] == [1.0, 1.0, 0.5, 0.1]


def test_cosine_grows_falls_and_ends_at_zero() -> None:
    rate = partial(rates.cosine, total=100, warm_up=3)
    assert [rate(t) for t in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert all(rate(t) > rate(t + 1) for t in range(3, 100))
    assert rates.cosine(0, 100) == 1.0 and rates.cosine(50, 100) == pytest.approx(0.5)
    assert rate(99) > 0 and rate(100) == rate(10_000) == pytest.approx(0.0)
    assert rates.cosine(4, 3, warm_up=5) == pytest.approx(5 / 6)  # a run that ends before it is warm


def test_a_line_goes_up_from_the_first_rate_and_down_to_nothing() -> None:
    rate = partial(rates.linear, total=10, warm_up=4, initial=0.2)
    assert [rate(t) for t in range(12)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0]
    )
    assert [rates.linear(t, 2) for t in range(3)] == [1, 0.5, 0]
    assert rates.linear(1, 2, 4) == 0.25  # a run that ends in its warm-up
