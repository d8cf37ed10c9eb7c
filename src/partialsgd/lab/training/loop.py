"""The training loop: `train` a new run, `resume` a stopped one, and `fit`, the steps themselves with their meter."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from rich.console import Console
from torch import Tensor, nn

import partialsgd as ps
from partialsgd._util.malloc import keep_freed_memory
from partialsgd._util.snapshots import Modes, RandomState
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes import build
from partialsgd.lab.runs import use_run
from partialsgd.lab.runs.run import VALID, Run
from partialsgd.lab.training import launch
from partialsgd.lab.training.batch_plan import BatchPlan, StepBatches
from partialsgd.lab.training.errors import Stopped, WrongCall, advice_on_errors, stop_on_signal
from partialsgd.lab.training.method_text import make_method, parse_method
from partialsgd.lab.training.progress import Display, say, show_warnings_on
from partialsgd.lab.training.settings import Settings
from partialsgd.lab.training.sharded import ShardedNetwork, require_shardable
from partialsgd.lab.training.state import Parting, TrainingState
from partialsgd.lab.training.task import Numbers, Task
from partialsgd.logging import metrics_log
from partialsgd.method import Method
from partialsgd.nested import Nested
from partialsgd.nested.layers.batch_norm import never_updated_is_fine
from partialsgd.nested.switch import FULL
from partialsgd.parameters import parameters_of

__all__ = ["Stopped", "resume", "train"]

_PROBED = 10
"""The steps whose batches say what a step of each level costs after the levels have parted ways."""


def train(settings: Settings, *, show: bool = True) -> Run:
    """Train a new run to its end, and show the scores of every level.

    Under a torchrun that restarts its processes, a run that an earlier start has left at `out` is continued.
    """
    settings = pin(settings)
    launch.require_restartable(settings)
    if launch.may_restart() and (begun := launch.from_main(_begun(settings))) is not None:
        return resume(Run(Path(begun)), show=show)
    try:  # wrong settings are found before the run directory is made
        task, method = _prepare(settings)
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        raise WrongCall(str(error)) from error
    is_main = launch.processes().is_main_process
    new_run = Run.new(settings, task.data_hash(), task.sidecar_files()) if is_main else None
    path: str = launch.from_main(new_run and str(new_run.path))
    return _train_to_end(Run(Path(path)), settings, task, method, show)


def _begun(settings: Settings) -> str | None:
    """The path of the run that an earlier start of this command has begun; the first rank looks."""
    if not launch.processes().is_main_process or not settings.out:
        return None
    if not (Path(settings.out) / "config.json").exists():
        return None
    run = Run.open(settings.out)
    is_done_elsewhere = run.summary is not None and launch.restarts() == 0
    return str(run.path) if run.settings == settings and not is_done_elsewhere else None


def resume(run: Run, *, places: Settings | None = None, show: bool = True) -> Run:
    """Continue a run that was stopped or killed; a finished run is left as it is.

    Data that were moved are looked for where the paths of `places` say, and must be the same as before.
    """
    if run.summary is not None:
        say(launch.console(), f"{run.path} is finished; there is nothing to resume.")
        return run
    run.require_all_settings()
    settings = run.settings if places is None else replace(run.settings, **_absolute_paths(places))
    task, method = _prepare(settings)
    run.require_data(task.data_hash())
    return _train_to_end(run, settings, task, method, show)


def pin(settings: Settings) -> Settings:
    """Fix what would depend on the machine or the working directory: the number of threads, and relative paths."""
    return replace(settings, threads=settings.threads or torch.get_num_threads(), **_absolute_paths(settings))


def _absolute_paths(settings: Settings) -> dict[str, Any]:
    return {name: os.path.abspath(path) for name in settings.paths if (path := getattr(settings, name)) is not None}


def _prepare(settings: Settings) -> tuple[Task, Method]:
    launch.processes()
    launch.require_available(settings)
    require_shardable(settings)
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    keep_freed_memory()
    method = make_method(settings)  # before the data, because a typo is found at once
    task = build(settings)
    if settings.part_ways and len(task.network.levels) < 2:
        raise ValueError("part_ways is for a network with smaller levels, and this has one level; omit part_ways")
    if settings.part_ways == 1:
        with never_updated_is_fine():  # the training updates them
            task.use(task.network.part_ways(example=task.example()))
    make_meter(settings, task.network)
    bound = method.bind(task.network)
    if settings.part_ways == 1 and (bound.branches is None or bound.meter is not None):
        raise ValueError(
            f"part_ways=1 needs a method that trains every level and measures nothing, since levels that share nothing "
            f"have no criteria, such as alternating; got {bound.name}"
        )
    return task, bound


def _train_to_end(run: Run, settings: Settings, task: Task, method: Method, show: bool) -> Run:
    accelerator, console = launch.make_accelerator(settings, run.path), launch.console()
    lock: AbstractContextManager[None] = run.locked() if accelerator.is_main_process else nullcontext()
    with (
        advice_on_errors(run.path, settings),
        lock,
        launch.warnings_on_first_rank(),
        show_warnings_on(console),
    ):
        for note in task.notes():
            say(console, note)
        state = fit(run, settings, task, method, accelerator, console)
        if accelerator.is_main_process:
            summary = use_run.summarise(run, state, method, console)
            if show:
                use_run.show(summary, Console())
                say(console, f"The run is in {run.path}")
                say(console, next_commands(run, settings, task.network))
        accelerator.wait_for_everyone()
    return run


def next_commands(run: Run, settings: Settings, network: Nested) -> str:
    """Return the next commands for a finished run, as lines to copy."""
    commands = ("partialsgd report {run} --open", "partialsgd export {run} --level {level}", *settings.next_commands)
    path, level = shlex.quote(str(run.path)), shlex.quote(network.levels[0])
    return "\n".join(["Next:", *(f"  {command.format(run=path, level=level)}" for command in commands)])


def fit(
    run: Run, settings: Settings, task: Task, method: Method, accelerator: Accelerator, console: Console
) -> TrainingState:
    """Run Algorithm 1 over the batches, with evaluations every few epochs and checkpoints every few steps."""
    parts = ShardedNetwork(task, accelerator) if settings.shard else None
    network = task.network if parts is None else parts.network
    model = launch.prepare_model(accelerator, network) if parts is None else network
    method = method if parts is None else make_method(settings).bind(network)
    plan = BatchPlan(task.batches, settings.accumulate, accelerator.process_index, accelerator.num_processes)
    batches_at = partial(plan.at, move=partial(send_to_device, device=accelerator.device))
    meter = make_meter(settings, network, batches_at, partial(mean_loss, task, model))
    options = {"seed": settings.seed, "clip_norm": settings.clip_norm, "scaler": accelerator.scaler, "meter": meter}
    options["state"] = settings.state
    sgd = ps.PartialSGD(model, list(task.optimizers), method, **options)
    state = TrainingState(task, model, sgd, accelerator, parts)
    total = min(settings.epochs * len(plan), settings.max_steps or settings.epochs * len(plan))
    torch.manual_seed(settings.seed + 1_000_003 * accelerator.process_index)  # for the network's own dropout
    is_continued = state.load(run)  # before anything is written: a run that cannot be continued stays as it is
    end = total if state.parting is None else state.parting.end
    if is_continued:
        say(console, f"Continuing from step {state.position:,} of {end:,}.")
    if accelerator.is_main_process:
        run.write_texts(task.sidecar_files())
    accelerator.wait_for_everyone()
    (task.network if parts is None else network).train()
    last_joint = max(1, round((1 - settings.part_ways) * total)) if 0 < settings.part_ways < 1 else total
    sizes = {"position": state.position, "total": end, "epoch": len(plan)}
    display = Display(console, state.evaluations, **sizes, unit=task.unit)
    skips, names = state.sgd.state_dict()["skips"], launch.log_trackers(settings)
    log = ps.MetricsLog(run.metrics, t=state.sgd.t, skips=skips, trackers=names)
    trackers = launch.trackers(accelerator, settings, run.path)
    is_due = False
    with trackers, log, stop_on_signal(partial(say, console)) as is_signalled, display:
        while state.position < (end := total if state.parting is None else state.parting.end):
            start = time.monotonic()
            if last_joint <= state.position and state.parting is None:
                state.part_ways(settings)
                steps = _separate_steps(state, settings.part_ways, batches_at)
                state.parting = Parting(state.position, state.sgd.t, steps)
                display.total = state.parting.end
                say(console, f"The levels part ways: each is trained alone, {steps:,} steps in turn.")
                continue
            state.draw()
            batches = batches_at(state.drawn)
            state.set_learning_rate(total)
            step = state.sgd.step(partial(_forward_backward, task, state.model, accelerator, batches))
            state.count(step, batches)
            state.seconds += time.monotonic() - start
            losses = {level or FULL: float(loss) for level, loss in step.losses}
            display.step(state.position, losses, batches.units)
            numbers: Numbers = {"epoch": state.position / len(plan), task.unit: batches.units}
            is_last = state.position == end
            if is_last or state.position % (settings.evaluate_every * len(plan)) == 0:
                numbers |= _evaluate(state, run, display)
            log.write(step, **numbers)
            if accelerator.log_with:
                accelerator.log(dict(metrics_log.scalars(metrics_log.record(step, **numbers))), step=step.t)
            is_stopped = launch.total(accelerator, is_signalled()) > 0  # so that all ranks stop at the same step
            is_due |= is_stopped or state.position % settings.checkpoint_every == 0
            # Outputs that wait for the next step are those of one rank's batches, and no checkpoint holds them.
            saves = is_last or (is_due and not state.sgd.repeats_batch)
            if saves:
                state.save(run, keep=settings.keep)
                is_due = False
            if is_stopped and saves and not is_last:
                raise Stopped(f"stopped after step {state.position:,}; to continue: partialsgd resume {run.path}")
    return state


def _separate_steps(state: TrainingState, share: float, batches_at: Callable[[int], StepBatches]) -> int:
    """The steps of levels that part ways, each as many: with them, this share of the FLOPs is theirs."""
    levels = state.task.network.levels
    batches = [batch for k in range(_PROBED) for batch in batches_at(state.position + k).batches]
    cost = sum(state.task.flops(level, batch) for level in levels for batch in batches) / _PROBED
    left = share / (1 - share) * sum(state.flops.values())
    return len(levels) * max(1, round(left / launch.total(state.accelerator, cost)))


def _forward_backward(
    task: Task, model: nn.Module, accelerator: Accelerator, step: StepBatches, g: GradientPass
) -> Tensor:
    """The closure of a step: backward over its batches, and the mean loss over all ranks."""
    total = torch.zeros((), device=accelerator.device)
    for number, batch in enumerate(step.batches, start=1):
        g.batch = step.position
        with nullcontext() if number == len(step.batches) else accelerator.no_sync(model):  # the sum is sent once
            loss = task.loss(model, batch, g) * step.loss_scale
            accelerator.backward(loss)
        total += loss.detach()
    return cast(Tensor, accelerator.reduce(total, reduction="mean"))


def _evaluate(state: TrainingState, run: Run, display: Display) -> Numbers:
    """Evaluate every level on the validation data on the first rank, while the others wait, and save the model."""
    task, accelerator = state.task, state.accelerator
    state.collect()
    state.require_finite()
    if not accelerator.is_main_process:
        accelerator.wait_for_everyone()
        return {}
    random, modes = RandomState(task.network), Modes(task.network)
    evaluations = state.evaluations = {level: task.quick_eval(level) for level in task.network.levels}
    random.restore()
    modes.restore()
    score = state.selection_score()
    ps.export.save(task.network, run.last, metrics=evaluations)
    if state.best_score is None or score > state.best_score:
        state.best_score = -math.inf if math.isnan(score) else score
        ps.export.save(task.network, run.best, metrics=evaluations)
    display.evaluated(state.position, evaluations)
    accelerator.wait_for_everyone()
    return {f"{VALID}{level}/{name}": value for level, each in evaluations.items() for name, value in each.items()}


LAYERS = "layers"
"""The name of the `measure_layers` group in the metrics."""


def make_meter(
    settings: Settings,
    network: Nested,
    batches_at: Callable[[int], StepBatches] | None = None,
    loss: Callable[[StepBatches], Tensor] | None = None,
) -> ps.CriteriaMeter | None:
    """Make the meter, or return None if nothing is measured. Patterns and probes that do not fit are refused.

    `batches_at` and `loss` are used when a measurement covers the batches of several steps.
    """
    if settings.measure_every is None:
        return None
    options: dict[str, Any] = {}
    setting = "measure_layers"
    try:
        if settings.measure_layers:
            parameters_of(network).match(settings.measure_layers)
            options["groups"] = {LAYERS: settings.measure_layers}
        setting = "probe"
        probe = None if settings.probe is None else parse_method(settings.probe).bind(network)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{setting}: {error.args[0]}") from error
    if settings.measure_batches > 1 and batches_at is not None:
        count = settings.measure_batches  # a function of t, so that a resumed run measures on the same batches
        options |= {"batches": lambda t: [batches_at(t + k) for k in range(count)], "loss": loss}
    return ps.CriteriaMeter(settings.measure_every, probe, **options)


def mean_loss(task: Task, model: nn.Module, step: StepBatches) -> Tensor:
    """The loss of a step's batches without distillation: the criteria compare gradients of one function."""
    g = cast(GradientPass, SimpleNamespace(teacher=None, outputs=None))
    return torch.stack([task.loss(model, batch, g) * step.loss_scale for batch in step.batches]).sum()
