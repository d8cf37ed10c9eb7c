"""A replica under torchft is killed at a random moment and comes back; the others go on, and all end with one state."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from partialsgd import distributed
from studies.deaths import replica
from studies.deaths.torchft import run


def test_a_killed_replica_comes_back_and_all_make_what_one_process_makes(tmp_path: Path) -> None:
    seed = int(time.time())
    found = run(tmp_path, count=2, kills=1, random=random.Random(seed), longest=0.5)
    print(f"seed {seed}: {found}")
    assert found["lost"] == 0 and found["steps"] > 20
    assert found["agree"], "level, number of replicas and bytes of each step, on all replicas that committed it"
    assert found["equal"], "model, optimizer and PartialSGD, to the bit"
    assert found["distance"] < 1e-4, "and they are what one process makes of the same batches"
    nested = replica.network()
    sizes = {level: 4 * sum(p.numel() for p in nested.parameters(level=level)) for level in nested.levels}
    assert found["sent"] == sizes and found["levels"] == ["full", "core"], "a core step sends the core"


class _Asynchronous:
    _use_async_quorum = True


def test_a_manager_that_heals_in_the_middle_of_a_step_is_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="use_async_quorum=False"):
        distributed.elastic(model, optimizer, manager=_Asynchronous())
