"""A replica under torchft is killed at a random moment and comes back; the others go on, and all end with one state."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from partialsgd import Width, distributed, methods, nest
from studies.deaths import replica as replica_program
from studies.deaths.torchft import run
from tests.functions import backward


def test_a_killed_replica_comes_back_and_all_make_what_one_process_makes(tmp_path: Path) -> None:
    seed = int(time.time())
    found = run(tmp_path, count=2, kills=1, random=random.Random(seed), longest=0.5)
    print(f"seed {seed}: {found}")
    assert found["lost"] == 0 and found["steps"] > 20
    assert found["agree"], "level, number of replicas and bytes of each step, on all replicas that committed it"
    assert found["equal"], "model, optimizer and PartialSGD, to the bit"
    assert found["distance"] < 1e-4, "and they are what one process makes of the same batches"
    nested = replica_program.network()
    sizes = {level: 4 * sum(p.numel() for p in nested.parameters(level=level)) for level in nested.levels}
    assert found["sent"] == sizes and found["levels"] == ["full", "core"], "a core step sends the core"


class _Votes:
    """A manager of one replica that commits or drops each step as it is told."""

    _use_async_quorum = False

    def __init__(self, votes: Sequence[bool]) -> None:
        self._votes = iter(votes)
        self.asked_at: list[tuple[int, torch.Tensor]] = []
        """t and x when it was asked whether to commit."""
        self.replica: distributed.ElasticReplica | None = None

    def register_state_dict_fn(self, key: str, load: Callable[[Any], None], state: Callable[[], Any]) -> None:
        self.load, self.state = load, state

    def start_quorum(self) -> None:
        pass

    def allreduce(self, tensor: torch.Tensor) -> Any:
        return SimpleNamespace(wait=lambda: None)

    def errored(self) -> None:
        return None

    def should_commit(self) -> bool:
        assert self.replica is not None
        parameters = [p.detach().flatten() for p in self.replica.sgd.parameters.values()]
        self.asked_at.append((self.replica.t, torch.cat(parameters).clone()))
        return next(self._votes)


def _replica(votes: Sequence[bool]) -> tuple[_Votes, distributed.ElasticReplica, nn.Module]:
    torch.manual_seed(0)
    nested = nest(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), Width(0.5))
    manager = _Votes(votes)
    optimizer = torch.optim.AdamW(nested.parameters(), 0.1)
    method = methods.guarded(methods.random_mask(0.5), bound=1.5, every=2)  # it has a memory, and masks that follow t
    manager.replica = distributed.elastic(nested, optimizer, method, manager=manager, seed=3)
    return manager, manager.replica, nested


def _closure(model: nn.Module, number: int) -> Callable[[], torch.Tensor]:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(number))
    return lambda: backward(model(x).square().mean())


def _state(replica: distributed.ElasticReplica, manager: _Votes) -> str:
    torch.set_printoptions(precision=10, threshold=10**6)
    return repr(manager.state())


def test_a_step_is_committed_before_anything_moves_and_t_counts_committed_steps_only() -> None:
    manager, replica, model = _replica([True, False, False, True, True])
    twin_manager, twin, twin_model = _replica([True] * 3)
    masks = []
    for number in range(5):
        before, t = _state(replica, manager), replica.t
        start = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
        step = replica.step(_closure(model, number))
        asked_t, asked_x = manager.asked_at[-1]
        assert asked_t == t and torch.equal(asked_x, start), "asked before the update"
        if step is None:
            assert replica.t == t and _state(replica, manager) == before, "nothing has moved, nothing is remembered"
        else:
            assert replica.t == t + 1
            masks.append(step.mask)
    for number, mask in zip((0, 3, 4), masks, strict=True):
        step = twin.step(_closure(twin_model, number))
        assert step is not None and all(torch.equal(*map(torch.as_tensor, (mask[n], step.mask[n]))) for n in mask)
    assert _state(twin, twin_manager) == _state(replica, manager), "as if the dropped steps had never been"


def test_the_state_travels_to_a_replica_that_comes_back() -> None:
    manager, replica, model = _replica([True] * 8)
    new_manager, new, new_model = _replica([True] * 3)
    for number in range(5):
        replica.step(_closure(model, number))
    new.step(_closure(new_model, 9))  # it was elsewhere
    new_manager.load(copy.deepcopy(manager.state()))
    assert new.t == 5 and _state(new, new_manager) == _state(replica, manager)
    for number in range(5, 7):
        steps = replica.step(_closure(model, number)), new.step(_closure(new_model, number))
        assert all(torch.equal(*map(torch.as_tensor, (steps[0].mask[n], steps[1].mask[n]))) for n in steps[0].mask)
    assert _state(new, new_manager) == _state(replica, manager)


class _Asynchronous:
    _use_async_quorum = True


def test_a_manager_that_heals_in_the_middle_of_a_step_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="use_async_quorum=False"):
        distributed.elastic(model, optimizer, manager=_Asynchronous())
