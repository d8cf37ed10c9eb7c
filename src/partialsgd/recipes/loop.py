"""Train every size at once: the loop, from top to bottom."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from rich.console import Console
from rich.logging import RichHandler
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.passes import Pass
from partialsgd.recipes import build, closing, launch
from partialsgd.recipes.dealing import Deal, Hand
from partialsgd.recipes.methods import method_of
from partialsgd.recipes.progress import Display
from partialsgd.recipes.runs import Run
from partialsgd.recipes.settings import Settings
from partialsgd.recipes.stopping import Stopped, asked_to_stop
from partialsgd.recipes.tasks import Numbers, Task
from partialsgd.recipes.training import Training
from partialsgd.replay import Modes, RandomState
from partialsgd.report.records import MODEL

__all__ = ["Stopped", "resume", "train"]


def train(settings: Settings) -> Run:
    """A new run, to its end."""
    settings = replace(settings, threads=settings.threads or torch.get_num_threads())
    task = _prepared(settings)  # what is wrong with the settings is found before a directory is made
    is_main = launch.processes().is_main_process
    path: str = launch.from_main(str(Run.new(settings).path) if is_main else None)
    return _to_the_end(Run(Path(path)), settings, task)


def resume(run: Run) -> Run:
    """Go on where a run has stopped, for whatever reason; one that is at its end stays as it is."""
    if run.summary is not None:
        launch.console().print(f"{run.path} is at its end; there is nothing to resume.")
        return run
    return _to_the_end(run, run.settings, _prepared(run.settings))


def _prepared(settings: Settings) -> Task:
    launch.processes()
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    task = build(settings)
    method_of(settings.method, task.network)
    return task


def _to_the_end(run: Run, settings: Settings, task: Task) -> Run:
    here, console = launch.accelerator(settings, run.path), launch.console()
    lock: AbstractContextManager[None] = run.locked() if here.is_main_process else nullcontext()
    with lock, _warnings_on(console):
        if settings.track:
            here.init_trackers("partialsgd", {"run": run.path.name})
        training = fit(run, settings, task, here, console)
        if here.is_main_process:
            closing.show(closing.summarise(run, task, training, console), Console())
            console.print(f"The run is in {run.path}")
        here.wait_for_everyone()
        here.end_training()
    return run


def fit(run: Run, settings: Settings, task: Task, here: Accelerator, console: Console) -> Training:
    """Algorithm 1 over the batches, with an evaluation after some epochs and a checkpoint after some steps."""
    model = here.prepare_model(task.network)
    method = method_of(settings.method, task.network)
    meter = ps.CriteriaMeter(every=settings.measure_every) if settings.measure_every else None
    options = {"seed": settings.seed, "clip_norm": settings.clip_norm, "scaler": here.scaler, "meter": meter}
    training = Training(task, ps.PartialSGD(model, list(task.optimizers), method, **options), here)
    deal = Deal(task.batches, settings.accumulate, here.process_index, here.num_processes)
    total = min(settings.epochs * len(deal), settings.max_steps or settings.epochs * len(deal))
    torch.manual_seed(settings.seed + 1_000_003 * here.process_index)  # the network's own dropout
    if training.load(run):
        console.print(f"Going on from step {training.position:,} of {total:,}.")
    here.wait_for_everyone()
    task.network.train()
    move = partial(send_to_device, device=here.device)
    shown = Display(console, position=training.position, total=total, per_epoch=len(deal), unit=task.unit)
    with _log(run, settings, training) as log, asked_to_stop(console.print) as is_asked, shown:
        while training.position < total:
            hand = deal.hand(training.position, move)
            training.set_rate(total)
            step = _stepped(training, partial(_forward_backward, task, model, here, hand), run)
            training.count(step, hand)
            numbers: Numbers = {"epoch": training.position / len(deal), task.unit: hand.units}
            is_over = training.position == total
            if is_over or training.position % (settings.evaluate_every * len(deal)) == 0:
                numbers |= _evaluated(training, run, shown)
            log.write(step, **numbers)
            if settings.track:
                here.log(numbers, step=step.t)
            shown.step(training.position, {level or MODEL: float(loss) for level, loss in step.losses}, hand.units)
            is_stopped = launch.any_rank(here, is_asked())
            if is_over or is_stopped or training.position % settings.checkpoint_every == 0:
                training.save(run, keep=settings.keep)
            if is_stopped and not is_over:
                raise Stopped(f"stopped after step {training.position:,}; to go on: partialsgd resume {run.path}")
    return training


def _forward_backward(task: Task, model: nn.Module, here: Accelerator, hand: Hand, g: Pass) -> Tensor:
    """The closure of a step: the mean loss over its batches, on all ranks."""
    total = torch.zeros((), device=here.device)
    for batch in hand.batches:
        loss = task.loss(model, batch, g) * hand.share
        here.backward(loss)
        total += loss.detach()
    return total


def _stepped(training: Training, closure: Callable[[Pass], Tensor], run: Run) -> ps.Step:
    try:
        return training.sgd.step(closure)
    except FloatingPointError as error:
        raise FloatingPointError(
            f"{error}. What to try: a smaller --lr, a longer --warm-up, --clip-norm 1, another --init. "
            f"The checkpoints before this step are in {run.checkpoints}"
        ) from error


def _evaluated(training: Training, run: Run, shown: Display) -> Numbers:
    """Every level on the validation data. It is the first rank's, and the others wait."""
    task, here = training.task, training.here
    if not here.is_main_process:
        here.wait_for_everyone()
        return {}
    noise, modes = RandomState(task.network), Modes(task.network)
    glances = training.glances = {level: task.glance(level) for level in task.network.levels}
    noise.restore()
    modes.restore()
    merit = task.merit(glances)
    ps.export.save(task.network, run.last, metrics=glances)
    if merit > training.best:
        training.best = merit
        ps.export.save(task.network, run.best, metrics=glances)
    shown.evaluated(training.position, glances)
    here.wait_for_everyone()
    return {f"valid/{level}/{name}": value for level, each in glances.items() for name, value in each.items()}


def _log(run: Run, settings: Settings, training: Training) -> ps.MetricsLog:
    board = run.path / "tensorboard" if settings.tensorboard else None
    skips = training.sgd.state_dict()["skips"]
    return ps.MetricsLog(run.metrics, t=training.sgd.t, skips=skips, tensorboard=board)


@contextmanager
def _warnings_on(console: Console) -> Iterator[None]:
    """What the library warns of is shown above the progress."""
    logger, handler = logging.getLogger("partialsgd"), RichHandler(console=console, show_time=False, show_path=False)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
