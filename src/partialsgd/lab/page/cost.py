"""What one run for all sizes costs, against a run for each size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from partialsgd.lab.page import numbers
from partialsgd.lab.page.markup import Html, el, section, table
from partialsgd.lab.page.runs import Json, Level, Run

_HOW = (
    "out data threads seed preset method alone nest ratio init norms epochs max_steps lr lr_wide lr_deep warm_up "
    "schedule warmup_init_lr measure_every evaluate_every checkpoint_every keep tensorboard track look_bleu probe "
    "measure_layers measure_batches"
)
"""Settings of how a network is trained and watched; the others say which network, which data and which score."""
_MAY_DIFFER = frozenset(_HOW.split())
_NEAREST = ("epochs", "max_steps", "init", "seed")
"""Of several runs of a level alone the one that has these as the joint run, the first before the others."""


@final
@dataclass(frozen=True)
class Alone:
    """A level by itself: from a run that is on the page, or computed."""

    level: str
    updates: float
    flops: float
    seconds: float | None = None
    score: float | None = None
    run: str | None = None
    """None where it was computed."""


@final
@dataclass(frozen=True)
class Comparison:
    """A run of several levels, and each of them alone."""

    joint: Run
    alone: tuple[Alone, ...]

    @property
    def flops(self) -> float:
        return sum(one.flops for one in self.alone)

    @property
    def seconds(self) -> float | None:
        """Known where all of them are runs."""
        known = [one.seconds for one in self.alone if one.seconds is not None]
        return sum(known) if len(known) == len(self.alone) else None

    @property
    def is_computed(self) -> bool:
        return any(one.run is None for one in self.alone)


def comparisons(runs: Sequence[Run]) -> list[Comparison]:
    """One for each run at its end that trained several levels."""
    joint = [run for run in runs if run.is_finished and len(run.trained) > 1]
    return [Comparison(run, tuple(_alone(run, level, runs) for level in run.trained)) for run in joint]


def _alone(joint: Run, level: Level, runs: Sequence[Run]) -> Alone:
    found = [run for run in runs if _is_alone(run, joint, level)]
    if not found:
        per_update = (level.flops or 0.0) / level.updates
        steps = (joint.summary or {})["steps"]
        return Alone(level.name, steps, per_update * steps)
    run = min(found, key=lambda one: [one.settings.get(name) != joint.settings.get(name) for name in _NEAREST])
    own = run.trained[0]
    return Alone(level.name, own.updates, own.flops or 0.0, run.seconds, (own.test or {})[str(run.score)], run.name)


def _is_alone(run: Run, joint: Run, level: Level) -> bool:
    """Whether a run is of that level alone."""
    if not run.is_finished or [one.name for one in run.trained] != [level.name]:
        return False
    is_same_size = run.trained[0].parameters == level.parameters
    is_same_data = (run.recipe, run.config.get("data")) == (joint.recipe, joint.config.get("data"))
    return is_same_size and is_same_data and _is_same_network(run.settings, joint.settings)


def _is_same_network(one: Json, other: Json) -> bool:
    """By the settings that both have: an older run may have fewer."""
    return all(one[name] == other[name] for name in set(one) & set(other) - _MAY_DIFFER)


def shown(found: Sequence[Comparison]) -> Html:
    if not found:
        return section(
            "cost",
            "Joint against separate",
            el("p", "No run on this page is at its end and trained several levels at once."),
        )
    return section("cost", "Joint against separate", *(part for one in found for part in _shown(one, len(found) > 1)))


def _shown(one: Comparison, is_named: bool) -> list[Html]:
    score = str(one.joint.score)
    head = ["level", "trained", score, "updates", "training FLOPs", "time"]
    title = f"Joint and separate training, {one.joint.name}"
    return [
        *([el("h3", one.joint.name)] if is_named else []),
        el("p", sentence(one)),
        table(head, _rows(one), title=title, words=2),
        el("p", _caution(one), class_="note"),
    ]


def _rows(one: Comparison) -> list[list[str]]:
    rows: list[list[str]] = []
    for level, alone in zip(one.joint.trained, one.alone, strict=True):
        own, other = (level.test or {})[str(one.joint.score)], alone.score
        largest = max(own, other or 0.0)
        where = "alone, computed" if alone.run is None else f"alone, {alone.run}"
        rows.append(_row(level.name, "jointly", numbers.score(own, largest), level.updates, level.flops, None))
        said = numbers.score(other, largest)
        rows.append(_row(level.name, where, said, alone.updates, alone.flops, alone.seconds))
    updates = sum(level.updates for level in one.joint.trained)
    rows.append(_row("all", "jointly", numbers.NOTHING, updates, one.joint.flops, one.joint.seconds))
    rows.append(_row("all", "alone", numbers.NOTHING, sum(a.updates for a in one.alone), one.flops, one.seconds))
    return rows


def _row(level: str, trained: str, score: str, updates: float, flops: float | None, seconds: float | None) -> list[str]:
    costs = [numbers.whole(updates), numbers.power(flops), numbers.duration(seconds)]
    return [level, trained, score, *costs]


def brief(one: Comparison) -> str:
    """The costs of both, in half a sentence each."""
    took = f"{numbers.power(one.joint.flops)} FLOPs and {numbers.duration(one.joint.seconds)}"
    ratio = numbers.times(one.flops / one.joint.flops) if one.joint.flops else "?"
    how = "computed, for the same epochs" if one.is_computed else f"in {numbers.duration(one.seconds)}"
    return f"One run for all took {took}; a run for each takes {ratio} times the FLOPs ({how}){_gained(one)}."


def _gained(one: Comparison) -> str:
    """What the scores are jointly, less those alone: cheap is not the same as good."""
    score = str(one.joint.score)
    levels = {level.name: level for level in one.joint.trained}
    apart = [
        f"{each.level} {numbers.signed(float((levels[each.level].test or {})[score]) - each.score)}"
        for each in one.alone
        if each.score is not None
    ]
    return f"; jointly less alone, {score}: {', '.join(apart)}" if apart else ""


def sentence(one: Comparison) -> str:
    """The costs in words."""
    joint, count = one.joint, len(one.alone)
    took = f"One run for {count} sizes took {numbers.power(joint.flops)} FLOPs and {numbers.duration(joint.seconds)}"
    each = f"{count} runs, one for each size,"
    ratio = numbers.times(one.flops / joint.flops) if joint.flops else "?"
    if one.is_computed:
        return f"{took}; {each} of as many steps would take {numbers.power(one.flops)} FLOPs, {ratio} times as many."
    return f"{took}; {each} took {numbers.power(one.flops)} FLOPs ({ratio} times) and {numbers.duration(one.seconds)}."


def _caution(one: Comparison) -> str:
    said = []
    if one.is_computed:
        said.append(
            "Computed: this run's own FLOPs for an update of a level, times the steps of this run, which is training "
            "for the same epochs; a network without a smaller one inside may need a little less. What its time and "
            "score would be is not known: partialsgd compare trains each level alone."
        )
    updates = [level.updates for level in one.joint.trained]
    if any(own < alone.updates for own, alone in zip(updates, one.alone, strict=True)):
        said.append(
            "Alone, a level gets more updates than in the joint run; with as many updates each, the FLOPs would be "
            "about the same."
        )
    said.append("Time is that of the steps, without evaluations; latencies and times are of the machine that ran them.")
    return " ".join(said)
