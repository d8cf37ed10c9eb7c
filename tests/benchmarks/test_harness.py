"""The numbers that the benchmarks report are computed as the page says, and what is stored is what is shown."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import harness, report
from benchmarks.__main__ import NAMES, SHOWN, chosen
from benchmarks.figures import Figure, Record, stored
from benchmarks.harness import Contestant, Estimate, Times, Track, estimate, ready
from benchmarks.live_bytes import LiveBytes, peak_of


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


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (Estimate(0.9, 0.8, 1.0), "met"),
        (Estimate(0.9, 0.8, 1.1), "met ~"),
        (Estimate(1.1, 0.9, 1.2), "missed ~"),
        (Estimate(1.2, 1.1, 1.3), "missed"),
    ],
)
def test_a_verdict_says_when_another_run_may_say_otherwise(measured: Estimate, verdict: str) -> None:
    assert Figure("x", measured, 1.0).verdict == verdict
    assert Figure("x", measured).verdict == "reported"


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    figure = Figure("a ÷ b", Estimate(1.5, 1.4, 1.6), 2.0, medians={"a": 3.0, "b": 2.0})
    for threads in (1, 2):
        record = Record("speed", [figure], threads, 21, None, "2030-01-02")
        record.save(tmp_path / "results.jsonl")
        assert stored(tmp_path / "results.jsonl")["speed", threads] == record
    assert len(stored(tmp_path / "results.jsonl")) == 2


def test_the_page_shows_what_is_stored() -> None:
    page = report.README.read_text(encoding="utf-8")
    assert page == report.in_place(page, report.tables(SHOWN)), "run python -m benchmarks --write"


def test_words_choose_benchmarks_by_name_and_by_summary() -> None:
    assert chosen([]) == list(NAMES)
    assert chosen(["plain"]) == ["plain"] and chosen(["slow links"]) == ["network"]
    assert chosen(["network"]) == ["network"], "not those whose summary has the word"
    assert chosen(["update", "sam"]) == ["whole_tensor", "element_masks", "two_gradients", "memory"]
    with pytest.raises(SystemExit, match="no benchmark is about 'speed'"):
        chosen(["plain", "speed"])


def test_baselines_run_without_our_package() -> None:
    script = """
import sys
sys.modules["partialsgd"] = None  # importing it is an error now
from benchmarks import baselines
training = baselines.mlp(batch=2, width=8, depth=2)
training.step()
baselines.after_backward(baselines.only_these(training, training.parameters[:1]))()
baselines.many_small_tensors(4).step()
assert all(p.grad is None for p in training.parameters)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_storage_counts_once_and_until_its_last_view_is_gone() -> None:
    with LiveBytes() as counter:
        a = torch.zeros(1000)
        assert counter.live == 4000
        b = a.view(10, 100)[3:5]
        assert counter.live == 4000
        del a
        assert counter.live == 4000
        del b
    assert (counter.live, counter.peak) == (0, 4000)


def test_existing_storages_do_not_count_and_an_enlarged_output_counts_as_large_as_it_became() -> None:
    old, ones = torch.zeros(1000), torch.ones(1000)
    with LiveBytes() as counter:
        old.add_(1).mul_(2)
        torch.neg(old, out=old)
        view = old.view(-1)
        del old, view
        assert (counter.live, counter.peak) == (0, 0)
        torch.add(ones, ones, out=torch.empty(0))
    assert (counter.live, counter.peak) == (0, 4000)


def test_the_peak_is_the_worst_moment_not_the_sum() -> None:
    def run() -> None:
        for _ in range(5):
            torch.zeros(1000)
        a, b = torch.zeros(500), torch.zeros(1000)
        del a, b

    assert peak_of(run) == 6000
    parameters = list(nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10)).parameters())
    assert peak_of(lambda: [p.detach().clone() for p in parameters]) == sum(4 * p.numel() for p in parameters)


def test_gradients_and_what_backward_needs_are_counted_while_they_are_there() -> None:
    layer = nn.Linear(100, 50, bias=False)
    inputs = torch.zeros(10, 100)

    def step() -> None:
        layer(inputs).sum().backward()
        layer.weight.grad = None

    # At the worst moment: the output 10 x 50, the loss and its gradient, and the weight's gradient 50 x 100.
    # The output's gradient is one number, expanded; the matrix product that reads it needs no copy.
    assert 4 * 50 * 100 < peak_of(step) <= 4 * (50 * 100 + 2 * 10 * 50 + 2)
    weight = nn.Parameter(torch.zeros(1000))
    with LiveBytes() as counter:
        (weight * 2).sum().backward()
        assert counter.live == 4000
        weight.grad = None
        assert counter.live == 0
