"""The tabular recipe as the loop sees it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab import recipes
from partialsgd.lab.recipes.tabular import scores
from partialsgd.lab.recipes.tabular.features import Rows
from partialsgd.lab.recipes.tabular.network import inputs_of
from partialsgd.lab.recipes.tabular.settings import Tabular
from partialsgd.lab.recipes.tabular.task import TabularTask, build
from partialsgd.lab.training.methods import method_of
from partialsgd.nested.inspect.flops import count
from tests.lab.recipes.tabular.made import with_header


def given(teacher: Tensor | None = None) -> GradientPass:
    return cast(GradientPass, SimpleNamespace(teacher=teacher, outputs=None))


def trained(task: TabularTask, method: str, steps: int, total: int) -> ps.PartialSGD:
    """As the loop does it, with the same rate for both optimizers."""
    sgd = ps.PartialSGD(task.network, task.optimizers, method_of(method), seed=0)
    largest = [optimizer.param_groups[0]["lr"] for optimizer in task.optimizers]
    for t in range(steps):
        batch = task.batches.make(*divmod(t, len(task.batches)))
        for optimizer, lr in zip(task.optimizers, largest, strict=True):
            optimizer.param_groups[0]["lr"] = lr * task.rate(t, total)

        def closure(g: GradientPass, batch: Rows = batch) -> Tensor:
            loss = task.loss(task.network, batch, g) / len(batch.labels)
            loss.backward()
            return loss

        sgd.step(closure)
    return sgd


@pytest.fixture(params=["breast-cancer", "adult"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Tabular:
    return Tabular(batch=16, data=str(with_header(tmp_path)) if request.param == "adult" else None, hidden=8)


def test_building_twice_gives_the_same_weights_and_batches_and_another_seed_others(settings: Tabular) -> None:
    torch.manual_seed(5)
    first = build(settings)
    torch.manual_seed(6)
    again, other = build(settings), build(Tabular(seed=1, data=settings.data))
    state, same = first.network.state_dict(), again.network.state_dict()
    assert state.keys() == same.keys() and all(torch.equal(state[name], same[name]) for name in state)
    name = "model.core.mlp.2.weight"
    assert not torch.equal(state[name], other.network.state_dict()[name][:8, :8])
    assert all(torch.equal(a, b) for a, b in zip(first.batches.make(1, 2), again.batches.make(1, 2), strict=True))
    assert isinstance(recipes.build(settings), TabularTask) and (first.unit, first.score) == ("rows", "AUC")


def test_full_at_even_t_and_at_odd_t_the_deep_part_alone_with_its_own_optimizer(settings: Tabular) -> None:
    task = build(settings)
    deep, wide = (task.network.model.get_submodule(name) for name in ("core", "extension"))
    adamw, adagrad = task.optimizers
    assert (type(adamw), type(adagrad)) == (torch.optim.AdamW, torch.optim.Adagrad)
    assert {id(p) for p in deep.parameters()} == {id(p) for p in adamw.param_groups[0]["params"]}
    assert {id(p) for p in wide.parameters()} == {id(p) for p in adagrad.param_groups[0]["params"]}
    group = adamw.param_groups[0]
    assert (group["lr"], group["weight_decay"], adagrad.param_groups[0]["lr"]) == (2e-3, 0.1, 0.02)
    sgd = ps.PartialSGD(task.network, task.optimizers, ps.methods.alternating())

    def now(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        state = [value for each in optimizer.state.values() for value in each.values()]
        return [tensor.detach().clone() for tensor in (*network.parameters(), *state)]

    for t in range(4):
        batch = task.batches.make(0, t % len(task.batches))
        before = now(deep, adamw), now(wide, adagrad)

        def closure(g: GradientPass, batch: Rows = batch) -> Tensor:
            loss = task.loss(task.network, batch, g)
            loss.backward()
            return loss

        assert sgd.step(closure).level == ("full", "core")[t % 2]
        after = now(deep, adamw), now(wide, adagrad)
        moved = [len(a) != len(b) or not all(map(torch.equal, a, b)) for a, b in zip(before, after, strict=True)]
        assert moved == [True, t % 2 == 0], "the wide part and its optimizer's state stand still at odd t"


def test_the_loss_is_summed_over_the_rows_and_a_teacher_takes_the_place_of_the_labels(settings: Tabular) -> None:
    task = build(settings)
    batch, g = task.batches.make(0, 0), given()
    logits = task.network(*inputs_of(batch))
    loss = task.loss(task.network, batch, g)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits, batch.labels) * len(logits))
    torch.testing.assert_close(g.outputs, logits)
    with torch.autocast("cpu", torch.bfloat16):
        assert task.loss(task.network, batch, given()).dtype is torch.float32
    wrong = batch._replace(labels=1 - batch.labels)
    torch.testing.assert_close(task.loss(task.network, wrong, given(100 * (2 * batch.labels - 1))), loss)
    for method in ("alternating(distill=True)", "slimmable(distill=True)"):
        assert trained(task, method, 2, 10).t == 2


def test_flops_are_those_of_the_level_on_the_batch(settings: Tabular) -> None:
    task = build(settings)
    batch = task.batches.make(0, 0)
    for level in task.network.levels:
        with task.network.at(level):
            assert task.flops(level, batch) == count(task.network.model, *inputs_of(batch)).training > 0


def test_levels_come_out_and_are_timed_on_one_row_of_their_own_inputs(settings: Tabular) -> None:
    task = build(settings)
    for level in task.network.levels:
        plain = task.network.extract(level, example=task.example())
        calls: list[int] = []
        plain.register_forward_pre_hook(lambda module, args, calls=calls: calls.append(len(args[0])))
        assert 0 < task.seconds(plain) < 1
        assert set(calls) == {1}


def test_numbers_of_a_level(settings: Tabular) -> None:
    task = build(settings)
    for split, rows in (("valid", task.valid), ("test", task.test)):
        expected = scores.numbers(scores.outputs(task.network, "core", rows), rows.labels)
        assert task.scores("core", cast(Any, split)) == expected
    assert task.scores("core", "valid") == task.glance("core") != task.scores("core", "test")
    assert task.scores("core", "test") == task.scores("full", "test"), "the wide part starts at zero"
    assert task.merit({"core": {"AUC": 0.5}, "full": {"AUC": 0.75}}) == 0.625
    extras = task.extras()
    json.dumps(extras, allow_nan=False)
    assert extras["logistic regression"][0].keys() == {"loss", "AUC", "accuracy"}


def test_the_rate_is_half_a_cosine() -> None:
    assert [build(Tabular()).rate(t, 8) for t in (0, 4, 8)] == pytest.approx([1, 0.5, 0])


def test_both_levels_learn_the_breast_cancer_data_in_the_default_training() -> None:
    task = build(Tabular())
    total = Tabular().epochs * len(task.batches)
    trained(task, "alternating", total, total)
    core, full = (task.scores(level, "test") for level in task.network.levels)
    assert min(core["AUC"], full["AUC"]) > 0.99 and min(core["accuracy"], full["accuracy"]) > 0.95
    assert full != core
