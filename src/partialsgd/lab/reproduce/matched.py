"""Ordinary networks to stand beside a level: one with as many parameters, or one that is as fast.

Embeddings and output layers are most of a small network, and a level keeps them. FLOPs then say little about its size
or its speed, and a narrower ordinary network may be the better choice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

from partialsgd._util.files import read_json, write_json
from partialsgd.lab.recipes import build
from partialsgd.lab.training import launch
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings
from partialsgd.lab.training.task import Task
from partialsgd.nested.switch import FULL

Kind: TypeAlias = Literal["parameters", "latency"]
Changes: TypeAlias = Mapping[str, Any]
"""The settings of an ordinary network that are not those of the whole one."""

NAMES: Mapping[Kind, str] = {"parameters": "as large", "latency": "as fast"}
_FILE = "matched.json"
_TURNS = 5
"""Measurements of each latency, in turns."""
_AS_FAST = 1.02
"""A network that takes at most so many times as long is as fast: timings are noisy."""


def chosen(settings: Settings, kinds: Sequence[Kind], out: Path) -> dict[str, dict[Kind, Changes]]:
    """Return the sizes of the ordinary networks by level and kind.

    They are chosen once and kept in `out`: another measurement of latencies might choose another size. A kind is left
    out if the whole network itself is as fast as the level.
    """
    if not kinds:
        return {}
    made = None
    if launch.processes().is_main_process:
        file = out / _FILE
        made = read_json(file) if file.exists() else {}
        for kind in kinds:
            if kind not in made:
                made[kind] = _choose(settings, kind)
        out.mkdir(parents=True, exist_ok=True)
        write_json(file, made)
    by_kind = launch.from_main(made)
    levels = dict.fromkeys(level for kind in kinds for level in by_kind[kind])
    return {
        level: {kind: by_kind[kind][level] for kind in kinds if by_kind[kind][level] is not None} for level in levels
    }


def _choose(settings: Settings, kind: Kind) -> dict[str, Changes | None]:
    """Return the size for each level but the full one; None if the whole network itself fits."""
    sizes: list[Changes] = list(settings.ordinary_sizes())
    if not sizes:
        raise WrongCall(f"--match needs ordinary networks of other sizes, and {settings.recipe} has none; omit it")
    task = build(settings)
    changes: Any = {"nest": "none", "method": "plain"}
    ordinary = replace(settings, **changes)

    @cache
    def network(index: int) -> Task:
        return build(replace(ordinary, **sizes[index]) if index < len(sizes) else ordinary)

    def parameters(index: int) -> int:
        return network(index).network.size(FULL)

    chosen: dict[str, Changes | None] = {}
    for level in task.network.levels[:-1]:
        if kind == "parameters":
            wanted = task.network.size(level)
            above = bisect_left(range(len(sizes)), wanted, key=parameters)
            near = [index for index in (above - 1, above) if 0 <= index <= len(sizes)]
            index = min(near, key=lambda index: abs(parameters(index) - wanted))
        else:
            index = bisect_left(range(len(sizes) + 1), 1, key=lambda i: int(_is_slower(network(i), task, level))) - 1
        chosen[level] = sizes[max(index, 0)] if index < len(sizes) else None
    return chosen


def _is_slower(ordinary: Task, task: Task, level: str) -> bool:
    """Time both networks in turns."""
    pair = [
        (each, each.network.extract(name, example=each.example()).eval())
        for each, name in ((ordinary, FULL), (task, level))
    ]
    seconds: list[list[float]] = [[], []]
    for _ in range(_TURNS):
        for own, (each, extracted) in zip(seconds, pair, strict=True):
            own.append(each.latency(extracted))
    return median(seconds[0]) > _AS_FAST * median(seconds[1])


def describe(changes: Changes) -> str:
    """Return the size in words, such as "d_model 48, ffn 192"."""
    return ", ".join(f"{name} {value}" for name, value in changes.items())
