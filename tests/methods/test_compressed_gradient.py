"""k coordinates are sent, and with feedback nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from partialsgd import PartialSGD, methods
from partialsgd.testing.runs import Run, assert_same_bits
from tests.methods.training import MLP

LAWS = {
    "": methods.compressed_gradient(0.2),
    "random": methods.compressed_gradient(0.2, kind="random-k", scope="layer"),
    "forgetful": methods.compressed_gradient(0.2, feedback=False),
}
IDENTITY = [methods.compressed_gradient(1, kind=k, feedback=f) for k in ("top-k", "random-k") for f in (True, False)]
REFUSED_SETTINGS = [
    ({"keep": 0}, r"keep must be in \(0, 1\], got 0"),
    ({"kind": "sign"}, "kind must be one of top-k, random-k; got 'sign'"),
    ({"scope": "row"}, "scope must be one of global, layer; got 'row'"),
]

KINDS = ("top-k", "random-k")
SHAPES = {"a": (3, 5), "b": (7,)}
Gradients = Callable[[int], dict[str, torch.Tensor]]


def whole_numbers(t: int) -> dict[str, torch.Tensor]:
    """Sums of these are exact, in any order."""
    generator = torch.Generator().manual_seed(t)
    return {name: torch.randint(-99, 100, shape, generator=generator) / 64 for name, shape in SHAPES.items()}


def normal(t: int) -> dict[str, torch.Tensor]:
    return {"a": torch.randn(40, generator=torch.Generator().manual_seed(t))}


class Slopes:
    """f = ⟨g_t, x⟩ from x = 0 under SGD: what was sent so far is −x / lr."""

    def __init__(self, method, gradients: Gradients = whole_numbers, lr: float = 1.0, **options) -> None:
        like = gradients(0)
        self.model = nn.ParameterDict({name: nn.Parameter(torch.zeros_like(g)) for name, g in like.items()})
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr)
        self.sgd = PartialSGD(self.model, self.optimizer, method, **options)
        self.gradients = gradients

    def closure(self):
        now = self.gradients(self.sgd.t)
        loss = sum((p * now[name]).sum() for name, p in self.model.items() if name in now)
        loss.backward()
        return loss

    def step(self):
        return self.sgd.step(self.closure)

    def unsent(self, name: str) -> torch.Tensor:
        return self.sgd.state_dict()["memory"][f"unsent.{name}"]


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_feedback_nothing_is_lost(kind: str, scope: str) -> None:
    """Σ sent + e_T = Σ g, exactly."""
    run = Slopes(methods.compressed_gradient(0.2, kind=kind, scope=scope))
    total = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for t in range(100):
        for name, g in whole_numbers(t).items():
            total[name] += g
        assert run.step().mask.count() == 4  # of 22; the names have no module, so they are one layer
        for name, p in run.model.items():
            assert torch.equal(-p + run.unsent(name), total[name])
    assert any(run.unsent(name).any() for name in SHAPES)


@pytest.mark.parametrize("kind", KINDS)
def test_sent_and_unsent_are_gradient_plus_memory_to_the_bit(kind: str) -> None:
    """Also of numbers whose sums are rounded."""
    run = Slopes(methods.compressed_gradient(0.3, kind=kind), normal)
    memory = torch.zeros(40)
    for t in range(20):
        for g in run.sgd.gradients():
            with g:
                run.closure()
        sent, wanted = run.model["a"].grad.clone(), memory + normal(t)["a"]
        mask = run.sgd.update().mask["a"]
        assert torch.equal(sent, wanted * mask)
        memory = run.unsent("a")
        assert torch.equal(sent + memory, wanted) and not (memory * mask).any()


def test_top_k_is_the_published_loop() -> None:
    """m ← m + g; send the k largest of m; m ← 0 there."""
    run = Slopes(methods.compressed_gradient(5 / 40), normal, lr=0.5)
    x, m = torch.zeros(40), torch.zeros(40)
    for t in range(60):
        run.step()
        m += normal(t)["a"]
        for i in sorted(range(40), key=lambda i: -abs(float(m[i])))[:5]:
            x[i] -= 0.5 * m[i]
            m[i] = 0
        torch.testing.assert_close(run.model["a"].detach(), x)
        torch.testing.assert_close(run.unsent("a"), m)


def test_without_feedback_it_is_top_k_and_remembers_nothing() -> None:
    runs = []
    for method in (methods.compressed_gradient(0.2, feedback=False), methods.top_k(0.2)):
        run = Run(MLP, torch.optim.AdamW, method, False)
        for t in range(5):
            run.step(t)
        runs.append(run.tensors())
        assert not run.sgd.memory
    assert_same_bits(*runs)


def test_a_parameter_without_a_gradient_keeps_its_memory() -> None:
    run = Slopes(
        methods.compressed_gradient(0.2),
        lambda t: {n: g for n, g in whole_numbers(t).items() if n == "a" or t % 2 == 0},
    )
    run.step()
    before = run.unsent("b")
    assert before.any()
    step = run.step()
    assert step.mask["b"] is False and step.mask.count() == 3  # of the 15 that have a gradient
    assert torch.equal(run.unsent("b"), before)
    run.step()
    assert torch.equal(run.unsent("b") - run.model["b"], whole_numbers(0)["b"] + whole_numbers(2)["b"])


def test_random_k_draws_exactly_k_evenly_and_rescales_nothing() -> None:
    drawn, together = torch.zeros(22), 0
    run = Slopes(methods.compressed_gradient(4 / 22, kind="random-k", feedback=False))
    for t in range(800):
        before = torch.cat([p.detach().flatten() for p in run.model.values()])
        mask = run.step().mask
        flat = torch.cat([torch.as_tensor(mask[n]).expand(shape).flatten() for n, shape in SHAPES.items()])
        assert int(flat.sum()) == 4
        moved = before - torch.cat([p.detach().flatten() for p in run.model.values()])
        assert torch.equal(moved, flat * torch.cat([g.flatten() for g in whole_numbers(t).values()]))
        drawn += flat
        together += int(flat[0] & flat[15])  # the first of each tensor
    expected, deviation = 800 * 4 / 22, (800 * (4 / 22) * (18 / 22)) ** 0.5
    assert float((drawn - expected).abs().max()) < 4 * deviation
    assert abs(together - 800 * (4 * 3) / (22 * 21)) < 4 * (800 * 0.026) ** 0.5, "each tensor has draws of its own"


def test_random_k_is_a_function_of_seed_and_t_and_not_of_the_numbers() -> None:
    def masks(seed: int, factor: float) -> list[torch.Tensor]:
        method = methods.compressed_gradient(0.2, kind="random-k")
        run = Slopes(method, lambda t: {n: factor * g for n, g in whole_numbers(t).items()}, seed=seed)
        return [torch.as_tensor(run.step().mask["a"]).expand(SHAPES["a"]).clone() for _ in range(6)]

    first = masks(0, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(first, masks(0, -3.0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, masks(1, 1.0), strict=True))
    assert len({tuple(m.flatten().tolist()) for m in first}) == 6


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_never_gets_into_the_memory(kind: str, bad: float) -> None:
    """Of 50 coordinates one is sent, and a bad one must not be among those that are put away unseen."""
    method = methods.compressed_gradient(0.02, kind=kind)
    run = Slopes(method, lambda t: {"a": torch.arange(1.0, 51.0)}, nonfinite="skip")
    for _ in range(3):
        run.step()

    def with_a_finite_loss():
        loss = run.closure()
        run.model["a"].grad[0] = bad
        return loss

    before = run.unsent("a")
    assert run.sgd.step(with_a_finite_loss).skipped
    assert torch.equal(run.unsent("a"), before), "a skipped step changes nothing"
    assert not run.step().skipped
