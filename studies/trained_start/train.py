"""One way to go on from a trained network, with one seed: the rate that validation chooses, and the test losses."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from typing import Any, final

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

import partialsgd as ps
from partialsgd._util.files import write_alone
from partialsgd._util.randomness import generator, key
from partialsgd.engine.level_states import StateOf
from partialsgd.method import Method
from partialsgd.methods import plain
from partialsgd.nested.inspect import flops
from partialsgd.nested.layers.low_rank import FullWeight
from studies import results
from studies.results import RESULTS, Record
from studies.runs import LOGS, use_one_thread
from studies.trained_start import text as texts
from studies.trained_start.network import CONTEXT, CharacterModel, loss
from studies.trained_start.text import Text
from studies.trained_start.ways import AXES, CORE_ALONE, FULL_ALONE, JOINT, RATES, Joint

FILE = RESULTS / "trained_start.jsonl"
TEACHER = "teacher"
KEY = ("text", "axis", "length", "way", "seed")

BATCH, TRAINED_STEPS, TRAINED_RATE, WARM_UP, EVALUATED = 16, 1500, 3e-3, 20, 512
"""Windows in a batch; steps and rate of the first training; warm-up steps; windows of an evaluation."""


@final
@dataclass(frozen=True)
class Row:
    """A finished way as it is stored."""

    text: str
    axis: str
    length: int
    way: str
    seed: int
    settings: str
    """The settings that the numbers depend on beside the key; a row with other ones is trained again."""
    reached: Mapping[str, float]
    """The mean validation loss of the trained levels, by learning rate; rates that diverged are left out."""
    rate: float
    """The learning rate that validation chose; of a joint run, that of the core."""
    steps: int
    flops: float
    """Training FLOPs of the run with that rate, without those of the first training."""
    test: Mapping[str, float]
    """The loss of each level on the test data, in bits for each character."""
    start: Mapping[str, float]
    """The same of the trained network, and of the core as it is cut out."""
    parameters: Mapping[str, int]
    date: str
    torch: str
    python: str
    full_rate: float | None = None
    """The learning rate of the full level, where it is another one."""

    def save(self, file: Path = FILE) -> None:
        results.put(file, asdict(self), key=KEY)


def stored(file: Path = FILE) -> list[Row]:
    return [Row(**record) for record in results.read(file)]


def describe(steps: int = TRAINED_STEPS) -> str:
    rates = ", ".join(f"{rate:g}" for rate in RATES)
    return (
        f"trained for {steps} steps at {TRAINED_RATE:g}; then batches of {BATCH} windows of {CONTEXT} characters, "
        f"AdamW, {WARM_UP} steps of warm-up and a line to 0, the best of the rates {rates}"
    )


def run(axis: str, length: int, way: str, seed: int, data: str | None, trained_steps: int = TRAINED_STEPS) -> Record:
    """Go on in one way with every rate, and look at the test data with the best."""
    use_one_thread()
    text = texts.generated() if data is None else texts.read(Path(data))
    start = trained_network(text, seed, trained_steps)
    full: FullWeight = JOINT[way].full if way in JOINT else "sum"
    family = _nest(start(), axis, full)
    step_flops = _step_flops(family, start())
    rates = JOINT[way].trials(RATES) if way in JOINT else [(rate, rate) for rate in RATES]
    trials: dict[tuple[float, float], Continued] = {}
    for pair in rates:
        trial = go_on(way, start, axis, length, pair, text, seed, step_flops)
        if trial is not None:
            trials[pair] = trial
    if not trials:
        raise FloatingPointError(f"{way} diverged with every rate of {RATES}")
    reached = {pair: fmean(trial.losses(text, "valid").values()) for pair, trial in trials.items()}
    best = min(reached, key=reached.__getitem__)
    chosen = trials[best]
    row = Row(
        text=f"{text.name} {text.digest}",
        axis=axis,
        length=length,
        way=way,
        seed=seed,
        settings=describe(trained_steps),
        reached={_named(pair): loss for pair, loss in reached.items()},
        rate=best[0],
        steps=chosen.steps,
        flops=chosen.flops,
        test=chosen.losses(text, "test"),
        start=Continued({level: family for level in family.levels}, 0, 0.0).losses(text, "test"),
        parameters={level: family.size(level) for level in family.levels},
        date=datetime.now(timezone.utc).date().isoformat(),
        torch=torch.__version__,
        python=platform.python_version(),
        full_rate=best[1] if best[1] != best[0] else None,
    )
    return asdict(row)


def _named(rates: tuple[float, float]) -> str:
    rate, full_rate = rates
    return f"{rate:g}" if rate == full_rate else f"{rate:g}, full {full_rate:g}"


@final
@dataclass(frozen=True)
class Continued:
    """Networks that were trained on."""

    networks: Mapping[str, ps.Nested]
    """By level the family, or the network that was trained alone and has one level, full."""
    steps: int
    flops: float

    def losses(self, text: Text, split: str) -> dict[str, float]:
        """The loss of each level in bits for each character."""
        windows = text.windows(split, CONTEXT, EVALUATED)
        return {level: _evaluate(network, level, windows) for level, network in self.networks.items()}


@torch.no_grad()
def _evaluate(network: ps.Nested, level: str, windows: Tensor) -> float:
    with network.at(level if level in network.levels else network.levels[-1]):
        parts = [float(loss(network, part)) * len(part) for part in windows.split(64)]
    return sum(parts) / len(windows) / math.log(2)


def trained_network(text: Text, seed: int, steps: int) -> Callable[[], CharacterModel]:
    """Makes copies of the network that was trained on the text; it is trained once and kept as a file."""
    path = LOGS / "trained_start" / f"{text.digest}-{steps}-seed{seed}.safetensors"
    torch.manual_seed(seed)
    model = CharacterModel(len(text.characters))
    if not path.exists():
        fit(ps.nest(model, levels={}), plain(), steps, Schedule(TRAINED_RATE), text, seed, "first")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_alone(path, save(model.state_dict()))
    state = load_file(path)

    def copy() -> CharacterModel:
        made = CharacterModel(len(text.characters))
        made.load_state_dict(state)
        return made

    return copy


def _nest(model: nn.Module, axis: str, full: FullWeight = "sum") -> ps.Nested:
    return ps.nest(model, AXES[axis](full))


def _step_flops(family: ps.Nested, whole: nn.Module) -> dict[str, float]:
    """FLOPs of a step of each level in the family, and of each network alone; and of a pass of the teacher."""
    windows = torch.zeros(BATCH, CONTEXT, dtype=torch.long)
    counted = {}
    for level in family.levels:
        with family.at(level):
            counted[level] = float(flops.count(family.model, windows).training)
    counted |= {CORE_ALONE: float(flops.count(_core_of(family), windows).training)}
    counted |= {FULL_ALONE: float(flops.count(whole, windows).training)}
    counted |= {TEACHER: float(flops.count(whole, windows).forward)}
    return counted


def go_on(
    way: str,
    start: Callable[[], CharacterModel],
    axis: str,
    length: int,
    rates: tuple[float, float],
    text: Text,
    seed: int,
    step_flops: Mapping[str, float],
) -> Continued | None:
    """Train in one way with one rate, in a joint run one for each level; None if it diverged."""
    schedule = Schedule(rates[0])
    try:
        if way in JOINT:
            family = _nest(start(), axis, JOINT[way].full)
            if JOINT[way].shares_nothing:
                family = family.part_ways(example=torch.zeros(2, CONTEXT, dtype=torch.long))
            return _jointly(JOINT[way], family, length, rates, text, seed, step_flops)
        level = way.partition(" ")[0]
        model: nn.Module = start()
        network = ps.nest(_core_of(_nest(model, axis)) if level == "core" else model, levels={})
        fit(network, plain(), length, schedule, text, seed, "on")
        return Continued({level: network}, length, length * step_flops[way])
    except FloatingPointError:
        return None


def _jointly(
    joint: Joint,
    family: ps.Nested,
    length: int,
    rates: tuple[float, float],
    text: Text,
    seed: int,
    step_flops: Mapping[str, float],
) -> Continued:
    """Train a family with the FLOPs that both networks alone have together."""
    together = length * (step_flops[CORE_ALONE] + step_flops[FULL_ALONE])
    of_core = step_flops["core"] + joint.passes_of_teacher * step_flops[TEACHER]
    per_step = joint.full_share * step_flops["full"] + (1 - joint.full_share) * of_core
    steps = round((1 - joint.apart) * together / per_step)
    schedule = Schedule(rates[0], turns=joint.turns)
    part, method = replace(schedule, end=joint.apart), joint.method(steps, *rates)
    fit(family, method, steps, part, text, seed, "on", taught=joint.taught, state=joint.state)
    if not joint.apart:
        return Continued({level: family for level in family.levels}, steps, steps * per_step)
    rest, example = round(joint.apart * length), torch.zeros(2, CONTEXT, dtype=torch.long)
    alone = {level: ps.nest(family.extract(level, example=example), levels={}) for level in family.levels}
    for level, network in alone.items():
        fit(network, plain(), rest, replace(schedule, begin=joint.apart, warm_up=0), text, seed, f"apart {level}")
    cost = steps * per_step + rest * (step_flops[CORE_ALONE] + step_flops[FULL_ALONE])
    return Continued(alone, steps + len(alone) * rest, cost)


def _core_of(family: ps.Nested) -> nn.Module:
    return family.extract("core", example=torch.zeros(2, CONTEXT, dtype=torch.long))


@final
@dataclass(frozen=True)
class Schedule:
    """A learning rate that falls along a line, from the share `begin` of its peak to the share `end`."""

    rate: float
    begin: float = 1.0
    end: float = 0.0
    warm_up: int = WARM_UP
    turns: int = 1
    """How many steps have the same rate."""

    def at(self, t: int, steps: int) -> float:
        t, steps = t // self.turns, steps // self.turns
        if t < self.warm_up:
            return self.rate * self.begin * (t + 1) / self.warm_up
        done = (t - self.warm_up) / max(1, steps - self.warm_up)
        return self.rate * (self.begin + (self.end - self.begin) * done)


def fit(
    network: ps.Nested,
    method: Method,
    steps: int,
    schedule: Schedule,
    text: Text,
    seed: int,
    part: str,
    *,
    taught: float = 0.0,
    state: StateOf = "shared",
) -> None:
    """Train a nested model; batches are a function of the seed, the part of the training and their number.

    `taught` is the weight of a teacher in the loss, where the method gives one.
    """
    characters = text.tensor("train")
    optimizer = torch.optim.AdamW(network.parameters(), lr=schedule.rate, fused=True)
    sgd = ps.PartialSGD(network, optimizer, method, seed=seed, state=state)
    windows, drawn = torch.zeros(0), -1

    def closure(g: Any) -> Tensor:
        g.batch, g.outputs = drawn, network(windows[:, :-1])
        value = F.cross_entropy(g.outputs.flatten(0, 1), windows[:, 1:].flatten())
        if g.teacher is not None:
            value = (1 - taught) * value + taught * ps.soft_cross_entropy(g.outputs, g.teacher)
        value.backward()
        return value

    network.train()
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = schedule.at(t, steps)
        if not sgd.repeats_batch:
            drawn += 1
            draw = generator(key(seed, part, drawn))
            places = torch.randint(len(characters) - CONTEXT, (BATCH, 1), generator=draw)
            windows = characters[places + torch.arange(CONTEXT + 1)]
        sgd.step(closure)
    network.eval()
