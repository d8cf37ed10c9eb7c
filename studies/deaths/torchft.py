"""Replicas under torchft that are killed at random moments and started again, while the others go on."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any, final

import torch

import partialsgd as ps
from studies.deaths import replica

TIMEOUT = 300.0
"""Seconds after which a state that replicas should have reached counts as never reached."""
_LAST = 20
"""Steps that all replicas make together at the end."""


@final
@dataclass
class Replicas:
    """The processes of all replicas, by name."""

    lighthouse: str
    folder: Path
    names: tuple[str, ...]
    processes: dict[str, BaseProcess] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """A process that is forked from one that has imported everything, so that it is at work at once."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["studies.deaths.replica"])
        arguments = (self.lighthouse, name, self.folder)
        self.processes[name] = context.Process(target=replica.run, args=arguments, daemon=True)
        self.processes[name].start()

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].join()

    def steps(self, name: str) -> list[dict[str, Any]]:
        """The steps that the present process of a replica has committed."""
        return read_log(self.folder / f"{name}.{self.processes[name].pid}.jsonl")

    def wait_for_all(self, steps: int) -> None:
        """Wait until the present process of each replica has made so many steps."""
        deadline = time.monotonic() + TIMEOUT
        while not all(len(self.steps(name)) >= steps for name in self.names):
            ended = [name for name, process in self.processes.items() if process.exitcode is not None]
            if ended or time.monotonic() > deadline:
                what = f"replica {ended[0]} has ended" if ended else f"no {steps} steps in {TIMEOUT} s"
                raise RuntimeError(f"{what}: {(self.folder / f'{(ended or self.names)[0]}.log').read_text()[-3000:]}")
            time.sleep(0.02)

    def finish(self) -> None:
        """Let all replicas make some steps together, and end at the same one."""
        last = max(self.steps(name)[-1]["t"] for name in self.names)
        (self.folder / "stop.part").write_text(str(last + _LAST))
        (self.folder / "stop.part").rename(self.folder / "stop")
        for process in self.processes.values():
            process.join(TIMEOUT)


@contextmanager
def replicas(folder: Path, count: int) -> Iterator[Replicas]:
    """Start a lighthouse and so many replicas; all of them end with the block."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=200, heartbeat_timeout_ms=5000)
    address = f"http://localhost:{lighthouse.address().rpartition(':')[2]}"
    running = Replicas(address, folder, tuple(f"replica_{i}" for i in range(count)))
    try:
        for name in running.names:
            running.start(name)
        yield running
    finally:
        for process in running.processes.values():
            process.kill()
            process.join()
        lighthouse.shutdown()


def run(folder: Path, count: int, kills: int, random: Random, longest: float = 1.0) -> dict[str, Any]:
    """Kill a replica so many times, each at a random moment after all were at work, and compare what is left."""
    began = time.monotonic()
    with replicas(folder, count) as running:
        for _ in range(kills):
            running.wait_for_all(5)
            time.sleep(random.uniform(0, longest))
            name = random.choice(running.names)
            running.kill(name)
            time.sleep(random.uniform(0, longest))
            running.start(name)
        running.wait_for_all(5)
        running.finish()
    return {**compare(folder, running.names), "kills": kills, "seconds": round(time.monotonic() - began, 1)}


def compare(folder: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """True if all replicas ended with the same bits, agreed on every step, and have made what one process makes."""
    logs = [read_log(path) for path in sorted(folder.glob("*.jsonl"))]
    steps: dict[int, tuple[str, int, int]] = {}
    agree = True
    for record in (record for log in logs for record in log):
        step = (record["level"], record["size"], record["sent"])
        agree &= steps.setdefault(record["t"], step) == step
    states = [
        torch.load(folder / f"{name}.pt", weights_only=True) for name in names if (folder / f"{name}.pt").exists()
    ]
    alone = replay([steps[t][1] for t in range(len(steps))]) if sorted(steps) == list(range(len(steps))) else None
    return {
        "replicas": len(names),
        "lost": len(names) - len(states),
        "steps": len(steps),
        "dropped": sum(log[-1]["dropped"] for log in logs if log),
        "agree": agree,
        "equal": all(_same(state, states[0]) for state in states),
        "distance": None if alone is None or not states else _distance(states[0]["model"], alone),
        "sent": {level: sent for level, _, sent in steps.values()},
        "levels": [steps[t][0] for t in sorted(steps)][:2],
    }


def replay(sizes: list[int]) -> dict[str, torch.Tensor]:
    """The training in one process, whose step t sees the batches of as many replicas as took part in it."""
    nested = replica.network()
    sgd = ps.PartialSGD(nested, replica.optimizer_of(nested), ps.methods.alternating())

    def closure(size: int) -> torch.Tensor:
        loss = torch.stack([replica.loss_of(nested, sgd.t, rank) for rank in range(size)]).mean()
        loss.backward()
        return loss

    for size in sizes:
        sgd.step(lambda size=size: closure(size))
    return nested.state_dict()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The complete lines; a kill may have cut the last one."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _same(state: Any, other: Any) -> bool:
    if isinstance(state, torch.Tensor):
        return torch.equal(state, other)
    if isinstance(state, dict):
        return state.keys() == other.keys() and all(_same(state[key], other[key]) for key in state)
    if isinstance(state, list):
        return len(state) == len(other) and all(map(_same, state, other))
    return bool(state == other)


def _distance(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference between two states, relative to the largest number."""
    differences = [float((state[name] - other[name]).abs().max()) for name in other]
    return max(differences) / max(float(tensor.abs().max()) for tensor in other.values())
