"""Ordinary networks to stand beside a level: one with as many parameters, or one that is as fast.

Embeddings and output layers are most of a small network, and a level keeps them. FLOPs then say little about its size
or its speed, and a narrower ordinary network may be the better choice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

import torch

from partialsgd._util.files import read_json, write_json
from partialsgd.lab.recipes import build, settings_of
from partialsgd.lab.runs.use_run import example_on_device
from partialsgd.lab.training import launch
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from partialsgd.lab.training.settings import WITHOUT_LEVELS, Settings
from partialsgd.lab.training.task import Task
from partialsgd.nested.switch import FULL

Kind: TypeAlias = Literal["parameters", "latency"]
Changes: TypeAlias = dict[str, Any]
"""The settings of an ordinary network that are not those of the whole one; empty for the whole network itself."""
Sizes: TypeAlias = Mapping[str, Mapping[Kind, Changes | None]]
"""The ordinary networks that stand beside a level, by level and kind; None if there is none."""

NAMES: Mapping[Kind, str] = {"parameters": "as large", "latency": "as fast"}
_FILE = "matched.json"
_TURNS = 5
"""Measurements of each latency, in turns."""
_AS_FAST = 1.02
"""A network that takes at most so many times as long is as fast: timings are noisy."""


def chosen(settings: Settings, kinds: Sequence[Kind], out: Path) -> Sizes:
    """Return the sizes of the ordinary networks.

    They are chosen once and kept in `out`: another measurement of latencies might choose another size.
    """
    if not kinds:
        return {}
    _require_matchable(settings)
    made = None
    if launch.processes().is_main_process:
        values = {name: value for name, value in asdict(settings).items() if name not in ("out", "seed")}
        stored = read_json(out / _FILE) if (out / _FILE).exists() else {"settings": values}
        before = settings_of(settings.recipe, stored["settings"])  # an older file may have fewer
        if replace(before, out=settings.out, seed=settings.seed) != settings:
            raise AlreadyThere(f"{out / _FILE} is for other settings; give another --out, or remove it")
        missing = [kind for kind in kinds if kind not in stored]
        made = stored | {kind: _choose(settings, kind) for kind in missing}
        if missing:
            out.mkdir(parents=True, exist_ok=True)
            write_json(out / _FILE, made)
    by_kind = launch.from_main(made)
    return {level: {kind: by_kind[kind][level] for kind in kinds} for level in by_kind[kinds[0]]}


def _require_matchable(settings: Settings) -> None:
    if earlier := [name for name in ("start", "teacher") if getattr(settings, name, None) is not None]:
        raise WrongCall(
            f"--match compares networks from scratch, and a smaller ordinary network cannot have the run of "
            f"--{earlier[0]}; omit one of them"
        )
    if not settings.ordinary_sizes():
        raise WrongCall(
            f"--match needs smaller ordinary networks, and with these settings {settings.recipe} has none; omit it"
        )


def _choose(settings: Settings, kind: Kind) -> dict[str, Changes | None]:
    """Return the size for each level but the full one."""
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    sizes: list[Changes] = [*settings.ordinary_sizes(), {}]
    task = build(settings)
    whole: Any = {**WITHOUT_LEVELS, "method": "plain"}

    @cache
    def ordinary(index: int) -> Task:
        return build(replace(settings, **whole, **sizes[index]))

    def parameters(index: int) -> int:
        return ordinary(index).network.size(FULL)

    indices, chosen = range(len(sizes)), {}
    for level in task.network.levels[:-1]:
        if kind == "parameters":
            wanted = task.network.size(level)
            above = bisect_left(indices, wanted, key=parameters)
            near = [index for index in (above - 1, above) if index in indices]
            index = min(near, key=lambda index: abs(parameters(index) - wanted))
        else:
            index = bisect_left(indices, True, key=lambda i: is_slower(ordinary(i), task, level)) - 1
        chosen[level] = sizes[index] if index >= 0 else None
    return chosen


def is_slower(ordinary: Task, task: Task, level: str) -> bool:
    """True if the full network of one task takes longer than a level of another; both are timed in turns."""
    pair = [(ordinary, FULL), (task, level)]
    networks = [each.network.extract(name, example=example_on_device(each)).eval() for each, name in pair]
    seconds: list[list[float]] = [[], []]
    for _ in range(_TURNS):
        for own, (each, _), network in zip(seconds, pair, networks, strict=True):
            own.append(each.latency(network))
    return median(seconds[0]) > _AS_FAST * median(seconds[1])


def describe(sizes: Sizes) -> str:
    """Return a sentence for each network, with a space before it."""
    sentences = []
    for level, by_kind in sizes.items():
        for kind, changes in by_kind.items():
            if changes is None:
                sentences.append(f"No ordinary network is {NAMES[kind]} as {level}.")
            elif changes:
                size = ", ".join(f"{name} {value}" for name, value in changes.items())
                sentences.append(f"The ordinary network that is {NAMES[kind]} as {level} has {size}.")
            else:
                sentences.append(f"The whole network itself is {NAMES[kind]} as {level}.")
    return "".join(f" {sentence}" for sentence in sentences)
