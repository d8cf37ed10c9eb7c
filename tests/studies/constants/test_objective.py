"""Gradients and Hessian products against torch.func, and that taking them leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from torch.nn import functional as F

from partialsgd.testing.problems import PROBLEMS, Problem
from studies.constants.objective import Objective

EXACT = [p for p in PROBLEMS if not p.is_random]


def objective_of(problem: Problem, model: nn.Module, batches: int = 3) -> Objective:
    return Objective(model, lambda t: problem.evaluate(model, t), range(batches))


def as_function(problem: Problem, model: nn.Module, t: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """f_t of one flat vector, and where the model stands; a tied parameter is one."""
    parameters = dict(model.named_parameters())
    sizes = [p.numel() for p in parameters.values()]

    class Substitute(nn.Module):  # problems call the model: this one calls it with other parameters
        def __init__(self, flat: Tensor) -> None:
            super().__init__()
            parts = flat.split(sizes)
            self.given = {n: part.view_as(p) for (n, p), part in zip(parameters.items(), parts, strict=True)}

        def forward(self, *args: object) -> Tensor:
            return functional_call(model, self.given, args)

    flat = torch.cat([p.detach().flatten() for p in parameters.values()])
    return (lambda x: problem.evaluate(Substitute(x), t)), flat


def flatten(vector: dict[str, Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in vector.values()])


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """To the bit, and the gradients are the same objects."""

    def state() -> list[Tensor]:
        tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
        return [*(t.detach().clone() for t in tensors), torch.get_rng_state()]

    def identities() -> list[object]:
        flags = [torch.is_grad_enabled(), torch.backends.cuda.flash_sdp_enabled()]
        each = [(id(p), id(p.grad), p.requires_grad) for p in model.parameters()]
        return [*flags, *each, *(m.training for m in model.modules())]

    before, same = state(), identities()
    yield
    assert all(torch.equal(a, b) for a, b in zip(before, state(), strict=True))
    assert same == identities()


def test_nothing_is_left_behind_by_a_loss_that_raises_switches_modes_and_calls_backward() -> None:
    model = next(p for p in PROBLEMS if p.name == "batchnorm").model()

    def loss(batch: Tensor) -> Tensor:
        model.train()(batch).sum().backward()
        model.eval()
        raise RuntimeError("stop")

    with unchanged(model), pytest.raises(RuntimeError, match="stop"):
        Objective(model, loss, [torch.randn(4, 1, 6, 6, generator=torch.Generator())]).gradient(0)


@pytest.mark.parametrize("problem", EXACT, ids=lambda p: p.name)
def test_gradient_and_product_are_those_of_torch_func(problem: Problem) -> None:
    model = problem.model()
    objective = objective_of(problem, model)
    f, x = as_function(problem, model, 1)
    assert torch.allclose(flatten(objective.gradient(1)[1]), grad(f)(x), rtol=1e-4, atol=1e-6)
    assert objective.gradient(1)[0] == pytest.approx(float(f(x)))
    v = {n: torch.randn(p.shape, generator=torch.Generator().manual_seed(7)).to(p) for n, p in model.named_parameters()}
    expected = jacrev(grad(f))(x) @ flatten(v)
    assert torch.allclose(flatten(objective.product(1, v)), expected, rtol=1e-3, atol=1e-5 * float(expected.norm()))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 5, 2, 4).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v)


def test_fused_attention_has_no_second_derivative_and_is_not_used_for_products() -> None:
    model, x = Attention(), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    weight = model.project.weight
    (g,) = torch.autograd.grad(model(x).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative"):
        torch.autograd.grad(g.sum(), weight)
    objective = Objective(model, lambda batch: model(batch).square().sum(), [x])
    v = {name: torch.ones_like(p) for name, p in objective.parameters.items()}
    h = 1e-3
    gradients = []
    for sign in (1, -1):
        moved = Attention()
        moved.load_state_dict({n: p + sign * h * v[n] for n, p in model.state_dict().items()})
        gradients.append(flatten(Objective(moved, lambda b, m=moved: m(b).square().sum(), [x]).gradient(0)[1]))
    expected = (gradients[0] - gradients[1]) / (2 * h)
    assert torch.allclose(flatten(objective.product(0, v)), expected, rtol=0.02, atol=1e-2 * float(expected.norm()))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


def test_a_layer_without_second_derivative_is_named_with_the_remedy() -> None:
    model = nn.Linear(2, 1)
    objective = Objective(model, lambda x: Once.apply(model(x)).square().sum(), [torch.ones(1, 2)])
    v = {name: torch.ones_like(p) for name, p in objective.parameters.items()}
    with pytest.raises(NotImplementedError, match=r"once_differentiable.*smoothness="):
        objective.product(0, v)


def test_a_compiled_model_gives_gradients_and_refuses_products_with_the_remedy() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    compiled, x = torch.compile(model, backend="aot_eager"), torch.ones(3, 2)
    objective = Objective(compiled, lambda batch: compiled(batch).square().sum(), [x])
    plain = Objective(model, lambda batch: model(batch).square().sum(), [x])
    value, gradient = objective.gradient(0)
    assert value == pytest.approx(plain.gradient(0)[0]) and gradient.keys() == plain.parameters.keys()
    with pytest.raises(NotImplementedError, match=r"before torch\.compile"):
        objective.product(0, gradient)


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (lambda model, x: model(x).squeeze(1), ValueError, r"one number, got the shape \(3,\)"),
        (lambda model, x: 1.0, TypeError, "got float"),
        (lambda model, x: model(x).sum() * math.nan, ValueError, "loss of batch 0 is nan"),
        (lambda model, x: model(x).sum().detach(), ValueError, "no gradient"),
        (lambda model, x: nn.Linear(2, 1)(x).sum(), ValueError, "depends on no parameter"),
        (lambda model, x: (out := model(x).square().sum()).backward() or out, RuntimeError, "called backward itself"),
    ],
)
def test_wrong_losses_are_refused(loss: Callable[..., Tensor], error: type[Exception], message: str) -> None:
    model = nn.Linear(2, 1)
    with unchanged(model), pytest.raises(error, match=message):
        Objective(model, lambda x: loss(model, x), [torch.ones(3, 2)]).gradient(0)


def test_no_batches_no_parameters_and_sparse_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match="batches is empty"):
        Objective(nn.Linear(1, 1), torch.sum, [])
    with pytest.raises(ValueError, match="no parameter with requires_grad"):
        Objective(nn.ReLU(), torch.sum, [torch.ones(1)])
    sparse = nn.Embedding(4, 2, sparse=True)
    with pytest.raises(NotImplementedError, match="sparse=False"):
        Objective(sparse, lambda x: sparse(x).sum(), [torch.tensor([1])]).gradient(0)
