"""The answer before the table: which sizes, how good, at what cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from partialsgd.lab.page import cost, numbers
from partialsgd.lab.page.cost import Comparison
from partialsgd.lab.page.levels import largest_scores
from partialsgd.lab.page.markup import Html, el, joined
from partialsgd.lab.page.runs import Level, Run

_COSTS = 3  # more stand in their section only


def lead(runs: Sequence[Run], found: Sequence[Comparison]) -> Html:
    ended = [run for run in runs if run.is_finished]
    if not ended:
        return Html("")
    largest = largest_scores(ended)
    if len(runs) > 1:
        costs = found if len(found) <= _COSTS else []
        paid = [part for one in costs for part in (" ", el("strong", one.joint.name), ": ", cost.brief(one))]
        return joined([*_best(ended, largest), *paid])
    (run,) = ended
    sizes = [_size(run, level, largest) for level in run.levels]
    return joined([*(part for size in sizes for part in (*size, ". ")), cost.brief(found[0]) if found else _paid(run)])


def _size(run: Run, level: Level, largest: Mapping[str, float]) -> list[str]:
    score = str(run.score)
    value = numbers.score(_value(level, score), largest[score])
    part = "" if level.share in (None, 1.0) else f", {numbers.share(level.share)} of the whole"
    said = f" with {numbers.whole(level.parameters)} parameters{part}"
    return [el("strong", level.name), " reaches ", el("strong", f"{score} {value}"), said]


def _paid(run: Run) -> str:
    return f"The training took {numbers.power(run.flops)} FLOPs and {numbers.duration(run.seconds)}."


def _best(ended: Sequence[Run], largest: Mapping[str, float]) -> list[str]:
    """Of each level the run that has the best of it, by each score."""
    parts: list[str] = []
    for score in largest:
        trained = [(run, level) for run in ended if run.score == score for level in run.trained]
        own = [(run, level) for run, level in trained if math.isfinite(_value(level, score))]
        for name in dict.fromkeys(level.name for _, level in own):
            run, level = max((pair for pair in own if pair[1].name == name), key=lambda p: _value(p[1], score))
            value = numbers.score(_value(level, score), largest[score])
            parts += [", " if parts else "The best of each level: ", el("strong", f"{name}, {score} {value}")]
            parts.append(f" ({run.name})")
    return [*parts, "."] if parts else []


def _value(level: Level, score: str) -> float:
    return float((level.test or {})[score])
