"""One training: a method, a task, a seed. What it reaches, what it takes."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import partialsgd as ps
from benchmarks.methods.rows import Row
from benchmarks.methods.settings import SETTINGS, Plan, nest
from benchmarks.methods.tasks import Data, Part, Task
from partialsgd.method import Method

MOMENTUM = 0.9
WARM_UP = 10
COUNTED = 7
"""Every so many steps the FLOPs are counted and the time is not. No schedule has this period."""


def prepared(task: Task, name: str, seed: int) -> tuple[Plan, Method]:
    """The network, as the method wants it, and the method."""
    torch.manual_seed(seed)
    network = task.network()
    layers = tuple(name for name, child in network.named_children() if list(child.parameters()))
    plan = Plan(nest(network, SETTINGS[name]), layers, task.steps)
    return plan, SETTINGS[name].method(plan)


@final
@dataclass(frozen=True)
class Trial:
    """What was reached with one learning rate."""

    rate: float
    held_out: float
    whole: float | None
    small: float | None
    seconds: float
    flops: float


def train(task: Task, name: str, seed: int, folder: Path | None = None) -> Row:
    """With each learning rate of the task; what counts is the one that does best on held-out data."""
    data = task.load(folder)
    trials = [trial for rate in task.rates if (trial := attempt(task, name, seed, rate, data)) is not None]
    if not trials:
        raise FloatingPointError(f"{name} diverges on {task.name} with each learning rate of {task.rates}")
    best = max(trials, key=lambda trial: trial.held_out)
    return Row(
        task=task.name,
        method=name,
        seed=seed,
        task_settings=task.settings,
        settings=prepared(task, name, seed)[1].name,
        reached={str(trial.rate): round(trial.held_out, 4) for trial in trials},
        rate=best.rate,
        whole=best.whole,
        small=best.small,
        seconds=best.seconds,
        flops=best.flops,
        date=datetime.now(timezone.utc).date().isoformat(),
        torch=torch.__version__,
        python=platform.python_version(),
    )


def attempt(task: Task, name: str, seed: int, rate: float, data: Data) -> Trial | None:
    """One training; None where it diverges."""
    plan, method = prepared(task, name, seed)
    optimizer = torch.optim.SGD(plan.model.parameters(), rate, momentum=MOMENTUM)
    sgd = ps.PartialSGD(plan.model, optimizer, method, seed=seed)
    try:
        seconds, flops = _run(task, data.train, plan.model, sgd, optimizer)
    except FloatingPointError:
        return None
    setting = SETTINGS[name]
    reached: dict[str, tuple[float, float]] = {}
    if setting.has_whole:
        reached["whole"] = accuracy(plan.model, data.held_out), accuracy(plan.model, data.test)
    if setting.small:
        with setting.small(plan, sgd):
            reached["small"] = accuracy(plan.model, data.held_out), accuracy(plan.model, data.test)
    test = {network: on_test for network, (_, on_test) in reached.items()}
    held_out = mean(on_held_out for on_held_out, _ in reached.values())
    return Trial(rate, held_out, test.get("whole"), test.get("small"), seconds, flops)


def _run(
    task: Task, examples: Part, model: nn.Module, sgd: ps.PartialSGD, optimizer: torch.optim.Optimizer
) -> tuple[float, float]:
    """Processor seconds and FLOPs of a step, in the mean over the steps of the whole run."""
    seconds: list[float] = []
    flops: list[int] = []
    rate, batches = optimizer.param_groups[0]["lr"], examples.batches(task.batch, sgd.seed)
    for t in range(task.steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - t / task.steps)
        closure = _closure(model, *next(batches))
        if t % COUNTED == 0:
            with FlopCounterMode(display=False) as counter:
                sgd.step(closure)
            flops.append(counter.get_total_flops())
        else:
            start = process_time()
            sgd.step(closure)
            seconds += [process_time() - start] if t >= WARM_UP else []
    return mean(seconds), mean(flops)


def _closure(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Any], Tensor]:
    """Smaller levels learn from the whole network where the method distills, else from the labels."""

    def closure(g: Any) -> Tensor:
        g.outputs = model(x)
        loss = F.cross_entropy(g.outputs, y) if g.teacher is None else ps.soft_cross_entropy(g.outputs, g.teacher)
        loss.backward()
        return loss

    return closure


@torch.no_grad()
def accuracy(model: nn.Module, examples: Part) -> float:
    model.eval()
    parts = zip(examples.x.split(500), examples.y.split(500), strict=True)
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in parts)
    model.train()
    return right / len(examples.y)
