"""Nested sparsity levels in one network: each exact, each trained, each extractable."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from partialsgd import methods
from partialsgd.testing.runs import assert_same_bits
from tests.methods.training import assert_resumes, conv_loss, conv_net, sgd_of, values

LAWS = {
    "": methods.dynamic_sparsity((0.3, 0.6), every=2),
    "accumulated": methods.dynamic_sparsity((0.6,), scope="layer", accumulate=True),
}
IDENTITY = [methods.dynamic_sparsity((), accumulate=a, combine="mean") for a in (False, True)]
REFUSED_SETTINGS = [
    ({"levels": (0.0, 0.5)}, r"a level is a sparsity in \(0, 1\), got 0"),
    ({"levels": (0.5, 1)}, r"a level is a sparsity in \(0, 1\), got 1"),
    ({"levels": (0.5, 0.5)}, "must be different"),
    ({"every": 0}, "every must be a whole number"),
    ({"scope": "row"}, "scope must be one of"),
    ({"combine": "max"}, "combine must be"),
]

N = 54 + 120
LEVELS = ("full", "0.5", "0.9")


def start(method, lr: float = 0.1):
    model = conv_net()
    return model, sgd_of(model, method, lr)


def inside(model: nn.Module) -> list[torch.Tensor]:
    return [layer.weight.detach() != 0 for layer in (model[0], model[3])]


def kept_by_sorting(model: nn.Module, sparsity: float) -> list[torch.Tensor]:
    weights = [layer.weight.detach().abs() for layer in (model[0], model[3])]
    sizes = torch.cat([w.flatten() for w in weights]).sort().values
    return [w >= sizes[round(sparsity * len(sizes))] for w in weights]


def gradients(model: nn.Module, kept: list[torch.Tensor], t: int) -> dict[str, torch.Tensor]:
    """p ⊙ ∇f(p ⊙ x), on a copy."""
    pruned = copy.deepcopy(model)
    pruned.zero_grad()
    with torch.no_grad():
        for layer, m in zip((pruned[0], pruned[3]), kept, strict=True):
            layer.weight.masked_fill_(~m, 0)
    conv_loss(pruned, t)
    found = {name: p.grad for name, p in pruned.named_parameters()}
    for name, m in zip(("0.weight", "3.weight"), kept, strict=True):
        found[name] = found[name] * m
    return found


def test_each_step_is_that_of_a_level_by_itself() -> None:
    """Written out for two turns and a refresh at 4."""
    model, sgd = start(methods.dynamic_sparsity((0.9, 0.5), every=4))
    twin = conv_net()
    for t in range(7):
        if t % 4 == 0:
            kept = {name: kept_by_sorting(twin, 0.0 if name == "full" else float(name)) for name in LEVELS}
        level = LEVELS[t % 3]
        found = gradients(twin, kept[level], t)
        with torch.no_grad():
            for name, p in twin.named_parameters():
                p -= 0.1 * found[name]
        step = sgd.step(lambda t=t: conv_loss(model, t))
        assert step.level == level and step.backwards == 1
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), twin.get_parameter(name).detach())


@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_accumulated_it_is_one_step_with_the_gradients_of_all_levels(combine: str) -> None:
    model, sgd = start(methods.dynamic_sparsity((0.5, 0.9), accumulate=True, combine=combine))
    twin = conv_net()
    total = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    for sparsity in (0.0, 0.5, 0.9):
        for name, g in gradients(twin, kept_by_sorting(twin, sparsity), 0).items():
            total[name] += g if combine == "sum" else g / 3
    step = sgd.step(lambda: conv_loss(model, 0))
    assert tuple(level for level, _ in step.losses) == LEVELS and step.level == "full" and step.backwards == 3
    for name, p in twin.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).detach(), p.detach() - 0.1 * total[name])


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_levels_are_nested_and_exact_at_every_step(scope: str, accumulate: bool) -> None:
    model, sgd = start(methods.dynamic_sparsity((0.3, 0.5, 0.9), every=3, scope=scope, accumulate=accumulate), 0.5)
    with torch.no_grad():
        model[3].weight[:, :12] = 0.1  # two levels end among these ties
    for t in range(8):
        whole, larger, middle, small = (inside(sgd.extract(level)) for level in ("full", "0.3", "0.5", "0.9"))
        for sizes, sparsity in ((larger, 0.3), (middle, 0.5), (small, 0.9)):
            gone = [int((~m).sum()) for m in sizes]
            expected = [round(sparsity * 54), round(sparsity * 120)]
            assert sum(gone) == round(sparsity * N) if scope == "global" else gone == expected
        for a, b, c, d in zip(whole, larger, middle, small, strict=True):
            assert not (d & ~c).any() and not (c & ~b).any() and not (b & ~a).any()
        sgd.step(lambda t=t: conv_loss(model, t))


def test_a_level_comes_out_at_any_time_and_what_runs_is_what_is_extracted() -> None:
    model, sgd = start(methods.dynamic_sparsity((0.5, 0.9), every=4))
    x = torch.randn(2, 1, 4, 4)
    for t in range(6):
        before = values(model)
        for level in LEVELS:
            small = sgd.extract(level)
            with sgd.perturbed(level):
                assert torch.equal(model(x), small(x))
            for name, p in small.named_parameters():
                assert torch.equal(p.detach(), before[name] * (p.detach() != 0)), "a level holds weights of the network"
        assert_same_bits(before, {name: p.detach() for name, p in model.named_parameters()})
        trained = sgd.extract()
        assert_same_bits(trained.state_dict(), sgd.extract(LEVELS[t % 3]).state_dict())
        sgd.step(lambda t=t: conv_loss(model, t))
    with pytest.raises(ValueError, match=r"there is no level '0.7'; there are 'full', '0.5', '0.9'"):
        sgd.extract("0.7")


def test_a_choice_is_made_when_it_is_due_though_the_whole_network_is_trained_then() -> None:
    model, sgd = start(methods.dynamic_sparsity((0.8,), every=2), lr=1.0)
    due = kept_by_sorting(model, 0.8)
    assert sgd.step(lambda: conv_loss(model, 0)).level == "full"
    assert all(torch.equal(a, b) for a, b in zip(inside(sgd.extract("0.8")), due, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(kept_by_sorting(model, 0.8), due, strict=True)), "it has moved"
    step = sgd.step(lambda: conv_loss(model, 1))
    assert step.level == "0.8" and torch.equal(step.mask["3.weight"], due[1])


def test_accumulated_levels_may_learn_from_the_whole_network() -> None:
    model, sgd = start(methods.dynamic_sparsity((0.5,), accumulate=True))
    seen = []

    def closure(g):
        g.outputs = model(torch.ones(1, 1, 4, 4))
        seen.append((g.level, g.teacher))
        loss = g.outputs.square().mean()
        loss.backward()
        return loss

    whole = model(torch.ones(1, 1, 4, 4)).detach()
    sgd.step(closure)
    assert [level for level, _ in seen] == ["full", "0.5"] and seen[0][1] is None
    assert torch.equal(seen[1][1], whole)


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_run_may_stop_anywhere(stop: int) -> None:
    method = methods.dynamic_sparsity((0.3, 0.8), every=4)
    assert_resumes(method, stop, 9, make=lambda parameters: torch.optim.Adam(parameters, 0.05))
