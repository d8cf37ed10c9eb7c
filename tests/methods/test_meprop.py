"""The truncated backward against the dense computation with dy truncated by the same index."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

from partialsgd import PartialSGD, methods
from partialsgd._util.bitwise_select import rows_of
from partialsgd.masks import Mask
from tests.methods.training import are_equal, assert_close, sgd_of, values

LAWS = {"": methods.meprop(3), "unmasked": methods.meprop(3, mask=False)}
REFUSED_PROBLEMS = dict.fromkeys(LAWS, ("quadratic",))
IDENTITY = [methods.meprop(64)]
REFUSED_SETTINGS = [({"k": 0}, "k must be a whole number")]

SIZES = (12, 20, 16, 24, 5)


def network(bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in pairwise(SIZES):
        layers += [nn.Linear(a, b, bias=bias, dtype=dtype), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def batch(t: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(t)
    return torch.randn(7, 12, generator=generator, dtype=dtype), torch.randint(5, (7,), generator=generator)


def closure(model: nn.Module, t: int, dtype: torch.dtype = torch.float32):
    def run() -> Tensor:
        x, y = batch(t, dtype)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return run


def by_hand(model: nn.Sequential, t: int, k: int) -> dict[str, Tensor]:
    """The chain rule written out with dense matrices: dy is truncated by zeros in every layer but the last."""
    x, y = batch(t, next(model.parameters()).dtype)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    inputs, h = [], x
    with torch.no_grad():
        for n, layer in enumerate(layers):
            inputs.append(h)
            out = h @ layer.weight.t() + (0 if layer.bias is None else layer.bias)
            h = torch.tanh(out) if n + 1 < len(layers) else out
        d = (h.softmax(1) - F.one_hot(y, 5)) / len(x)
        found = {}
        for n in reversed(range(len(layers))):
            cut = d
            if n + 1 < len(layers):
                score = d.abs().sum(0, keepdim=True).expand_as(d)
                kept = score.topk(min(k, d.shape[1]), 1).indices
                cut = torch.zeros_like(d).scatter(1, kept, d.gather(1, kept))
            found[f"{2 * n}.weight"] = cut.t() @ inputs[n]
            if layers[n].bias is not None:
                found[f"{2 * n}.bias"] = d.sum(0)  # dense
            d = (cut @ layers[n].weight) * (1 - inputs[n] ** 2)
    return found


def gradient_of(model: nn.Module, method, run) -> tuple[dict[str, Tensor], Mask]:
    before = values(model)
    mask = sgd_of(model, method, 1.0).step(run).mask
    return {n: before[n] - p.detach() for n, p in model.named_parameters()}, mask


@pytest.mark.parametrize("k", [4, 16])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_is_the_dense_computation_with_dy_truncated(mask: bool, bias: bool, k: int) -> None:
    """k = 16 is all of the second layer and part of the others."""
    model = network(bias, torch.float64)
    expected = by_hand(model, 3, k)
    found, p = gradient_of(model, methods.meprop(k, mask=mask), closure(model, 3, torch.float64))
    for name, g in expected.items():
        torch.testing.assert_close(found[name], g, rtol=1e-9, atol=1e-12)
    received = {n: (g != 0).any(1) for n, g in expected.items() if g.ndim == 2}
    for name in ("0.weight", "2.weight", "4.weight"):
        if mask:
            rows = p[name] if isinstance(p[name], bool) else rows_of(p[name])
            assert torch.equal(torch.as_tensor(rows).expand(len(received[name])), received[name])
        assert int(received[name].sum()) == k
    assert p["6.weight"] is True and (not bias or p["0.bias"] is True)
    assert mask or p.is_everything


def test_without_the_mask_it_is_adam_on_the_truncated_gradient() -> None:
    """The authors' code: a raw Adam loop that is fed the chain rule written out."""
    model, twin = network(dtype=torch.float64), network(dtype=torch.float64)
    sgd = PartialSGD(model, torch.optim.Adam(model.parameters(), 0.01), methods.meprop(3, mask=False))
    adam = torch.optim.Adam(twin.parameters(), 0.01)
    for t in range(5):
        sgd.step(closure(model, t, torch.float64))
        for n, g in by_hand(twin, t, 3).items():
            twin.get_parameter(n).grad = g
        adam.step()
        assert_close(model, twin, rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of torch's older weight norm
def test_a_weight_that_is_computed_from_others() -> None:
    model = network()
    prune.l1_unstructured(model[0], "weight", 0.5)
    mask = sgd_of(model, methods.meprop(3)).step(closure(model, 0)).mask
    assert mask["0.weight_orig"] is True and int(rows_of(mask["2.weight"]).sum()) == 3


def test_a_copy_of_everything_is_truncated_too_and_a_stranger_is_refused() -> None:
    model = network()
    sgd = sgd_of(model, methods.meprop(3))
    sgd.step(closure(model, 0))
    copied, other = copy.deepcopy((model, sgd))
    assert sgd.step(closure(model, 1)).mask.count() == other.step(closure(copied, 1)).mask.count()
    assert are_equal(model, copied)
    stranger = network()
    with pytest.raises(ValueError, match="was bound to another model"):
        sgd_of(stranger, sgd.method)


def test_it_says_when_nothing_is_truncated(caplog: pytest.LogCaptureFixture) -> None:
    methods.meprop(64).bind(network())
    assert "no nn.Linear but the last has more than 64 outputs" in caplog.text


def test_what_cannot_be_truncated_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no nn\.Linear"):
        methods.meprop(3).bind(nn.Sequential(nn.Conv2d(1, 2, 3)))


def test_what_is_added_to_a_gradient_does_not_come_back_in_the_next_step() -> None:
    """The memory of dW is used again: a penalty's rows must be cleared from it."""
    model, twin = network(), network()
    sgd = sgd_of(model, methods.meprop(3, mask=False))

    def penalised(net: nn.Module, t: int):
        def run() -> Tensor:
            loss = closure(net, t)()
            (0.1 * sum(p.square().sum() for p in net.parameters())).backward()
            return loss

        return run

    for t in range(4):
        fresh = methods.meprop(3, mask=False)
        twin.load_state_dict(model.state_dict())
        other = sgd_of(twin, fresh)
        sgd.step(penalised(model, t))
        other.step(penalised(twin, t))
        assert_close(model, twin, rtol=1e-6, atol=1e-7)


def test_it_lives_with_inplace_activations_keyword_calls_and_other_hooks() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.c = nn.Linear(12, 20), nn.Linear(20, 16), nn.Linear(16, 5)
            self.extra = nn.Parameter(torch.randn(20, 12))
            self.a.register_forward_hook(lambda m, i, o: o + 0 * o if not i else o + i[0] @ self.extra.t())

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu_(self.a(x))
            h = torch.relu_(self.b(input=h))
            y: Tensor = self.c(h)
            return y

    net = Net()
    sgd = sgd_of(net, methods.meprop(3))
    before = net.extra.detach().clone()
    mask = sgd.step(closure(net, 0)).mask
    assert int(rows_of(mask["a.weight"]).sum()) <= 3 and not torch.equal(net.extra, before)


def test_a_backward_outside_of_a_step_is_whole() -> None:
    model, twin = network(), network()
    methods.meprop(2).bind(model)
    closure(model, 0)()
    closure(twin, 0)()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_micro_batches_shared_layers_and_penalties_add_up() -> None:
    """What is added to a truncated gradient is in the mask too, and memory that is still in use is not used again."""
    model, twin = network(), network()
    sgd = sgd_of(model, methods.meprop(3), 1.0)
    kept = []
    for t in range(3):
        before = values(model)
        twin.load_state_dict(model.state_dict())
        expected = [by_hand(twin, 10 * t + k, 3) for k in range(2)]

        def two(t=t) -> Tensor:
            loss = closure(model, 10 * t)() + closure(model, 10 * t + 1)()
            kept.append((model[0].weight.grad, model[0].weight.grad.clone()))
            return loss

        step = sgd.step(two)
        for name, p in model.named_parameters():
            total = expected[0][name] + expected[1][name]
            torch.testing.assert_close(before[name] - p, total, rtol=1e-4, atol=1e-6)
        assert int(rows_of(step.mask["0.weight"]).sum()) in range(3, 7)
    assert all(torch.equal(held, copied) for held, copied in kept), "a gradient that someone holds was overwritten"

    def penalised() -> Tensor:
        loss = closure(model, 99)()
        penalty = model[0].weight.square().sum()
        penalty.backward()
        return loss + penalty

    assert sgd.step(penalised).mask["0.weight"] is True


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo's own doing
def test_autocast_and_compiled_models() -> None:
    torch.compiler.reset()
    model, compiled = network(), network()
    ours = sgd_of(model, methods.meprop(3))
    method = methods.meprop(3)
    wrapped = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    other = PartialSGD(wrapped, torch.optim.SGD(compiled.parameters(), 0.1), method)
    for t in range(3):
        ours.step(closure(model, t))
        other.step(closure(wrapped, t))
    assert_close(model, compiled)
    low = network()
    sgd = sgd_of(low, methods.meprop(3), 1.0)
    exact = by_hand(copy.deepcopy(low), 0, 3)
    before = low[6].weight.detach().clone()

    def run() -> Tensor:
        x, y = batch(0)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(low(x), y)
        loss.backward()
        return loss

    step = sgd.step(run)
    assert int(rows_of(step.mask["0.weight"]).sum()) == 3
    torch.testing.assert_close(before - low[6].weight, exact["6.weight"], rtol=0.1, atol=0.02)
