"""Phases that zero for good, phases that start again from zero, and an optimizer that forgets between them."""

from __future__ import annotations

import copy

import pytest
import torch

from partialsgd import PartialSGD, methods
from partialsgd.methods.ac_dc import phase_at
from partialsgd.testing.runs import assert_same_bits
from tests.methods.training import assert_close, assert_resumes, conv_loss, conv_net, train, train_plainly, values

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

MATRICES = ("0.weight", "3.weight")
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.02),
}
each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def zeros(model) -> int:
    return sum(int((model.get_parameter(name) == 0).sum()) for name in MATRICES)


def start(method, make=OPTIMIZERS["sgd"], steps: int = 0, **options):
    model = conv_net()
    optimizer = make(model.parameters())
    sgd = PartialSGD(model, optimizer, method, **options)
    train(sgd, conv_loss, steps)
    return model, optimizer, sgd


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
    # Without an end it alternates, and without a warm-up it begins sparse.
    assert [phase_at(t, 0, 2, 1, None).is_sparse for t in range(7)] == [True, True, False] * 2 + [True]
    assert [phase_at(t, 3, 2, 2, 6).is_sparse for t in range(8)] == [False] * 6 + [True] * 2


@each_optimizer
def test_a_sparse_phase_written_out(make) -> None:
    """The network that is left, trained by an optimizer that goes on; what was pruned is zero and stays zero."""
    model, _, sgd = start(methods.ac_dc(0.7, warmup=2, sparse=3, dense=2), make, steps=2)
    twin = conv_net()
    other = make(twin.parameters())
    train_plainly(twin, other, conv_loss, 0, 1)
    kept = pruned_by_sorting(values(twin), 0.7)

    def project() -> None:
        with torch.no_grad():
            for name, inside in kept.items():
                twin.get_parameter(name).masked_fill_(~inside, 0)

    for t in range(2, 5):
        (step,) = train(sgd, conv_loss)
        project()
        train_plainly(twin, other, conv_loss, t)
        project()
        assert all(torch.equal(step.mask[name], inside) for name, inside in kept.items())
        assert step.mask["3.bias"] is True, "biases are never pruned"
        assert_close(model, twin)
        assert zeros(model) == round(0.7 * (54 + 120)), "exactly so many, in x itself"


def test_the_gradient_of_the_first_sparse_step_is_taken_at_the_pruned_network() -> None:
    *_, sgd = start(methods.ac_dc(0.5, warmup=1, sparse=3, dense=1))
    seen = []
    train(sgd, lambda model, t: seen.append(zeros(model)) or conv_loss(model, t), 5)
    assert seen == [0, 87, 87, 87, 87], "also the first dense step begins at the pruned network"


@each_optimizer
def test_a_dense_phase_begins_at_zero_with_a_new_optimizer_and_all_weights_move(make) -> None:
    model, optimizer, sgd = start(methods.ac_dc(0.5, warmup=1, sparse=2, dense=3), make, steps=3)
    assert optimizer.state[model[0].weight] and zeros(model) == 87
    twin = copy.deepcopy(model)
    new = make(twin.parameters())
    for t in range(3, 6):
        assert train(sgd, conv_loss)[0].mask.is_everything and zeros(model) == 0
        train_plainly(twin, new, conv_loss, t)
        assert_same_bits(values(model), values(twin))
        assert not any(key.startswith("magnitudes.") for key in sgd.memory), "a dense phase remembers nothing"


def test_the_choice_of_a_phase_stands_also_when_a_weight_that_is_kept_becomes_zero() -> None:
    model, _, sgd = start(methods.ac_dc(0.5, warmup=0, sparse=3, dense=1))
    mask = train(sgd, conv_loss)[0].mask
    with torch.no_grad():
        model[3].weight[tuple(mask["3.weight"].nonzero()[-1])] = 0
    again = train(sgd, conv_loss)[0].mask
    assert all(torch.equal(again[name], mask[name]) for name in MATRICES)


def test_a_warm_up_and_phases_without_reset_go_on_with_the_optimizer_they_have() -> None:
    model = conv_net()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train_plainly(model, optimizer, conv_loss, 0)
    train(PartialSGD(model, optimizer, methods.ac_dc(0.5, warmup=2, sparse=1, dense=1)), conv_loss)
    assert float(optimizer.state[model[0].weight]["step"]) == 2
    method = methods.ac_dc(0.5, warmup=1, sparse=1, dense=2, reset=False)
    model, optimizer, _ = start(method, OPTIMIZERS["adam"], steps=3)
    assert float(optimizer.state[model[0].weight]["step"]) == 3


def test_from_until_on_it_is_sparse_to_the_end_and_extract_gives_it() -> None:
    model, _, sgd = start(methods.ac_dc(0.5, warmup=1, sparse=1, dense=1, until=4))
    counts = []
    for _ in range(8):
        train(sgd, conv_loss)
        counts.append(zeros(model))
    assert counts == [0, 87, 0, 0, 87, 87, 87, 87]
    assert_same_bits(values(model), values(sgd.extract()))


@pytest.mark.parametrize("stop", range(1, 9))
@each_optimizer
def test_a_run_may_stop_in_any_phase(make, stop: int) -> None:
    assert_resumes(methods.ac_dc(0.6, warmup=1, sparse=3, dense=2, until=8), stop, 11, make=make)
