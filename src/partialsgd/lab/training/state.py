"""A training between two steps: what it is made of, and all that a checkpoint must hold to go on from there."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, final

from accelerate import Accelerator

from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.engine.step import Step
from partialsgd.export import files, states
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import launch
from partialsgd.lab.training.batch_plan import Hand
from partialsgd.lab.training.task import Numbers, Task
from partialsgd.nested.switch import FULL


@final
@dataclass
class Training:
    """One run in the making."""

    task: Task
    sgd: PartialSGD
    here: Accelerator
    position: int = 0
    """Steps that were tried; `sgd.t` counts those that moved something."""
    best: float | None = None
    """The merit of the best checkpoint."""
    judges: list[str] = field(default_factory=list)
    """The levels that it was judged by."""
    updates: dict[str, int] = field(default_factory=dict)
    """Steps by level."""
    flops: dict[str, float] = field(default_factory=dict)
    """Training FLOPs by level."""
    glances: dict[str, Numbers] = field(default_factory=dict)
    """Of the last evaluation."""
    seconds: float = 0.0
    """Of the steps, without evaluations and checkpoints, over all processes that have worked on it."""
    before: float = 0.0
    """Wall time of the processes before this one, up to the checkpoint that it goes on from."""

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._largest = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.task.optimizers]

    @property
    def wall(self) -> float:
        """Seconds with evaluations and checkpoints; what a kill has undone is not in it."""
        return self.before + time.monotonic() - self._began

    def set_rate(self, total: int) -> None:
        """γ_t, a function of t: there is no scheduler whose state could be lost or stepped twice."""
        factor = self.task.rate(self.sgd.t, total)
        for optimizer, largest in zip(self.task.optimizers, self._largest, strict=True):
            for group, lr in zip(optimizer.param_groups, largest, strict=True):
                group["lr"] = factor * lr

    def count(self, step: Step, hand: Hand) -> None:
        """After a step: a level's cost is that of its passes, forward and backward; measuring is not training."""
        self.position += 1
        for level in (level or FULL for level in step.passes):
            cost = launch.total(self.here, sum(self.task.flops(level, batch) for batch in hand.batches))
            self.flops[level] = self.flops.get(level, 0.0) + cost
        for level in (level or FULL for level, _ in step.losses):
            self.updates[level] = self.updates.get(level, 0) + (not step.skipped)

    def judged(self, glances: dict[str, Numbers]) -> dict[str, Numbers]:
        """The levels that decide which checkpoint is best: those that are trained. When one joins them, all is new."""
        levels = sorted(level for level in glances if level in self.updates)
        if levels != self.judges:
            self.judges, self.best = levels, None
        return {level: glances[level] for level in levels} or glances

    def save(self, run: Run, *, keep: int) -> None:
        """On every rank at once: the generators are gathered, and the first rank writes."""
        self.require_finite()
        random = launch.random_states(self.here)
        if self.here.is_main_process:
            files.sync(run.metrics)  # no power failure leaves a checkpoint without the lines of its steps
            checkpoints.save(run.checkpoints, self.position, self._state(random), keep=keep)

    def require_finite(self) -> None:
        """A step with a finite gradient may still end at infinity. What is written has none of it."""
        for name, parameter in self.task.network.named_parameters():
            if not parameter.isfinite().all():
                raise FloatingPointError(f"the parameter {name!r} is NaN or infinite after step {self.position:,}")

    def load(self, run: Run) -> bool:
        """Go on from the newest whole checkpoint, if there is one."""
        found = checkpoints.latest(run.checkpoints)
        if found is None:
            return False
        self.position, state = found
        states.fill(self.task.network.model, state["model"]["said"], state["model"]["tensors"])
        for optimizer, saved in zip(self.task.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.sgd.load_state_dict(state["sgd"])
        if self.here.scaler is not None:
            self.here.scaler.load_state_dict(state["scaler"])
        launch.set_random_states(self.here, state["random"])
        for name in ("best", "judges", "updates", "flops", "glances", "seconds"):
            setattr(self, name, state[name])
        self.before = state.get("wall", self.seconds)  # a run of an earlier version has not counted it
        return True

    def _state(self, random: list[dict[str, Any]]) -> dict[str, Any]:
        model = self.task.network.model
        return {
            "model": {"said": states.describe(model), "tensors": states.stored(model)},
            "optimizers": [optimizer.state_dict() for optimizer in self.task.optimizers],
            "sgd": self.sgd.state_dict(),
            "scaler": None if self.here.scaler is None else self.here.scaler.state_dict(),
            "random": random,
            "best": self.best,
            "judges": self.judges,
            "updates": self.updates,
            "flops": self.flops,
            "glances": self.glances,
            "seconds": self.seconds,
            "wall": self.wall,
        }
