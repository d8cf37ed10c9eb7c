"""What is packed comes back: values to the bit, types, keys."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.checkpoints import pack, unpack
from tests.optimizer_zoo import ALL

Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

MAKES: dict[str, Make] = {
    **ALL,
    "LBFGS": lambda p: optim.LBFGS(p, 0.1, max_iter=3, line_search_fn="strong_wolfe"),
    "SparseAdam": lambda p: optim.SparseAdam(p, 0.01),
    "Adam with lr a tensor": lambda p: optim.Adam(p, torch.tensor(0.01), betas=(0.8, 0.9)),
}


def same(one: Any, two: Any) -> bool:
    """The same types all the way down, and the same bits; NaN is NaN."""
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        alike = one.dtype == two.dtype and one.shape == two.shape
        return alike and one.reshape(-1).view(torch.uint8).equal(two.reshape(-1).view(torch.uint8))
    if isinstance(one, dict):
        return [*one] == [*two] and all(
            type(a) is type(b) and same(one[a], two[b]) for a, b in zip(one, two, strict=True)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return repr(one) == repr(two)  # so that -0.0 is not 0.0, and NaN is NaN


@pytest.mark.parametrize("name", MAKES)
def test_the_state_of_every_optimizer_comes_back_from_the_disk_and_goes_on_to_the_bit(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, optimizer = made(MAKES[name])
    for _ in range(3):
        step(model, optimizer, name)
    state = optimizer.state_dict()
    checkpoints.save(tmp_path, 3, state, keep=1)
    found = checkpoints.latest(tmp_path)
    assert found is not None and found[0] == 3 and same(found[1], state)

    other, fresh = made(MAKES[name])
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(found[1])
    batch = torch.get_rng_state()
    step(model, optimizer, name)
    torch.set_rng_state(batch)
    step(other, fresh, name)
    assert same(dict(other.state_dict()), dict(model.state_dict()))


def made(make: Make) -> tuple[nn.Module, optim.Optimizer]:
    model = nn.Embedding(5, 3)
    return model, make(model.parameters())


def step(model: nn.Module, optimizer: optim.Optimizer, name: str) -> None:
    x = torch.randint(5, (4,))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.embedding(x, model.weight, sparse=name == "SparseAdam").square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**70),
        "tensor",
        "",
        -0.0,
        math.nan,
        math.inf,
        -math.inf,
        5e-324,
        0.1 + 0.2,
        (),
        [],
        {},
        (1, [2, (3,)], {"a": (4,)}),
        {0: "int", "0": "text", True: "a second key 1 would be"} | {1: "int"},
        {"tensor": "a name that says something else here", "dict": [], "tuple": ()},
        torch.tensor(3),
        torch.tensor(True),
        torch.tensor([math.nan, math.inf, -0.0]),
        torch.zeros(0, 4),
        torch.arange(6).reshape(2, 3).T,
        torch.ones(3, dtype=torch.bfloat16),
        torch.get_rng_state(),
        torch.ones(2, requires_grad=True).detach(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_every_kind_come_back(value: Any, tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 0, {"value": value}, keep=1)
    found = checkpoints.latest(tmp_path)
    expected = value.contiguous() if isinstance(value, Tensor) else value
    assert found is not None and same(found[1], {"value": expected})


def test_tensors_whose_paths_are_spelled_alike_are_not_mixed_up() -> None:
    state = {
        "a.b": torch.tensor(1),
        "a": {"b": torch.tensor(2)},
        0: torch.tensor(3),
        "0": torch.tensor(4),
        "0.": [torch.tensor(5)],
    }
    said, tensors = pack(state)
    assert len(tensors) == 5 and same(unpack(said, tensors), state)


def test_what_is_packed_does_not_follow_the_training() -> None:
    weight = torch.zeros(3)
    views = {"whole": weight, "part": weight[:2], "again": weight}  # safetensors refuses shared memory
    said, tensors = pack(views)
    weight.fill_(7)
    assert json.loads(json.dumps(said)) == said
    assert all(not tensor.any() for tensor in tensors.values())
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 3


def test_what_would_have_to_be_pickled_is_refused_with_its_place() -> None:
    with pytest.raises(
        TypeError, match=r"state\.optimizer\.1 is a set, which a checkpoint cannot hold: nothing is pickled"
    ):
        pack({"optimizer": [1, {2}]})
    with pytest.raises(TypeError, match=r"state\.a is a function"):
        pack({"a": same})
    with pytest.raises(TypeError, match=r"state\.a has the key \(1, 2\); a checkpoint holds only"):
        pack({"a": {(1, 2): 3}})
    with pytest.raises(TypeError, match=r"state has the key 0\.5"):
        pack({0.5: 1})


def test_packing_changes_nothing() -> None:
    state = {"a": torch.arange(3.0), "b": [(1, 2)]}
    before = copy.deepcopy(state)
    pack(state)
    assert same(state, before)
