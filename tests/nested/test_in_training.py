"""Nested models in training: inside other modules, with PartialSGD, copied, wrapped and with a teacher."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import partialsgd as ps
from partialsgd import Depth, LowRank, Nested, OutputSum, PartialSGD, Width, export, methods, nest
from tests.families import family

X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def closure_of(model: nn.Module, x: torch.Tensor = X):
    def run() -> torch.Tensor:
        loss = F.cross_entropy(model(x), Y[: len(x)])
        loss.backward()
        return loss

    return run


def test_what_lies_around_a_nested_model_trains_at_every_level() -> None:
    outer = nn.Sequential(nest(mlp(), Width(1 / 2)), nn.Linear(3, 3))
    body = outer[0]
    assert isinstance(body, Nested)
    sgd = PartialSGD(outer, torch.optim.SGD(outer.parameters(), 0.1), methods.alternating())
    for _ in range(2):
        before = outer[1].weight.detach().clone()
        step = sgd.step(closure_of(outer))
        assert not torch.equal(before, outer[1].weight), step.level


def test_a_copied_driver_is_not_run_with_the_old_models_levels() -> None:
    nested = nest(mlp(), Width(1 / 2))
    optimizer = torch.optim.SGD(nested.parameters(), 0.1)
    sgd = PartialSGD(nested, optimizer, methods.alternating())
    sgd.step(closure_of(nested))
    sgd.step(closure_of(nested))
    other, _, driver = copy.deepcopy((nested, optimizer, sgd))
    with pytest.raises(ValueError, match="are not those of this nested model"):
        driver.step(closure_of(other))


def test_a_forward_that_was_replaced_on_the_object_is_refused() -> None:
    model = mlp()
    old = model.forward
    model.forward = lambda *args: old(*args)
    nested = nest(model, LowRank(1 / 4))
    with pytest.raises(ValueError, match="was replaced on the object"):
        nested.extract("core", example=X)


@pytest.mark.parametrize("hold", [lambda a: [a], lambda a: (a,), lambda a: {"a": a}], ids=["list", "tuple", "dict"])
def test_a_layer_that_is_also_held_elsewhere_is_refused(hold) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
            self.held = hold(self.a)

    model = Net()
    with pytest.raises(ValueError, match=r"'a' cannot be nested: the attribute 'held' of"):
        nest(model, LowRank(1 / 2, where="a"))
    assert type(model.a) is nn.Linear


def test_a_network_that_returns_a_parameter_trains() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.log_std = mlp(), nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.net(x), self.log_std

    nested = nest(Policy(), LowRank(1 / 4, where=("net.0", "net.2")))
    sgd = PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.1), methods.alternating())

    def closure() -> torch.Tensor:
        mean, log_std = nested(X)
        loss = mean.square().mean() + log_std.exp().sum()
        loss.backward()
        return loss

    assert [sgd.step(closure).level for _ in range(3)] == ["full", "core", "full"]
    assert not nested.model.log_std._backward_hooks


def test_a_teacher_of_several_micro_batches_is_not_asked() -> None:
    nested = nest(mlp(), Width(1 / 2))
    sgd = PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.1), methods.slimmable(distill=True))

    def closure(g) -> torch.Tensor:
        total = torch.zeros(())
        for x in X.split(8):
            g.outputs = nested(x)
            loss = g.outputs.square().mean() if g.teacher is None else (g.outputs - g.teacher).square().mean()
            loss.backward()
            total += loss.detach()
        return total

    with pytest.raises(RuntimeError, match="one batch in the closure"):
        sgd.step(closure)


def test_a_teacher_that_did_not_run_is_missed() -> None:
    nested = nest(mlp(), Width(1 / 2))
    sgd = PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.1), methods.alternating(distill=True))

    def closure(g) -> torch.Tensor:
        outputs = nested.model(X)  # past the nested model
        loss = outputs.square().mean() if g.teacher is None else outputs.mean()
        loss.backward()
        return loss

    sgd.step(closure)
    with pytest.raises(RuntimeError, match="call the nested model, nested"):
        sgd.step(closure)


def test_a_failed_recalibration_leaves_the_statistics() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    nested = nest(model, Width(1 / 2))
    nested(X)
    before = copy.deepcopy(nested.state_dict())
    with pytest.raises(TypeError, match=r"for a loader of pairs give"):
        nested.recalibrate("full", [(X, Y)])
    assert all(torch.equal(before[key], value) for key, value in nested.state_dict().items())


def test_hooks_on_blocks_and_norms_are_not_lost_silently() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), nn.Linear(6, 3))
    model[0].register_forward_hook(lambda *args: None)
    with pytest.raises(ValueError, match="'0' cannot be nested: it has hooks"):
        nest(model, Depth("0", keep=1))
    normed = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    normed[1].register_forward_hook(lambda *args: None)
    with pytest.raises(ValueError, match="'1' cannot be nested: it has hooks"):
        nest(normed, Width(1 / 2), norms="shared")


def test_an_example_follows_the_nested_model_to_another_dtype_and_holds_no_data() -> None:
    nested = nest(mlp(), LowRank(1 / 4))
    nested(torch.randn(10_000, 6))
    example = nested.example()
    assert sum(x.untyped_storage().nbytes() for x in example.call[0]) == 4
    nested.to(torch.bfloat16)
    assert next(nested.extract("core").parameters()).dtype is torch.bfloat16


def test_training_and_evaluation_that_differ_are_not_traced_as_one() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.extra = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x).relu()
            y: torch.Tensor = self.b(h)
            return y + self.extra(h) if self.training else y

    with pytest.raises(ValueError, match="runs other layers in training"):
        nest(Auxiliary().eval(), Width(1 / 2, order="norm"))


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: nest(mlp(), levels=[LowRank(1 / 4)]), TypeError, "levels must map names to specs"),
        (lambda: nest(mlp(), {"small": LowRank(1 / 4)}), TypeError, r"write levels=\{"),
        (lambda: nest(mlp(), "LowRank"), TypeError, "got a str"),
        (lambda: nest(mlp(), OutputSum(mlp(), mlp())), TypeError, r"nest\(OutputSum"),
        (lambda: Width("1/4"), ValueError, "got '1/4'"),
        (lambda: LowRank(True), ValueError, "got True"),
        (lambda: Depth("0", keep="2"), ValueError, "got '2'"),
        (lambda: methods.alternating(order="full"), ValueError, r"a list of levels such as \['full', 'core'\]"),
        (lambda: OutputSum(mlp(), mlp(), inputs=(0, 1)), ValueError, "two lists"),
    ],
)
def test_common_slips_are_told_what_to_write(make, kind, says) -> None:
    with pytest.raises(kind, match=says):
        make()


def test_a_step_inside_of_at_is_refused() -> None:
    nested = family()
    sgd = PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.1), methods.alternating())
    with nested.at("core"), pytest.raises(RuntimeError, match=r"outside of nested.at\('core'\)"):
        sgd.step(lambda: nested(torch.ones(2, 6)).sum())


@pytest.mark.parametrize("make", [methods.alternating, methods.only, methods.slimmable, methods.sandwich])
def test_a_network_that_is_not_nested_is_refused(make) -> None:
    with pytest.raises(TypeError, match=r"ps\.nest"):
        make().bind(torch.nn.Linear(2, 2))


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


def test_a_nested_model_of_one_level_is_its_network_trained_saved_and_taken_out(tmp_path: Path) -> None:
    nested, model, x = ps.nest(build(), levels={}), build(), torch.randn(6, 4)
    assert nested.levels == ("full",)
    ours, theirs = (torch.optim.Adam(network.parameters()) for network in (nested, model))
    sgd = ps.PartialSGD(nested, ours, ps.methods.alternating())

    def closure() -> torch.Tensor:
        loss = nested(x).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        assert sgd.step(closure).level == "full"
        theirs.zero_grad()
        model(x).square().sum().backward()
        theirs.step()
    assert torch.equal(nested(x), model(x))
    assert torch.equal(nested.extract("full", example=x)(x), model(x))
    export.save(nested, tmp_path)
    assert torch.equal(export.load(tmp_path, build())(x), model(x))
    assert [row.share for row in nested.profile(x).rows] == [1.0]
    assert "full" in nested.draw() and "full" in nested.summary()
