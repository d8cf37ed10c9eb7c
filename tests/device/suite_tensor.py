"""The pretended device behaves as a GPU does where that matters: what it refuses, and what it counts as a read."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partialsgd._util.snapshots import RandomState
from tests.device.pretended import DEVICE, NAME, Pretended, to_device, watch


def on(values: object) -> Tensor:
    return torch.tensor(values, device=DEVICE)


X, MASK = on([1.0, 2.0, 3.0]), on([True, False, True])


@pytest.mark.parametrize(
    "mix",
    [
        lambda: X + torch.ones(3),
        lambda: torch.ones(3).mul_(X),
        lambda: torch.ones(()).add_(X.sum()),
        lambda: torch.add(X, X, out=torch.empty(3)),
        lambda: torch.cat([X, torch.ones(3)]),
        lambda: torch.stack([X.sum(), torch.ones(())]),
        lambda: torch.where(torch.tensor([True, False, True]), X, X),
        lambda: X.masked_fill(torch.tensor([True, False, True]), 0.0),
        lambda: X.index_select(0, torch.tensor([0])),
        lambda: torch._foreach_add_([X.clone(), X.clone()], [X, torch.ones(3)]),
        lambda: F.linear(X, torch.ones(2, 3)),
        lambda: torch.rand(3, device=DEVICE, generator=torch.Generator()),
        lambda: torch.ones(3)[MASK],
    ],
)
def test_a_tensor_of_the_cpu_does_not_mix(mix: Callable[[], object]) -> None:
    before = X.cpu()
    with pytest.raises(RuntimeError, match=r"same device|device type for generator"):
        mix()
    assert torch.equal(X.cpu(), before)


def test_a_number_of_the_cpu_mixes_in_pointwise_operations_and_so_do_indices() -> None:
    assert (X + torch.tensor(1.0)).tolist() == [2.0, 3.0, 4.0]
    assert torch.where(MASK, X, torch.tensor(0.0)).tolist() == [1.0, 0.0, 3.0]
    assert X[torch.tensor([2, 0])].tolist() == [3.0, 1.0]
    moved = X.clone()
    torch._foreach_mul_([moved], torch.tensor(2.0))
    assert moved.tolist() == [2.0, 4.0, 6.0]


READS: dict[str, tuple[Callable[[], object], str]] = {
    "item": (lambda: X.sum().item(), "item"),
    "float": (lambda: float(X.sum()), "item"),
    "int": (lambda: int(MASK.count_nonzero()), "item"),
    "bool": (lambda: bool(MASK.any()), "item"),
    "if": (lambda: 1 if X.sum() > 0 else 2, "item"),
    "format": (lambda: f"{X.sum():.1f}", "item"),
    "tolist": (lambda: X.tolist(), "tolist"),
    "cpu": (lambda: X.cpu(), "copy to host"),
    "to": (lambda: X.to("cpu", torch.float64), "copy to host"),
    "copy_": (lambda: torch.empty(3).copy_(X), "copy to host"),
    "numpy": (lambda: X.numpy(force=True), "numpy"),
    "equal": (lambda: torch.equal(X, X), "equal"),
    "allclose": (lambda: torch.allclose(X, X), "allclose"),
    "nonzero": (lambda: X.nonzero(), "nonzero"),
    "where": (lambda: torch.where(MASK), "nonzero"),
    "masked_select": (lambda: X.masked_select(MASK), "masked_select"),
    "boolean index": (lambda: X[MASK], "boolean index"),
    "boolean index, assigned": (lambda: X.clone().__setitem__(MASK, on([0.0, 0.0])), "boolean index"),
    "unique": (lambda: X.unique(), "unique"),
    "synchronize": (lambda: torch.get_device_module(DEVICE).synchronize(), "synchronize"),
}


@pytest.mark.parametrize("name", READS)
def test_what_the_host_must_know_is_a_read_at_its_line(name: str) -> None:
    read, operation = READS[name]
    with watch() as traffic:
        read()
    assert [what for what, _ in traffic.reads] == [operation] and traffic.reads.total() == 1
    assert all(site.startswith("suite_tensor.py:") for _, site in traffic.reads)


@pytest.mark.parametrize(
    "work",
    [
        lambda: X.sum() + X.norm() * 2,
        lambda: X.clone().masked_fill_(MASK, 0.0),
        lambda: X.clone().__setitem__(MASK, 0.0),
        lambda: torch.where(MASK, X, 0.0).isfinite().all(),
        lambda: X.topk(2).values.min(),
        lambda: torch.nn.utils.clip_grad_norm_([_with_gradient()], 1.0),
        lambda: X.view(3, 1)[0].add_(0),
        lambda: copy.deepcopy(X),
        lambda: (X.shape, X.dtype, X.device, X.numel(), X.data_ptr(), X.stride()),
    ],
)
def test_work_on_the_device_reads_nothing(work: Callable[[], object]) -> None:
    with watch() as traffic:
        work()
    assert not traffic.reads and not traffic.uploads


def _with_gradient() -> Tensor:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    (x * x).sum().backward()
    return x


def test_copies_that_do_not_block_are_no_reads_and_copies_to_the_device_are_uploads() -> None:
    with watch() as traffic:
        X.to("cpu", non_blocking=True)
        on([1.0])
        torch.ones(3).to(DEVICE)
        torch.ones(3).to(DEVICE, non_blocking=True)
    assert not traffic.reads and traffic.late.total() == 1 and traffic.uploads.total() == 2


def test_a_read_inside_an_optimizer_of_torch_is_told_apart_from_ours() -> None:
    optimizer = torch.optim.Adafactor([_with_gradient()])
    with watch() as traffic:
        optimizer.step()
    assert traffic.reads and all(site.startswith("torch/optim/_adafactor.py:") for _, site in traffic.reads)


def test_numpy_is_refused() -> None:
    with pytest.raises(TypeError, match="device type tensor to numpy"):
        X.numpy()
    with pytest.raises(TypeError, match="device type tensor to numpy"):
        torch.ones(3, device=DEVICE).__array__()


def test_a_change_of_shape_in_place_is_refused_and_not_lost() -> None:
    with pytest.raises(NotImplementedError, match="changes the shape of a tensor in place"):
        X.clone().unsqueeze_(0)


def test_a_view_shares_its_numbers_and_its_gradient() -> None:
    x = torch.zeros(2, 3, device=DEVICE)
    x[0].fill_(1.0)
    x.t()[2] += 5
    assert x.tolist() == [[1.0, 1.0, 6.0], [0.0, 0.0, 5.0]]
    leaf = torch.ones(4, device=DEVICE, requires_grad=True)
    y = leaf * 2
    y.view(2, 2)[1].mul_(3)
    y.sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0, 2.0, 6.0, 6.0]
    assert leaf.grad.device == DEVICE


def test_the_device_draws_from_a_generator_of_its_own() -> None:
    torch.manual_seed(3)
    host = torch.get_rng_state()
    drawn = torch.rand(4, device=DEVICE)
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(drawn.cpu(), torch.rand(4)), "both were seeded with the same number"
    state = RandomState(to_device(nn.Linear(1, 1)))
    first, second = torch.rand(4, device=DEVICE), torch.rand(4, device=DEVICE)
    assert not state.is_now and not torch.equal(first, second)
    state.restore()
    assert state.is_now and torch.equal(torch.rand(4, device=DEVICE), first)


def test_a_moved_module_keeps_its_parameter_objects_and_its_ties() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    weight, before = model[0].weight, model[0].weight.detach().clone()
    to_device(model)
    assert model[0].weight is weight and model[1].weight is weight and weight.device == DEVICE
    assert isinstance(weight, Pretended) and isinstance(weight, nn.Parameter) and weight.requires_grad
    twin = copy.deepcopy(model)
    assert twin[0].weight is twin[1].weight and isinstance(twin[0].weight, nn.Parameter)
    with torch.no_grad():
        twin[0].weight.zero_()
    to_device(model, "cpu")
    assert model[0].weight is weight and type(weight) is nn.Parameter and torch.equal(weight, before)


def test_a_state_dict_goes_through_a_file_and_back() -> None:
    model = to_device(nn.Linear(3, 2))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for place in (None, "cpu"):
        file.seek(0)
        loaded = torch.load(file, weights_only=True, map_location=place)
        assert torch.equal(loaded["weight"].cpu(), model.weight.detach().cpu())
        assert loaded["weight"].device == (DEVICE if place is None else torch.device("cpu"))


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"capturable": True, "foreach": True}])
def test_torch_optimizers_give_the_same_bits_and_read_nothing(options: dict[str, bool]) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    twin = to_device(copy.deepcopy(model))
    # A capturable optimizer runs on an accelerator only, with the arithmetic of a tensor for the step.
    on_cpu = {name: value for name, value in options.items() if name != "capturable"}
    optimizers = (
        torch.optim.AdamW(model.parameters(), 0.1, **on_cpu),
        torch.optim.AdamW(twin.parameters(), 0.1, **options),
    )
    x = torch.randn(4, 3)
    with watch() as traffic:
        for _ in range(3):
            for network, optimizer, batch in zip((model, twin), optimizers, (x, x.to(DEVICE)), strict=True):
                optimizer.zero_grad()
                network(batch).square().mean().backward()
                optimizer.step()
    assert not traffic.reads
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        if "capturable" in options:
            torch.testing.assert_close(p.detach(), q.detach().cpu())
        else:
            assert torch.equal(p, q.cpu())


def test_autocast_multiplies_in_the_lower_precision_and_leaves_the_weights() -> None:
    model = nn.Linear(3, 2)
    twin = to_device(copy.deepcopy(model))
    x = torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
    with torch.autocast(NAME, torch.bfloat16):
        output = twin(x.to(DEVICE))
    assert output.dtype is torch.bfloat16 and torch.equal(output.cpu(), expected)
    output.float().sum().backward()
    assert twin.weight.grad is not None and twin.weight.grad.dtype is torch.float32
    assert twin(x.to(DEVICE)).dtype is torch.float32
