"""One training of a setting with a seed, during which the criteria are measured."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor

import partialsgd as ps
from partialsgd.meters.criteria import Criteria
from studies.convergence.runs import Run, rounded, row
from studies.convergence.settings import SETTINGS, Setting
from studies.convergence.tasks import Examples, Problem
from studies.results import Record
from studies.runs import use_one_thread

EIGHTHS, MASKS = range(4, 8), 4
"""The eighths of a run at which gradients are taken over many examples, each time with several random masks."""


def run(name: str, seed: int, data: str, steps: int | None) -> Record:
    """Train in a worker process, which has one thread."""
    use_one_thread()
    return asdict(train(name, seed, Path(data), steps))


def train(name: str, seed: int, data: Path, steps: int | None = None) -> Run:
    setting, start = SETTINGS[name].with_steps(steps), process_time()
    examples = setting.task.load(data / setting.task.folder)
    problem = setting.task.prepare(examples, seed, setting.task.rate)
    method = setting.method(problem.model, examples.steps_per_epoch(setting.task.batch))
    measured, large = _run(setting, method, problem, examples, seed)
    return Run(
        name=name,
        seed=seed,
        settings=setting.settings,
        measured=measured,
        large=large,
        reached={what: rounded(number) for what, number in problem.reached(examples).items()},
        seconds=round(process_time() - start, 1),
        date=datetime.now(timezone.utc).date().isoformat(),
        torch=torch.__version__,
        python=platform.python_version(),
    )


def _run(
    setting: Setting, method: ps.Method, problem: Problem, examples: Examples, seed: int
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The criteria on the batch of each step, and over many examples."""
    task, group = setting.task, problem.optimizer.param_groups[0]
    meter = ps.CriteriaMeter(task.every, setting.probe, groups=task.groups, alerts=None)
    sgd = ps.PartialSGD(problem.model, problem.optimizer, method, seed=seed, meter=meter)
    measured: list[dict[str, Any]] = []
    large: list[dict[str, Any]] = []
    for t in range(task.steps):
        if t in _points(task.steps):
            large += _over_many(setting, method, problem, examples, seed, t)
        group["lr"] = task.rate * min(1.0, (t + 1) / max(1, task.warm_up))
        step = sgd.step(_closure(problem, examples, examples.batch(task.batch, seed, t)))
        if isinstance(step.criteria, Criteria):
            loss = rounded(float(step.losses[0][1]))
            measured.append({"t": t, "level": step.level, "loss": loss, **row(step.criteria)})
    large += _over_many(setting, method, problem, examples, seed, task.steps)
    return _columns(measured), _columns(large)


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def _points(steps: int) -> set[int]:
    """Steps in turns even and odd, which alternating training treats differently; one more follows at the end."""
    return {k * steps // 8 + k % 2 for k in EIGHTHS}


def _over_many(
    setting: Setting, method: ps.Method, problem: Problem, examples: Examples, seed: int, t: int
) -> list[dict[str, Any]]:
    """Both gradients over many examples, which removes most of the noise of a shared batch (erratum E21)."""
    task = setting.task
    count = min(task.large, len(examples.x)) // task.batch
    batches = [examples.batch(task.batch, seed, t + k) for k in range(count)]
    probe = setting.probe or method
    meter = ps.CriteriaMeter(
        1,
        probe,
        groups=task.groups,
        batches=batches,
        loss=lambda batch: _loss(problem, examples, batch),
        alerts=None,
    )
    still = torch.optim.SGD(problem.model.parameters(), lr=0.0)
    sgd = ps.PartialSGD(problem.model, still, seed=1_000_000 + 1_000 * t + seed, meter=meter)
    steps = [sgd.step(_closure(problem, examples, batches[0])) for _ in range(1 if isinstance(probe, str) else MASKS)]
    return [{"t": t, **row(step.criteria)} for step in steps if isinstance(step.criteria, Criteria)]


def _closure(problem: Problem, examples: Examples, batch: Tensor) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        loss = _loss(problem, examples, batch)
        loss.backward()
        return loss

    return closure


def _loss(problem: Problem, examples: Examples, batch: Tensor) -> Tensor:
    return problem.loss(examples.x[batch], examples.y[batch])
