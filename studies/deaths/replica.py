"""One replica of an alternating training under torchft, as a process.

It trains until the file `stop` names a step, logs each step that was committed, and saves its state at the end.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo

import partialsgd as ps
from partialsgd.distributed import elastic

PAUSE = 0.05
"""Seconds between steps, so that replicas of one machine do not take all of it."""


def network() -> ps.Nested:
    torch.manual_seed(0)
    return ps.nest(
        nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)), ps.Width(0.25)
    )


def optimizer_of(nested: ps.Nested) -> torch.optim.Optimizer:
    return torch.optim.SGD(nested.parameters(), 0.05, momentum=0.9)


def loss_of(nested: ps.Nested, t: int, rank: int) -> Tensor:
    """The loss on a batch that is a function of the step and of the rank among those that take part."""
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * t + rank))
    return nn.functional.mse_loss(nested(x), x[:, :4].sin())


def run(lighthouse: str, name: str, folder: Path) -> None:
    """Be the process: train, and end without waiting for the threads of torchft."""
    os.setsid()
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    try:
        train(lighthouse, name, folder)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def train(lighthouse: str, name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager: Any = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=timedelta(seconds=20),
        quorum_timeout=timedelta(seconds=120),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=name,
        hostname="localhost",
    )
    nested = network()
    optimizer = optimizer_of(nested)
    replica = elastic(nested, optimizer, ps.methods.alternating(), manager=manager)

    def closure() -> Tensor:
        loss = loss_of(nested, replica.t, replica.rank)
        loss.backward()
        return loss

    dropped = 0
    with (folder / f"{name}.{os.getpid()}.jsonl").open("w") as log:
        while not _is_over(folder, replica.t):
            sent = replica.bytes_averaged
            step = replica.step(closure)
            if step is None:
                dropped += 1
                continue
            record = {"t": step.t, "level": step.level, "size": replica.size, "sent": replica.bytes_averaged - sent}
            log.write(json.dumps({**record, "dropped": dropped}) + "\n")
            log.flush()
            time.sleep(PAUSE)
    states = {"model": nested, "optimizer": optimizer, "sgd": replica.sgd}
    torch.save({key: each.state_dict() for key, each in states.items()}, folder / f"{name}.part")
    (folder / f"{name}.part").rename(folder / f"{name}.pt")
    manager.shutdown(wait=False)


def _is_over(folder: Path, t: int) -> bool:
    stop = folder / "stop"
    return stop.exists() and t >= int(stop.read_text())
