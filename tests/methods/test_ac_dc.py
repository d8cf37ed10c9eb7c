"""Phases that zero for good, phases that start again from zero, and an optimizer that forgets between them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd import PartialSGD, methods
from partialsgd.methods.ac_dc import phase_at
from partialsgd.testing.problems import PROBLEMS
from partialsgd.testing.runs import Run, assert_same_bits

LAWS = {
    "": methods.ac_dc(0.6, warmup=1, sparse=2, dense=1),
    "rows": methods.ac_dc(0.6, warmup=0, sparse=1, dense=1, until=4, scope="layer", unit="rows"),
}
IDENTITY = [methods.ac_dc(0.0, warmup=1, sparse=1, dense=1)]
REFUSED_SETTINGS = [
    ({"sparsity": -0.1}, r"sparsity must be in \[0, 1\)"),
    ({"sparse": 0}, "sparse must be a whole number of at least 1"),
    ({"dense": 0}, "dense must be a whole number of at least 1"),
    ({"warmup": -1}, "warmup must be a whole number of at least 0"),
    ({"warmup": 10, "until": 9}, "until must be a whole number of at least 10, got 9"),
    ({"scope": "row"}, "scope must be one of"),
    ({"unit": "neurons"}, "unit must be one of"),
]

LAWS = {
    "": methods.ac_dc(0.6, warmup=1, sparse=2, dense=1),
    "rows": methods.ac_dc(0.6, warmup=0, sparse=1, dense=1, until=4, scope="layer", unit="rows"),
}
IDENTITY = [methods.ac_dc(0.0, warmup=0, sparse=1, dense=1)]

MATRICES = ("0.weight", "3.weight")
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.02),
}
each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 5))


def loss_of(model: nn.Module, t: int) -> torch.Tensor:
    loss = (model(torch.randn(7, 1, 4, 4, generator=torch.Generator().manual_seed(t))) - 1).square().mean()
    loss.backward()
    return loss


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def zeros(x: dict[str, torch.Tensor]) -> int:
    return sum(int((x[name] == 0).sum()) for name in MATRICES)


def start(method, make=OPTIMIZERS["sgd"]):
    model = net()
    optimizer = make(model.parameters())
    return model, optimizer, PartialSGD(model, optimizer, method)


def pruned_by_sorting(x: dict[str, torch.Tensor], sparsity: float) -> dict[str, torch.Tensor]:
    sizes = torch.cat([x[name].abs().flatten() for name in MATRICES])
    threshold = sizes.sort().values[round(sparsity * len(sizes))]
    return {name: x[name].abs() >= threshold for name in MATRICES}


def test_the_schedule_of_the_authors() -> None:
    """100 epochs: pruned at 10, 20, … 70, restored at 15, 25, … 75, pruned at 85 to the end."""
    phases = [phase_at(t, warmup=10, sparse=5, dense=5, until=85) for t in range(100)]
    begun = [phase.began for phase in dict.fromkeys(phases) if phase.is_sparse]
    assert begun == [10, 20, 30, 40, 50, 60, 70, 85]
    assert [phase.began for phase in dict.fromkeys(phases) if not phase.is_sparse] == [0, *range(15, 80, 10)]
    assert all(
        phase.is_sparse == any(b <= t < b + (15 if b == 85 else 5) for b in begun) for t, phase in enumerate(phases)
    )


def test_without_an_end_it_alternates_and_without_a_warm_up_it_begins_sparse() -> None:
    assert [phase_at(t, 0, 2, 1, None).is_sparse for t in range(7)] == [True, True, False] * 2 + [True]
    assert [phase_at(t, 3, 2, 2, 6).is_sparse for t in range(8)] == [False] * 6 + [True] * 2


@each_optimizer
def test_a_sparse_phase_written_out(make) -> None:
    """The network that is left, trained by an optimizer that goes on; what was pruned is zero and stays zero."""
    model, _, sgd = start(methods.ac_dc(0.7, warmup=2, sparse=3, dense=2), make)
    for t in range(2):
        sgd.step(lambda t=t: loss_of(model, t))
    twin = net()
    other = make(twin.parameters())
    for t in range(2):
        other.zero_grad()
        loss_of(twin, t)
        other.step()
    kept = pruned_by_sorting(values(twin), 0.7)

    def project() -> None:
        with torch.no_grad():
            for name, inside in kept.items():
                twin.get_parameter(name).masked_fill_(~inside, 0)

    for t in range(2, 5):
        step = sgd.step(lambda t=t: loss_of(model, t))
        project()
        other.zero_grad()
        loss_of(twin, t)
        other.step()
        project()
        for name, inside in kept.items():
            assert torch.equal(step.mask[name], inside)
        assert step.mask["3.bias"] is True, "biases are never pruned"
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), twin.get_parameter(name).detach())
        assert zeros(values(model)) == round(0.7 * (54 + 120)), "exactly so many, in x itself"


def test_the_gradient_of_the_first_sparse_step_is_taken_at_the_pruned_network() -> None:
    model, _, sgd = start(methods.ac_dc(0.5, warmup=1, sparse=3, dense=1))
    seen = []

    def closure(t):
        seen.append(zeros(values(model)))
        return loss_of(model, t)

    for t in range(5):
        sgd.step(lambda t=t: closure(t))
    assert seen == [0, 87, 87, 87, 87], "also the first dense step begins at the pruned network"


@each_optimizer
def test_restored_weights_start_at_zero_and_then_move(make) -> None:
    model, _, sgd = start(methods.ac_dc(0.5, warmup=1, sparse=2, dense=2), make)
    for t in range(3):
        sgd.step(lambda t=t: loss_of(model, t))
    before = values(model)
    restored = {name: before[name] == 0 for name in MATRICES}
    assert sum(int(r.sum()) for r in restored.values()) == 87
    assert sgd.step(lambda: loss_of(model, 3)).mask.is_everything
    after = values(model)
    assert all((after[name][restored[name]] != 0).all() for name in MATRICES), "all of them move in a dense phase"
    assert not any(key.startswith("magnitudes.") for key in sgd.memory), "a dense phase remembers nothing"


@each_optimizer
def test_the_dense_phase_is_that_of_a_new_optimizer(make) -> None:
    model, optimizer, sgd = start(methods.ac_dc(0.5, warmup=1, sparse=2, dense=3), make)
    for t in range(3):
        sgd.step(lambda t=t: loss_of(model, t))
    assert optimizer.state[model[0].weight]
    twin = net()
    twin.load_state_dict(model.state_dict())
    new = make(twin.parameters())
    for t in range(3, 6):
        sgd.step(lambda t=t: loss_of(model, t))
        new.zero_grad()
        loss_of(twin, t)
        new.step()
        assert_same_bits(values(model), values(twin))


def test_the_choice_of_a_phase_stands_also_when_a_weight_that_is_kept_becomes_zero() -> None:
    model, _, sgd = start(methods.ac_dc(0.5, warmup=0, sparse=3, dense=1))
    mask = sgd.step(lambda: loss_of(model, 0)).mask
    last = mask["3.weight"].nonzero()[-1]
    with torch.no_grad():
        model[3].weight[tuple(last)] = 0
    again = sgd.step(lambda: loss_of(model, 1)).mask
    assert all(torch.equal(again[name], mask[name]) for name in MATRICES)


def test_a_warm_up_goes_on_with_the_optimizer_it_is_given() -> None:
    model = net()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    loss_of(model, 0)
    optimizer.step()
    PartialSGD(model, optimizer, methods.ac_dc(0.5, warmup=2, sparse=1, dense=1)).step(lambda: loss_of(model, 1))
    assert float(optimizer.state[model[0].weight]["step"]) == 2


def test_without_reset_the_optimizer_goes_on() -> None:
    model, optimizer, sgd = start(methods.ac_dc(0.5, warmup=1, sparse=1, dense=2, reset=False), OPTIMIZERS["adam"])
    for t in range(3):
        sgd.step(lambda t=t: loss_of(model, t))
    assert float(optimizer.state[model[0].weight]["step"]) == 3


def test_from_until_on_it_is_sparse_to_the_end_and_extract_gives_it() -> None:
    model, _, sgd = start(methods.ac_dc(0.5, warmup=1, sparse=1, dense=1, until=4))
    counts = []
    for t in range(8):
        sgd.step(lambda t=t: loss_of(model, t))
        counts.append(zeros(values(model)))
    assert counts == [0, 87, 0, 0, 87, 87, 87, 87]
    assert_same_bits(values(model), values(sgd.extract()))


@pytest.mark.parametrize("stop", range(1, 9))
@each_optimizer
def test_a_run_may_stop_in_any_phase(make, stop: int) -> None:
    method = methods.ac_dc(0.6, warmup=1, sparse=3, dense=2, until=8)
    whole, resumed = (Run(PROBLEMS[1], make, method, False) for _ in range(2))
    for t in range(11):
        if t == stop:
            resumed.load(whole.save())
        whole.step(t)
    for t in range(stop, 11):
        resumed.step(t)
    assert_same_bits(whole.tensors(), resumed.tensors())


@pytest.mark.parametrize("first", [1, 3], ids=["sparse", "dense"])
def test_a_skipped_step_at_the_start_of_a_phase_prunes_and_forgets_nothing(first: int) -> None:
    model = net()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    sgd = PartialSGD(model, optimizer, methods.ac_dc(0.5, warmup=1, sparse=2, dense=2), nonfinite="skip")
    for t in range(first):
        sgd.step(lambda t=t: loss_of(model, t))
    before, counted = values(model), float(optimizer.state[model[0].weight]["step"])
    assert sgd.step(lambda: loss_of(model, 9) * float("nan")).skipped
    assert_same_bits(before, values(model))
    assert float(optimizer.state[model[0].weight]["step"]) == counted
