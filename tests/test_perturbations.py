"""x̃, and x again."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from partialsgd import PartialSGD, masks, perturbations
from partialsgd.parameters import Parameters
from partialsgd.perturbations import perturbed
from partialsgd.vectors import Vector
from tests.functions import backward
from tests.switchable import alternating, build


def net() -> tuple[nn.Module, Parameters]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    return model, Parameters(model)


def values(parameters: Parameters) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in parameters.items()}


def gradient(parameters: Parameters) -> Vector:
    return Vector({name: torch.full_like(p, k + 1.0) for k, (name, p) in enumerate(parameters.items())})


def test_each_kind_is_its_formula() -> None:
    model, x = net()
    before, g = values(x), gradient(x)
    norm = sum(float((v**2).sum()) for v in g.values()) ** 0.5
    mask = masks.from_tensors(model, {"0.weight": torch.eye(2, 3, dtype=torch.bool), "1.bias": True})
    cases = {
        perturbations.nowhere(): lambda n, v: v,
        perturbations.add({"0.bias": torch.tensor([1.0, 2.0])}): lambda n, v: (
            v + (torch.tensor([1.0, 2.0]) if n == "0.bias" else 0)
        ),
        perturbations.drop_outside(mask): lambda n, v: v * mask[n],
        perturbations.along_gradient(g, -0.5): lambda n, v: v - 0.5 * g[n],
        perturbations.along_unit_gradient(g, 0.25): lambda n, v: v + 0.25 / norm * g[n],
        perturbations.function(("1.bias",), lambda p: p["1.bias"].fill_(9)): lambda n, v: (
            torch.full_like(v, 9) if n == "1.bias" else v
        ),
    }
    for perturbation, formula in cases.items():
        with perturbed(x, perturbation):
            for name, p in x.items():
                torch.testing.assert_close(p.detach(), formula(name, before[name]))
        assert all(torch.equal(p, before[name]) for name, p in x.items())


def test_restored_when_the_inside_or_the_perturbation_itself_fails() -> None:
    _, x = net()
    before = values(x)
    with pytest.raises(ZeroDivisionError), perturbed(x, perturbations.along_gradient(gradient(x), 1.0)):
        raise ZeroDivisionError
    assert all(torch.equal(p, before[name]) for name, p in x.items())

    def half_way(parameters: Parameters) -> None:
        parameters["0.weight"].zero_()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), perturbed(x, perturbations.function(tuple(x), half_way)):
        raise AssertionError("the body must not run")
    assert all(torch.equal(p, before[name]) for name, p in x.items())


def test_a_zero_gradient_has_no_direction() -> None:
    _, x = net()
    zero = Vector({name: torch.zeros_like(p) for name, p in x.items()})
    assert perturbations.along_unit_gradient(zero, 1.0).is_nowhere
    assert perturbations.along_gradient(gradient(x), 0.0).is_nowhere


def test_inside_one_autocast_block_the_second_gradient_is_not_the_first() -> None:
    model, x = net()
    data = torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        first = model(data).sum()
        with perturbed(x, perturbations.drop_outside(masks.nothing(model))):
            second = model(data)
        third = model(data).sum()
    assert float(second.detach().abs().sum()) == 0.0
    assert torch.equal(first.detach(), third.detach())


def test_a_structural_switch_trains_what_dropping_the_numbers_would() -> None:
    runs = []
    for structural in (True, False):
        model = build()
        sgd = PartialSGD(model, torch.optim.AdamW(model.parameters(), 0.1), alternating(model, structural=structural))
        data = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))

        def closure(model=model, data=data):
            return backward(model(data).square().mean())

        steps = [sgd.step(closure) for _ in range(6)]
        assert [step.level for step in steps] == ["full", "core"] * 3
        assert model.level == "full"
        runs.append([p.detach() for p in model.parameters()])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)


def test_an_interrupt_while_saving_leaves_x_alone(monkeypatch) -> None:
    _, x = net()
    before = values(x)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "_foreach_copy_", interrupted)
    with pytest.raises(KeyboardInterrupt), perturbed(x, perturbations.along_gradient(gradient(x), 1.0)):
        raise AssertionError("the body must not run")
    assert all(torch.equal(p, before[name]) for name, p in x.items())


def test_the_norm_of_a_move_is_measured_while_x_is_moved() -> None:
    _, parameters = net()
    before = values(parameters)

    def norm(perturbation, inside=None) -> float:
        norms = []
        with perturbed(parameters, perturbation, on_move=lambda d: norms.append(perturbations.squared_norm(d, inside))):
            pass
        assert all(torch.equal(before[name], p) for name, p in parameters.items())
        return math.sqrt(sum(norms))

    assert norm(perturbations.nowhere()) == 0
    assert norm(perturbations.along_unit_gradient(gradient(parameters), 0.3)) == pytest.approx(0.3, rel=1e-5)
    zeroed = perturbations.function(tuple(parameters), lambda ps: [p.zero_() for p in ps.values()])
    assert norm(zeroed) == pytest.approx(float(torch.cat([v.flatten() for v in before.values()]).norm()), rel=1e-6)
    name = next(iter(before))
    inside = masks.only(parameters, [name])
    assert norm(zeroed, inside) == pytest.approx(float(before[name].norm()), rel=1e-6)


def test_adding_and_subtracting_would_not_restore() -> None:
    """Why x is saved: (x + δ) − δ is not x."""
    x, delta = torch.randn(10_000), torch.randn(10_000)
    assert not torch.equal((x + delta) - delta, x)
