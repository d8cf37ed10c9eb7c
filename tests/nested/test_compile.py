"""Compiled nested models: one graph for each level and mode, equal to the eager model, however often they switch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partialsgd import Depth, Nested, OutputSum, Width, nest
from tests.nested.contracts import Residual
from tests.nested.test_nested import SPECS, model, outputs_in_threads, x


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.fixture
def dynamo() -> Any:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def short() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def switched(nested: Nested, run: Callable[[Tensor], Tensor], eager: Nested, rounds: int) -> None:
    """Every level in training and evaluation, forward and backward; the same as the eager one, step by step."""
    given = x()
    for _ in range(rounds):
        for training in (True, False):
            nested.train(training)
            eager.train(training)
            for level in nested.levels:
                nested.zero_grad()
                eager.zero_grad()
                with nested.at(level), eager.at(level):
                    y, expected = run(given), eager(given)
                    y.sum().backward()
                    expected.sum().backward()
                torch.testing.assert_close(y, expected)
                for a, b in zip(nested.parameters(), eager.parameters(), strict=True):
                    assert (a.grad is None) == (b.grad is None), "only what the level uses"
                    if a.grad is not None and b.grad is not None:
                        torch.testing.assert_close(a.grad, b.grad)


def often(nested: Nested, run: Callable[[Tensor], Tensor], steps: int) -> None:
    given, count = x(), len(nested.levels)
    for step in range(steps):
        nested.train(step % (2 * count) < count)
        with nested.at(nested.levels[step % count]):
            run(given)


@pytest.mark.parametrize(
    "kind",
    ["width", pytest.param("width shared", marks=pytest.mark.slow), pytest.param("low rank", marks=pytest.mark.slow)],
)
def test_compiled_once_for_each_level_and_mode_however_often_it_switches(kind: str, dynamo: None) -> None:
    nested, eager = (nest(short(), **SPECS[kind]) for _ in range(2))
    compiled = torch.compile(nested, backend="aot_eager", fullgraph=True)
    switched(nested, compiled, eager, rounds=2)
    assert graphs() == 3 * 2
    often(nested, compiled, 1000 if kind == "width" else 60)
    assert graphs() == 3 * 2


def test_more_levels_than_graphs_are_allowed_compile_one_callable_each(dynamo: None) -> None:
    ratios = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
    nested, eager = (nest(short(), Width(ratios)) for _ in range(2))
    assert len(nested.levels) == 6
    nested.compile(backend="aot_eager", fullgraph=True)
    switched(nested, nested, eager, rounds=2)
    assert graphs() == 6 * 2 > torch._dynamo.config.recompile_limit


def test_a_compiled_nested_model_still_watches_copies_and_gives_out(dynamo: None) -> None:
    nested = nest(model(), Width(1 / 2))
    nested.compile(backend="aot_eager", fullgraph=True)
    with nested.at("core"):
        loss = nested(x()).sum()
    with pytest.raises(RuntimeError, match="its forward ran at level 'core'"):
        loss.backward()
    with nested.at("core", teacher="full"):
        nested(x())
        assert nested.teacher.shape == (5, 3) and not nested.teacher.requires_grad
    nested(x())
    before = graphs()
    other = copy.deepcopy(nested)
    with torch.no_grad():
        next(other.parameters()).zero_()
    assert torch.equal(other.eval()(x()), other.model(x())), "the copy runs its own numbers"
    assert graphs() == before, "and is not compiled"
    assert type(nested.extract("core")) is nn.Sequential
    assert "_compiled" not in "".join(nested.state_dict())


def test_blocks_and_sums_compile_too(dynamo: None) -> None:
    nested = nest(OutputSum(Residual(), nn.Linear(6, 3)), Depth("blocks", keep=1))
    eager = copy.deepcopy(nested)
    switched(nested, torch.compile(nested, backend="aot_eager", fullgraph=True), eager, rounds=2)
    assert graphs() == 2 * 2 or graphs() == 2, "nothing here depends on the mode"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor_compiles_each_level_and_mode_once_over_a_thousand_switches(dynamo: None) -> None:
    nested = nest(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3)), Width(1 / 2))
    eager = copy.deepcopy(nested)
    compiled = torch.compile(nested, fullgraph=True)
    switched(nested, compiled, eager, rounds=1)
    assert graphs() == 2 * 2
    often(nested, compiled, 1000)
    assert graphs() == 2 * 2


@pytest.mark.parametrize("by_user", [True, False])
def test_each_thread_runs_its_own_level_of_a_compiled_model(by_user: bool, dynamo: None) -> None:
    nested = nest(short(), Width(1 / 2)).eval()
    compiled = nested
    if by_user:
        compiled = torch.compile(nested, backend="aot_eager", fullgraph=True)
    else:
        nested.compile(backend="aot_eager", fullgraph=True)
    outputs_in_threads(nested, compiled, rounds=20)
    assert graphs() == 2
