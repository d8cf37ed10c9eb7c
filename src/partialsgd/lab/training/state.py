"""A training between two steps: the state that a checkpoint saves and a resume loads."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from partialsgd._util import files
from partialsgd._util.snapshots import RandomState
from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.engine.step import Step
from partialsgd.export import states
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import launch, sharded
from partialsgd.lab.training.batch_plan import StepBatches
from partialsgd.lab.training.settings import Settings
from partialsgd.lab.training.sharded import ShardedNetwork
from partialsgd.lab.training.task import Numbers, Task
from partialsgd.methods import alternating
from partialsgd.nested.layers.batch_norm import never_updated_is_fine
from partialsgd.nested.optimizer_state import carry_to_levels
from partialsgd.nested.switch import FULL

_log = logging.getLogger("partialsgd")

_SAVED = {
    "best": "best_score",
    "judges": "selection_levels",
    "updates": "updates",
    "flops": "flops",
    "glances": "evaluations",
    "seconds": "seconds",
}
"""Keys of a checkpoint, which never change, and the attributes that they hold."""


@final
class Parting(NamedTuple):
    """The step at which the levels of a run have parted ways, and the steps that follow."""

    position: int
    t: int
    steps: int
    """The number of steps from there to the end."""

    @property
    def end(self) -> int:
        return self.position + self.steps


@final
@dataclass
class TrainingState:
    """The task, its optimizer and the counters of a run."""

    task: Task
    model: nn.Module
    """The network as a step runs it: on its device, and wrapped to send gradients if there are several processes."""
    sgd: PartialSGD
    accelerator: Accelerator
    parts: ShardedNetwork | None = None
    """The trained network, if it lies in parts over the processes."""
    position: int = 0
    """Steps tried so far; `sgd.t` counts those that were not skipped."""
    drawn: int = 0
    """The position whose batches the last step had; less than the step's own if it repeated them."""
    parting: Parting | None = None
    """Set once the levels have parted ways."""
    best_score: float | None = None
    """The selection score of the best checkpoint."""
    selection_levels: list[str] = field(default_factory=list)
    """The levels that `best_score` was computed from."""
    updates: dict[str, int] = field(default_factory=dict)
    """Optimizer steps by level."""
    flops: dict[str, float] = field(default_factory=dict)
    """Training FLOPs by level."""
    evaluations: dict[str, Numbers] = field(default_factory=dict)
    """The last evaluation by level."""
    seconds: float = 0.0
    """Time spent in steps, without evaluations and checkpoints, over all processes that continued this run."""
    wall_before: float = 0.0
    """Wall time of earlier processes up to the checkpoint that this one continues from."""

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._peak = self._learning_rates()
        self.joint = self.task.network
        """The network of the task before the levels have parted ways."""

    @property
    def wall(self) -> float:
        """Wall time with evaluations and checkpoints; time that was lost to a kill is not included."""
        return self.wall_before + time.monotonic() - self._began

    def _learning_rates(self) -> list[list[float]]:
        return [[group["lr"] for group in optimizer.param_groups] for optimizer in self.task.optimizers]

    def part_ways(self, settings: Settings) -> None:
        """Go on with the extracted levels, which share nothing, in turn; each coordinate keeps its moments."""
        moments = {p: state for optimizer in self.task.optimizers for p, state in optimizer.state.items()}
        random, device = RandomState(self.joint), next(self.joint.parameters()).device
        with never_updated_is_fine():  # a resume loads them
            separate = self.joint.part_ways(example=send_to_device(self.task.example(), device))
        self.task.use(separate)
        carry_to_levels(self.joint, moments, separate, self.task.optimizers)
        random.restore()
        self._peak = self._learning_rates()
        self.model = launch.prepare_model(self.accelerator, separate)
        options = {"seed": settings.seed, "clip_norm": settings.clip_norm, "scaler": self.accelerator.scaler}
        t = self.sgd.t
        self.sgd = PartialSGD(self.model, list(self.task.optimizers), alternating(), **options)
        self.sgd.t = t
        separate.train()

    def draw(self) -> None:
        """Take the batches of this position, unless the method repeats those of the last step."""
        if not self.sgd.repeats_batch:
            self.drawn = self.position

    def set_learning_rate(self, total: int) -> None:
        """Set γ_t, a function of t alone, so that no scheduler state can be lost or stepped twice.

        Levels that have parted ways follow what is left of the schedule, however many steps they have for it.
        """
        t = self.sgd.t
        if self.parting is not None:
            begin = self.parting.t
            t = begin + round((t - begin) * (total - begin) / self.parting.steps)
        factor = self.task.learning_rate(t, total)
        for optimizer, peaks in zip(self.task.optimizers, self._peak, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = factor * peak

    def count(self, step: Step, batches: StepBatches) -> None:
        """Count a finished step and the FLOPs of its passes; passes of a meter are not training."""
        self.position += 1
        for level in (level or FULL for level in step.passes):
            flops = launch.total(self.accelerator, sum(self.task.flops(level, batch) for batch in batches.batches))
            self.flops[level] = self.flops.get(level, 0.0) + flops
        for level in (level or FULL for level, _ in step.losses):
            self.updates[level] = self.updates.get(level, 0) + (not step.skipped)

    def selection_score(self) -> float:
        """The score of the levels that have been trained; when another level joins, the best score starts anew."""
        levels = sorted(level for level in self.evaluations if level in self.updates)
        if levels != self.selection_levels:
            self.selection_levels, self.best_score = levels, None
        return self.task.selection_score({level: self.evaluations[level] for level in levels} or self.evaluations)

    def collect(self) -> None:
        """Copy a network that is trained in parts into that of the task. Called on every rank."""
        if self.parts is not None:
            self.parts.collect()

    def require_finite(self) -> None:
        """Raise if a parameter is not finite, which a step with a finite gradient can still cause."""
        for name, parameter in self.task.network.named_parameters():
            if not parameter.isfinite().all():
                raise FloatingPointError(f"the parameter {name!r} is NaN or infinite after step {self.position:,}")

    def save(self, run: Run, *, keep: int) -> None:
        """Write a checkpoint. Called on every rank: random states are gathered, and the first rank writes."""
        self.collect()
        self.require_finite()
        random, state = launch.random_states(self.accelerator), self._optimization()
        if self.accelerator.is_main_process:
            try:
                files.fsync(run.metrics)  # after a power failure the log has the lines of every step in the checkpoint
            except FileNotFoundError:
                _log.warning("%s was removed: its lines are lost, and those up to the next resume", run.metrics)
            checkpoints.save(run.checkpoints, self.position, {**self._state(random), **state}, keep=keep)

    def _state(self, random: list[dict[str, Any]]) -> dict[str, Any]:
        model, scaler = self.task.network.model, self.accelerator.scaler
        return {
            "model": {"said": states.describe(model), "tensors": states.stored(model)},
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": random,
            **{key: getattr(self, attribute) for key, attribute in _SAVED.items()},
            "parting": None if self.parting is None else list(self.parting),
            "wall": self.wall,
        }

    def _optimization(self) -> dict[str, Any]:
        """The state of the optimizers and of `PartialSGD`, whole. Called on every rank."""
        optimizers = [optimizer.state_dict() for optimizer in self.task.optimizers]
        state = {"optimizers": optimizers, "sgd": self.sgd.state_dict()}
        return state if self.parts is None else sharded.gathered(state)

    def load(self, run: Run) -> bool:
        """Load the newest complete checkpoint; return False if there is none."""
        checkpoint = checkpoints.latest(run.checkpoints)
        if checkpoint is None:
            return False
        files.clear_stage(run.checkpoints)  # here, because a run that has no step left writes no checkpoint
        self.position, state = checkpoint
        if (parting := state.get("parting")) is not None:
            self.part_ways(run.settings)
            self.parting = Parting(*parting)
        states.fill(self.task.network.model, state["model"]["said"], state["model"]["tensors"])
        for optimizer, saved in zip(self.task.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved if self.parts is None else sharded.in_parts(optimizer, saved))
        if self.parts is not None:
            self.parts.spread()
        self.sgd.load_state_dict(state["sgd"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        launch.set_random_states(self.accelerator, state["random"])
        for key, attribute in _SAVED.items():
            setattr(self, attribute, state[key])
        self.wall_before = state.get("wall", self.seconds)  # early versions did not save it
        return True
