"""Train every size at once: the loop, from top to bottom."""

from __future__ import annotations

import math
import os
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from rich.console import Console
from torch import Tensor, nn

import partialsgd as ps
from partialsgd._util.snapshots import Modes, RandomState
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes import build
from partialsgd.lab.runs import final_scores as closing
from partialsgd.lab.runs import sidecar_files as beside
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import launch
from partialsgd.lab.training.advice import advised
from partialsgd.lab.training.batch_plan import Deal, Hand
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.measuring import mean_loss, meter_of
from partialsgd.lab.training.methods import method_of
from partialsgd.lab.training.progress import Display, say, warnings_on
from partialsgd.lab.training.settings import PATHS, Settings
from partialsgd.lab.training.state import Training
from partialsgd.lab.training.stopping import Stopped, asked_to_stop
from partialsgd.lab.training.task import Numbers, Task
from partialsgd.logging import metrics_log
from partialsgd.nested.switch import FULL

__all__ = ["Stopped", "resume", "train"]


def train(settings: Settings, *, show: bool = True) -> Run:
    """A new run, to its end, which is shown as a table."""
    settings = pinned(settings)
    try:
        task = _prepared(settings)
    except (
        ValueError,
        FileNotFoundError,
        NotADirectoryError,
    ) as error:  # what is wrong with the settings is found before a directory is made
        raise WrongCall(str(error)) from error
    is_main = launch.processes().is_main_process
    path: str = launch.from_main(str(Run.new(settings, task.digest()).path) if is_main else None)
    return _to_the_end(Run(Path(path)), settings, task, show)


def resume(run: Run, *, places: Settings | None = None, show: bool = True) -> Run:
    """Go on where a run has stopped, for whatever reason; one that is at its end stays as it is.

    What it was made from may lie elsewhere now: where is taken from `places`, and that it is the same is checked.
    """
    if run.summary is not None:
        say(launch.console(), f"{run.path} is at its end; there is nothing to resume.")
        return run
    settings = run.settings if places is None else replace(run.settings, **_paths(places))
    task = _prepared(settings)
    run.require_data(task.digest())
    return _to_the_end(run, settings, task, show)


def pinned(settings: Settings) -> Settings:
    """What would be another thing tomorrow, or elsewhere: the number of threads, and paths from here."""
    return replace(settings, threads=settings.threads or torch.get_num_threads(), **_paths(settings))


def _paths(settings: Settings) -> dict[str, Any]:
    found = {name: getattr(settings, name, None) for name in PATHS}
    return {name: os.path.abspath(path) for name, path in found.items() if path is not None}


def _prepared(settings: Settings) -> Task:
    launch.processes()
    launch.require(settings)
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    task = build(settings)
    method_of(settings.method).bind(task.network)
    meter_of(settings, task.network)
    return task


def _to_the_end(run: Run, settings: Settings, task: Task, show: bool) -> Run:
    here, console = launch.accelerator(settings, run.path), launch.console()
    lock: AbstractContextManager[None] = run.locked() if here.is_main_process else nullcontext()
    with (
        advised(run, settings),
        lock,
        launch.warnings_of_one(),
        warnings_on(console),
        launch.trackers(here, settings, run.path),
    ):
        if here.is_main_process:
            beside.write(settings.recipe, task, run.path)
        for note in task.notes():
            say(console, note)
        training = fit(run, settings, task, here, console)
        if here.is_main_process:
            summary = closing.summarise(run, task, training, console)
            if show:
                closing.show(summary, Console())
                say(console, f"The run is in {run.path}")
        here.wait_for_everyone()
    return run


def fit(run: Run, settings: Settings, task: Task, here: Accelerator, console: Console) -> Training:
    """Algorithm 1 over the batches, with an evaluation after some epochs and a checkpoint after some steps."""
    model = here.prepare_model(task.network)
    method = method_of(settings.method)
    deal = Deal(task.batches, settings.accumulate, here.process_index, here.num_processes)
    move = partial(send_to_device, device=here.device)
    meter = meter_of(settings, task.network, partial(deal.hand, move=move), partial(mean_loss, task, model))
    options = {"seed": settings.seed, "clip_norm": settings.clip_norm, "scaler": here.scaler, "meter": meter}
    training = Training(task, ps.PartialSGD(model, list(task.optimizers), method, **options), here)
    total = min(settings.epochs * len(deal), settings.max_steps or settings.epochs * len(deal))
    torch.manual_seed(settings.seed + 1_000_003 * here.process_index)  # the network's own dropout
    if training.load(run):
        say(console, f"Going on from step {training.position:,} of {total:,}.")
    here.wait_for_everyone()
    task.network.train()
    sizes = {"position": training.position, "total": total, "per_epoch": len(deal)}
    shown = Display(console, **sizes, unit=task.unit, glances=training.glances)
    with _log(run, settings, training) as log, asked_to_stop(partial(say, console)) as is_asked, shown:
        while training.position < total:
            start = time.monotonic()
            hand = deal.hand(training.position, move)
            training.set_rate(total)
            step = training.sgd.step(partial(_forward_backward, task, model, here, hand))
            training.count(step, hand)
            training.seconds += time.monotonic() - start
            shown.step(training.position, {level or FULL: float(loss) for level, loss in step.losses}, hand.units)
            numbers: Numbers = {"epoch": training.position / len(deal), task.unit: hand.units}
            is_over = training.position == total
            if is_over or training.position % (settings.evaluate_every * len(deal)) == 0:
                numbers |= _evaluated(training, run, shown)
            log.write(step, **numbers)
            if settings.track:
                here.log(dict(metrics_log.scalars(metrics_log.record(step, **numbers))), step=step.t)
            is_stopped = launch.any_rank(here, is_asked())
            if is_over or is_stopped or training.position % settings.checkpoint_every == 0:
                training.save(run, keep=settings.keep)
            if is_stopped and not is_over:
                raise Stopped(f"stopped after step {training.position:,}; to go on: partialsgd resume {run.path}")
    return training


def _forward_backward(task: Task, model: nn.Module, here: Accelerator, hand: Hand, g: GradientPass) -> Tensor:
    """The closure of a step: the mean loss over its batches, on all ranks."""
    total = torch.zeros((), device=here.device)
    for batch in hand.batches:
        loss = task.loss(model, batch, g) * hand.share
        here.backward(loss)
        total += loss.detach()
    return launch.mean(here, total)


def _evaluated(training: Training, run: Run, shown: Display) -> Numbers:
    """Every level on the validation data. It is the first rank's, and the others wait."""
    task, here = training.task, training.here
    training.require_finite()
    if not here.is_main_process:
        here.wait_for_everyone()
        return {}
    noise, modes = RandomState(task.network), Modes(task.network)
    glances = training.glances = {level: task.glance(level) for level in task.network.levels}
    noise.restore()
    modes.restore()
    merit = task.merit(training.judged(glances))
    ps.export.save(task.network, run.last, metrics=glances)
    if training.best is None or merit > training.best:
        training.best = -math.inf if math.isnan(merit) else merit
        ps.export.save(task.network, run.best, metrics=glances)
    shown.evaluated(training.position, glances)
    here.wait_for_everyone()
    return {f"valid/{level}/{name}": value for level, each in glances.items() for name, value in each.items()}


def _log(run: Run, settings: Settings, training: Training) -> ps.MetricsLog:
    board = run.path / "tensorboard" if settings.tensorboard else None
    skips = training.sgd.state_dict()["skips"]
    return ps.MetricsLog(run.metrics, t=training.sgd.t, skips=skips, tensorboard=board)
