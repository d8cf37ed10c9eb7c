"""The numbers that the benchmarks report are computed as the page says."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest
import torch
from benchmarks.harness import Contestant, Estimate, Seconds, Times, Track, estimate, ready

from benchmarks import harness


class Clock:
    """Time that passes only when someone works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(harness, "perf_counter", lambda: self.now)

    def work(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds

        return run


def test_the_interval_of_fifteen_is_from_the_fourth_to_the_twelfth() -> None:
    samples = [float(i) for i in range(1, 16)]
    random.Random(0).shuffle(samples)
    assert estimate(samples) == Estimate(8.0, 4.0, 12.0)


@pytest.mark.parametrize("n", [15, 21, 40])
def test_the_interval_holds_the_true_median_in_95_of_100_runs(n: int) -> None:
    draw = random.Random(n)
    held = 0
    for _ in range(2000):
        found = estimate([draw.expovariate(1.0) for _ in range(n)])
        held += found.low <= 0.6931 <= found.high  # the median of the exponential distribution: log 2
    assert 0.94 < held / 2000 < 0.995


def test_few_samples_give_the_widest_interval_there_is() -> None:
    assert estimate([3.0, 1.0, 2.0]) == Estimate(2.0, 1.0, 3.0)


def test_a_ratio_is_taken_within_a_round_so_a_slow_hour_cancels() -> None:
    times = Times({"ours": [2.0, 20.0, 200.0], "theirs": [1.0, 10.0, 100.0]})
    assert times.ratio("ours", "theirs") == Estimate(2.0, 2.0, 2.0)
    assert times.difference("ours", "theirs") == Estimate(10.0, 1.0, 100.0)


def test_preparation_and_warm_up_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    calls = 0

    def prepared() -> Callable[[], None]:
        nonlocal calls
        calls += 1
        clock.work(1000.0)()
        return clock.work(3.0 if calls > 4 else 500.0)  # the first four are the two warm-up rounds

    contestants: dict[str, Contestant] = {"ours": prepared, "theirs": ready(clock.work(2.0))}
    times = Track(rounds=15, warm_up=2).race("", contestants, repeat=2)
    assert times.seconds == {"ours": [3.0] * 15, "theirs": [2.0] * 15}
    assert calls == 2 * (2 + 15)


def test_a_run_may_time_a_part_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def run() -> Seconds:
        clock.work(100.0)()
        return Seconds(3.0)

    times = Track(rounds=2, warm_up=0).race("", {"part": ready(run)}, repeat=1)
    assert times.seconds == {"part": [3.0, 3.0]}


def test_contestants_take_turns() -> None:
    order: list[str] = []
    contestants = {name: ready(lambda name=name: order.append(name)) for name in "abc"}
    Track(rounds=15, warm_up=0).race("", contestants, repeat=2)
    turns = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert len(turns) == 30 and all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert {turn[0] for turn in turns} == {"a", "b", "c"}


def test_threads_and_garbage_collection_are_as_before_even_after_an_error() -> None:
    seen: list[tuple[int, bool]] = []

    def fail() -> None:
        seen.append((torch.get_num_threads(), gc.isenabled()))
        raise ArithmeticError

    before = torch.get_num_threads(), gc.isenabled()
    with pytest.raises(ArithmeticError):
        Track(threads=1).race("", {"fails": ready(fail)})
    assert seen == [(1, False)]
    assert (torch.get_num_threads(), gc.isenabled()) == before
