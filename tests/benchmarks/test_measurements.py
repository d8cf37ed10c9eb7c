"""The benchmarks of criteria, meProp, freezing and block-coordinate race and count what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import partialsgd as ps
from benchmarks import baselines, block_coordinate, freezing, meprop, ours
from benchmarks.criteria import IN_A_ROW, NEVER, amortised, runner
from benchmarks.harness import Times, Track


def test_a_period_has_one_measured_step() -> None:
    times = Times({"without": [2.0, 4.0, 1.0], "counting": [2.0, 4.0, 2.0], "measured": [4.0, 12.0, 4.0]})
    assert amortised(times, 1).value == 3.0  # the middle one of 2, 3 and 4
    assert amortised(times, 4).value == pytest.approx((3 * 4 + 12) / (4 * 4))
    assert amortised(times, 10**9).value == pytest.approx(1.0)


def test_a_contestant_makes_as_many_passes_as_it_says() -> None:
    passes = 0
    plain = baselines.layers(8, 16, 4, batch=4)

    def forward() -> Tensor:
        nonlocal passes
        passes += 1
        return plain.forward()

    def counted(meter: ps.CriteriaMeter | None, steps: int) -> list[int]:
        nonlocal passes
        run, found = runner(replace(plain, forward=forward), ps.methods.dropout(0.9), meter, steps), []
        for _ in range(2):
            passes = 0
            run()
            found.append(passes)
        return found

    assert counted(None, 3) == [3, 3]
    assert counted(ps.CriteriaMeter(1), 3) == [6, 6]
    assert counted(ps.CriteriaMeter(IN_A_ROW), IN_A_ROW) == [IN_A_ROW + 1] * 2
    assert counted(ps.CriteriaMeter(NEVER), 3) == [4, 3]


QUICK = Track(rounds=1, warm_up=0, threads=1)


def saved_for_backward(training: baselines.Training, step: Any) -> int:
    """The storages that autograd saves, each once, without parameters."""
    known = {p.untyped_storage().data_ptr() for p in training.parameters}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step(training.closure)
    return sum(saved.values())


def test_activations_are_those_that_autograd_saves() -> None:
    width, batch = 200, 64
    training = baselines.mlp(batch=batch, width=width, depth=freezing.LAYERS)
    frozen = ours.with_method(training, ps.methods.freezing(start=0.0, stages=freezing.HALVES), checked=False)
    frozen.step(training.closure)  # the first pass is not cut
    given = 4 * batch * width + 8 * batch  # the batch, which autograd saves too, and its labels
    whole = freezing.held_for_backward(training, lambda closure: closure())
    assert whole == pytest.approx(saved_for_backward(training, lambda closure: closure()) - given, rel=0.001)
    training.optimizer.zero_grad()
    half = freezing.held_for_backward(training, frozen.step)
    assert half == pytest.approx(saved_for_backward(training, frozen.step) - 8 * batch, rel=0.001)
    layer, last = 4 * batch * width, 4 * batch * 10
    assert [whole, half] == pytest.approx([11 * layer + last, 6 * layer + last], rel=0.001)


def test_freed_state_is_that_of_the_block_which_moves() -> None:
    figures = {figure.what.partition(" ÷")[0]: figure for figure in block_coordinate.measure(QUICK)}
    layer = 12 * 128**2 + 13 * 128  # of GPT-2: four matrices of d², 3d², 4d², 4d², their biases and two norms
    embeddings = (8192 + 128) * 128
    everything = embeddings + 12 * layer + 2 * 128
    peak, while_layer, mean, held = (
        next(f for what, f in figures.items() if what.startswith(start))
        for start in ("state at the peak", "state while a layer", "state in the mean", "state at the end")
    )
    assert peak.measured.value == pytest.approx(embeddings / everything, rel=0.001)
    assert while_layer.measured.value == pytest.approx(layer / everything, rel=0.001)
    assert mean.measured.value == pytest.approx(1 / 14, rel=0.01)
    assert held.measured.value == 1.0
    assert peak.limit == pytest.approx(1.05 * embeddings / everything) and peak.verdict == while_layer.verdict == "met"


def test_only_backward_counts_as_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    training = baselines.layers(16, 80, 10, batch=4)
    now = [0.0]
    monkeypatch.setattr(meprop, "perf_counter", lambda: now[0])

    def pass_time(seconds: float) -> Any:
        def hook(*_: object) -> None:
            now[0] += seconds

        return hook

    training.model.register_forward_hook(pass_time(100.0))
    training.parameters[0].register_post_accumulate_grad_hook(pass_time(3.0))
    training.optimizer.register_step_pre_hook(pass_time(1000.0))
    for step in (meprop.raw_loop(training), ours.with_method(training, ps.methods.plain()).step):
        assert meprop.backward(training, step)() == 3.0
    assert now[0] == 2 * 1103.0
