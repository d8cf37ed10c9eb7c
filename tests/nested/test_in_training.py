"""Nested models in training: inside other modules, with PartialSGD, copied, wrapped and with a teacher."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import partialsgd as ps
from partialsgd import LowRank, PartialSGD, Width, export, methods, nest, soft_cross_entropy

X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def closure_of(model: nn.Module):
    def run() -> torch.Tensor:
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    return run


def trained_by(method: ps.Method, model: nn.Module) -> PartialSGD:
    return PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)


def test_what_lies_around_a_nested_model_trains_at_every_level() -> None:
    outer = nn.Sequential(nest(mlp(), Width(1 / 2)), nn.Linear(3, 3))
    sgd = trained_by(methods.alternating(), outer)
    for _ in range(2):
        before = outer[1].weight.detach().clone()
        step = sgd.step(closure_of(outer))
        assert not torch.equal(before, outer[1].weight), step.level


def test_a_copied_driver_is_not_run_with_the_old_models_levels() -> None:
    nested = nest(mlp(), Width(1 / 2))
    sgd = trained_by(methods.alternating(), nested)
    sgd.step(closure_of(nested))
    sgd.step(closure_of(nested))
    other, driver = copy.deepcopy((nested, sgd))
    with pytest.raises(ValueError, match="are not those of this nested model"):
        driver.step(closure_of(other))


def test_a_forward_that_was_replaced_on_the_object_is_refused() -> None:
    model = mlp()
    old = model.forward
    model.forward = lambda *args: old(*args)
    nested = nest(model, LowRank(1 / 4))
    with pytest.raises(ValueError, match="was replaced on the object"):
        nested.extract("core", example=X)


def test_a_network_that_returns_a_parameter_trains() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.log_std = mlp(), nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.net(x), self.log_std

    nested = nest(Policy(), LowRank(1 / 4, where=("net.0", "net.2")))
    sgd = trained_by(methods.alternating(), nested)

    def closure() -> torch.Tensor:
        mean, log_std = nested(X)
        loss = mean.square().mean() + log_std.exp().sum()
        loss.backward()
        return loss

    assert [sgd.step(closure).level for _ in range(3)] == ["full", "core", "full"]
    assert not nested.model.log_std._backward_hooks


def test_a_teacher_of_several_micro_batches_or_of_no_call_is_not_asked() -> None:
    nested = nest(mlp(), Width(1 / 2))

    def in_micro_batches(g) -> torch.Tensor:
        for x in X.split(8):
            g.outputs = nested(x)
            loss = g.outputs.square().mean() if g.teacher is None else (g.outputs - g.teacher).square().mean()
            loss.backward()
        return loss

    def past_the_nested_model(g) -> torch.Tensor:
        outputs = nested.model(X)
        loss = outputs.square().mean() if g.teacher is None else outputs.mean()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match="one batch in the closure"):
        trained_by(methods.slimmable(distill=True), nested).step(in_micro_batches)
    sgd = trained_by(methods.alternating(distill=True), nested)
    sgd.step(past_the_nested_model)
    with pytest.raises(RuntimeError, match="call the nested model, nested"):
        sgd.step(past_the_nested_model)


def test_an_example_follows_the_nested_model_to_another_dtype_and_holds_no_data() -> None:
    nested = nest(mlp(), LowRank(1 / 4))
    nested(torch.randn(10_000, 6))
    example = nested.example()
    assert sum(x.untyped_storage().nbytes() for x in example.call[0]) == 4
    nested.to(torch.bfloat16)
    assert next(nested.extract("core").parameters()).dtype is torch.bfloat16


def test_a_step_inside_of_at_is_refused() -> None:
    nested = nest(mlp(), Width(1 / 2))
    sgd = trained_by(methods.alternating(), nested)
    with nested.at("core"), pytest.raises(RuntimeError, match=r"outside of nested.at\('core'\)"):
        sgd.step(closure_of(nested))


@pytest.mark.parametrize("make", [methods.alternating, methods.only, methods.slimmable, methods.sandwich])
def test_a_network_that_is_not_nested_is_refused(make) -> None:
    with pytest.raises(TypeError, match=r"ps\.nest"):
        make().bind(torch.nn.Linear(2, 2))


def test_a_nested_model_of_one_level_is_its_network_trained_saved_and_taken_out(tmp_path: Path) -> None:
    nested, model = nest(mlp(), levels={}), mlp()
    assert nested.levels == ("full",)
    ours, theirs = (torch.optim.Adam(network.parameters()) for network in (nested, model))
    sgd = PartialSGD(nested, ours, methods.alternating())
    for _ in range(3):
        assert sgd.step(closure_of(nested)).level == "full"
        theirs.zero_grad()
        closure_of(model)()
        theirs.step()
    assert torch.equal(nested(X), model(X))
    assert torch.equal(nested.extract("full", example=X)(X), model(X))
    export.save(nested, tmp_path)
    assert torch.equal(export.load(tmp_path, mlp())(X), model(X))
    assert [row.share for row in nested.profile(X).rows] == [1.0]
    assert "full" in nested.draw() and "full" in nested.summary()


def test_it_is_torchs_cross_entropy_with_soft_targets_and_does_not_pull_the_teacher() -> None:
    outputs = torch.randn(5, 4, requires_grad=True)
    teacher = torch.randn(5, 4, requires_grad=True)
    loss = soft_cross_entropy(outputs, teacher)
    torch.testing.assert_close(loss, F.cross_entropy(outputs, teacher.softmax(-1)))
    loss.backward()
    assert teacher.grad is None and outputs.grad is not None


def test_temperature_keeps_the_size_of_the_gradient() -> None:
    """Hinton et al.: at a high temperature the gradient times T² tends to that of matching logits."""
    outputs, teacher = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    (hot,) = torch.autograd.grad(soft_cross_entropy(outputs, teacher, temperature=1e3), outputs)
    centred = [y - y.mean(-1, keepdim=True) for y in (outputs.detach(), teacher)]
    torch.testing.assert_close(hot, (centred[0] - centred[1]) / (4 * 3), rtol=0.05, atol=1e-4)


def test_unequal_shapes_and_cold_temperatures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and teacher outputs of shape \(2, 4\)"):
        soft_cross_entropy(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(ValueError, match="positive"):
        soft_cross_entropy(torch.ones(2, 3), torch.ones(2, 3), temperature=0)
