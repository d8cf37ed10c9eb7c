"""The cost of one joint run for all levels, compared with a separate run for each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from partialsgd.lab.page.run_files import Level, Run

_TRAINING_SETTINGS = (
    "out data threads seed preset method alone nest ratio level_budget init full norms distill distill_weight "
    "state part_ways epochs max_steps lr warm_up schedule warmup_init_lr measure_every evaluate_every checkpoint_every "
    "keep tensorboard track look_bleu probe measure_layers measure_batches"
)
"""Settings of how a network is trained and logged. All others define the network, the data or the score."""
_PREFERENCE = ("epochs", "max_steps", "init", "seed")
"""If several runs train a level alone, the one that agrees with the joint run in the first of these is taken."""

QUESTIONS = {
    "sum": "I want every level; do I train them in one run, or each in a run of its own, for the same total cost?",
    "epochs": "How much do I lose if I pay for one run in place of one for each level? This is the paper's comparison; "
    "in the joint run a level has only a part of the updates.",
    "each": "I want one level only; would the cost of the joint run be better spent on that level alone?",
}
"""What a comparison of joint and separate training answers, by the budget of the separate runs."""


@final
@dataclass(frozen=True)
class Budget:
    """Separate runs of each level, compared by one budget."""

    name: str
    question: str
    steps: Mapping[str, int]
    """The steps of the run of each level."""
    flops: float
    """The FLOPs of all these runs."""


@final
@dataclass(frozen=True)
class Separate:
    """The training of one level alone: taken from a run on the page, or computed if `run` is None."""

    joint: Level
    updates: int
    flops: float
    seconds: float | None = None
    score: float | None = None
    run: str | None = None


@final
@dataclass(frozen=True)
class Comparison:
    """A joint run, and the separate training of each of its levels."""

    joint: Run
    separate: Sequence[Separate]

    @property
    def flops(self) -> float:
        """The FLOPs of all separate runs."""
        return sum(one.flops for one in self.separate)

    @property
    def seconds(self) -> float | None:
        """The time of all separate runs, if all of them are on the page."""
        return None if self.is_computed else sum(one.seconds or 0.0 for one in self.separate)

    @property
    def is_computed(self) -> bool:
        return any(one.run is None for one in self.separate)

    @property
    def budgets(self) -> list[Budget]:
        """The separate runs that have the FLOPs of the joint run together, its steps, or its FLOPs each."""
        costs = {one.joint.name: one.flops / one.updates for one in self.separate if one.updates and one.flops}
        if not costs:
            return []
        joint_steps = int(self.joint.summary["steps"])
        steps = {
            "sum": dict.fromkeys(costs, round(self.joint.flops / sum(costs.values()))),
            "epochs": dict.fromkeys(costs, joint_steps),
            "each": {level: round(self.joint.flops / cost) for level, cost in costs.items()},
        }
        return [
            Budget(name, question, steps[name], sum(costs[level] * count for level, count in steps[name].items()))
            for name, question in QUESTIONS.items()
        ]

    @property
    def has_fewer_updates(self) -> bool:
        """True if a level gets fewer updates in the joint run than alone."""
        return any(one.joint.updates < one.updates for one in self.separate)


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Return a comparison for each finished run that trained several levels."""
    joint_runs = [run for run in runs if run.summary and len(run.trained) > 1]
    return [Comparison(run, [_separate(run, level, runs) for level in run.trained]) for run in joint_runs]


def _separate(joint: Run, level: Level, runs: Sequence[Run]) -> Separate:
    candidates = [run for run in runs if _trains_alone(run, joint, level)]
    if not candidates:
        steps = int(joint.summary["steps"])
        return Separate(level, steps, (level.flops or 0.0) / level.updates * steps)
    run = min(candidates, key=lambda one: [one.settings.get(name) != joint.settings.get(name) for name in _PREFERENCE])
    alone = run.trained[0]
    return Separate(level, alone.updates, alone.flops or 0.0, float(run.summary["seconds"]), alone.score, run.name)


def _trains_alone(run: Run, joint: Run, level: Level) -> bool:
    """Return True if `run` trained the same network as `level` of the joint run, on the same data."""
    is_level = [(one.name, one.parameters) for one in run.trained] == [(level.name, level.parameters)]
    is_same_data = all(run.config.get(name) == joint.config.get(name) for name in ("recipe", "data"))
    # Runs of earlier versions may have fewer settings.
    compared = set(run.settings) & set(joint.settings) - set(_TRAINING_SETTINGS.split())
    is_same_network = all(run.settings[name] == joint.settings[name] for name in compared)
    return bool(run.summary) and is_level and is_same_data and is_same_network
