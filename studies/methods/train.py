"""One training of a method on a task with a seed: the accuracy that it reaches, and its cost."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
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
from partialsgd.method import Method
from studies import results
from studies.methods.settings import SETTINGS, Plan, nest
from studies.methods.tasks import TASKS, Data, Part, Task
from studies.results import RESULTS, Record
from studies.runs import use_one_thread

FILE = RESULTS / "methods.jsonl"

MOMENTUM = 0.9
WARM_UP = 10
COUNTED = 7
"""Every so many steps FLOPs are counted instead of time. No schedule has this period."""


@final
@dataclass(frozen=True)
class Row:
    """A finished training as it is stored. It is trained again only if its settings have changed."""

    task: str
    method: str
    seed: int
    task_settings: str
    settings: str
    """The method's name, which holds its settings."""
    reached: Mapping[str, float]
    """Accuracy on held-out data by learning rate; rates that diverged are left out."""
    rate: float
    """The best learning rate."""
    whole: float | None
    """Test accuracy of the whole network; None if only a smaller one was trained."""
    small: float | None
    seconds: float
    """Processor time of a step."""
    flops: float
    """FLOPs of a step, forward and backward, as torch counts them."""
    date: str
    torch: str
    python: str

    def save(self, file: Path = FILE) -> None:
        results.put(file, asdict(self), key=["task", "method", "seed"])


def stored(file: Path = FILE) -> list[Row]:
    """The finished trainings, by task, method and seed."""
    return [Row(**record) for record in results.read(file)]


def is_stored(rows: list[Row], task: Task, name: str, seed: int) -> bool:
    """True if a training is stored with today's settings."""
    rows = [row for row in rows if (row.task, row.method, row.seed) == (task.name, name, seed)]
    return bool(rows) and (rows[0].settings, rows[0].task_settings) == (_method_name(task, name, seed), task.settings)


def _method_name(task: Task, name: str, seed: int) -> str:
    return prepared(task, name, seed)[1].name


def run(task: str, method: str, seed: int, data: str | None) -> Record:
    """Train in a worker process, which has one thread."""
    use_one_thread()
    return asdict(train(TASKS[task], method, seed, None if data is None else Path(data)))


def prepared(task: Task, name: str, seed: int) -> tuple[Plan, Method]:
    """The network, nested if the method needs it, and the method."""
    torch.manual_seed(seed)
    network = task.network()
    layers = tuple(name for name, child in network.named_children() if list(child.parameters()))
    plan = Plan(nest(network, SETTINGS[name]), layers, task.steps)
    return plan, SETTINGS[name].method(plan)


@final
@dataclass(frozen=True)
class Trial:
    """The outcome of one learning rate."""

    rate: float
    held_out: float
    whole: float | None
    small: float | None
    seconds: float
    flops: float


def train(task: Task, name: str, seed: int, folder: Path | None = None) -> Row:
    """Train with each learning rate of the task, and keep the one that does best on held-out data."""
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
        settings=_method_name(task, name, seed),
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
    """One training; None if it diverges."""
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
    """Processor seconds and FLOPs of a step, averaged over the run."""
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
    """Smaller levels learn from the whole network if the method distills, else from the labels."""

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
