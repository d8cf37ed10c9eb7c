"""`partialsgd compare`: all levels trained at once, against each level trained alone."""

from __future__ import annotations

import ast
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, final

from rich.console import Console

from partialsgd._util.files import read_json, write_json, write_text
from partialsgd.lab.page.cost import QUESTIONS
from partialsgd.lab.recipes import build
from partialsgd.lab.reproduce import matched, paired
from partialsgd.lab.reproduce.jobs import RunJob, run_here, run_jobs
from partialsgd.lab.reproduce.run_folder import Summary, total_flops
from partialsgd.lab.reproduce.tables import Table, to_markdown, to_rich
from partialsgd.lab.reproduce.workers import WorkerPool
from partialsgd.lab.runs.run import FAILED, Run
from partialsgd.lab.training import launch, loop
from partialsgd.lab.training.batch_plan import BatchPlan
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from partialsgd.lab.training.settings import WITHOUT_LEVELS, Settings, require_at_least
from partialsgd.nested.switch import FULL

Budget: TypeAlias = Literal["sum", "epochs", "each"]

_MULTI_LEVEL = ("alternating", "slimmable", "sandwich")
"""The methods that train several levels."""
_COUNTED_BATCHES = 64
"""Batches over which the FLOPs of a step are averaged."""
_BUDGETS = {
    "sum": "the separate runs, of equal length, have the FLOPs of the joint run together",
    "epochs": "each level alone has the epochs of the joint run",
    "each": "each level alone has all FLOPs of the joint run",
}


@final
@dataclass(frozen=True)
class Row:
    """A level, or all of them, trained in one way: means over the seeds."""

    level: str
    trained: str
    scores: tuple[float, ...]
    """One score for each seed; none for all levels together."""
    updates: float
    flops: float
    seconds: float | None
    """None for a level of a joint run, whose time cannot be separated."""
    parameters: int | None = None
    latency: float | None = None
    """Seconds for one example; None for all levels together."""


@final
@dataclass(frozen=True)
class Pair:
    """The summaries of the runs with one seed."""

    seed: int
    joint: Summary
    alone: Mapping[str, Summary]
    ordinary: Mapping[tuple[str, matched.Kind], Summary] = field(default_factory=dict)
    """Ordinary networks beside a level, by what they have in common with it."""


def compare(
    settings: Settings,
    *,
    budget: Budget = "sum",
    seeds: int = 1,
    jobs: int = 1,
    match: Sequence[matched.Kind] = (),
) -> list[Row]:
    """Train jointly and alone, `seeds` times each, in the directory `settings.out`; finished runs are kept.

    The joint run has the settings as they are. A smaller level alone is the same nested model from the same start, of
    which only that level moves. The whole network alone is not nested, and starts as an ordinary network. With `match`
    each smaller level also stands beside an ordinary network with as many parameters, or as fast, which is trained
    for as many steps as the level alone.
    """
    require_at_least("seeds", seeds, 1)
    if getattr(settings, "nest", "") == "none":
        raise WrongCall("--nest none has one level, and nothing to compare it with; choose another")
    if settings.probe is not None:
        raise WrongCall("--probe is for one training: the whole network alone has no core to measure; leave it out")
    if jobs > 1 and launch.processes().num_processes > 1:
        raise WrongCall("--jobs is for a single process; under torchrun or accelerate leave it out")
    default = f"runs/compare-{settings.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    out = Path(launch.from_main(settings.out or default))
    settings = loop.pin(settings)
    _alone_method(settings.method, "plain")  # raises now, not after the joint training
    console = launch.console()
    console.print(f"The runs are made in {out}; with --out {out} the same call goes on there", highlight=False)
    each_seed = [replace(settings, seed=settings.seed + k) for k in range(seeds)]
    sizes = matched.chosen(settings, match, out)

    def ready() -> list[RunJob]:
        return [job for one in each_seed for job in _ready(one, budget, out, sizes)]

    if jobs == 1:
        run_here(ready, console)
    elif failures := run_jobs(ready, WorkerPool(jobs, out / "logs"), console):
        raise RuntimeError("; ".join(failures))
    pairs = [_pair(one, out, sizes) for one in each_seed]
    rows = summarize(pairs)
    if launch.processes().is_main_process:
        table = to_table(rows, pairs, budget, sizes)
        write_text(out / "compare.md", to_markdown(table, level=1) + "\n")
        write_json(out / "compare.json", to_json(rows, pairs, budget))
        Console().print(to_rich(table))
        console.print(f"The runs and the table are in {out}", highlight=False)
    return rows


def _ready(settings: Settings, budget: Budget, out: Path, sizes: matched.Sizes) -> Iterator[RunJob]:
    """The runs of one seed that can be trained now: the joint one, each level alone, and the ordinary networks."""
    joint = _job("joint", settings, out)
    if (summary := _summary(joint)) is None:
        yield joint
        return
    levels = list(summary["levels"])
    alone = {level: alone_settings(settings, level, levels) for level in levels}
    budgets = within_budget(alone, summary, budget)
    for level, within in budgets.items():
        if _summary(job := _job(f"{level}-alone", within, out)) is None:
            yield job
    for level, kind, changes in _each(sizes):
        length = {name: getattr(budgets[level], name) for name in ("max_steps", "epochs")}
        rival = replace(alone[levels[-1]], **length, **changes)
        if _summary(job := _job(_rival(level, kind), rival, out)) is None:
            yield job


def _each(sizes: matched.Sizes) -> Iterator[tuple[str, matched.Kind, matched.Changes]]:
    """Yield the networks to train; the whole network is trained anyway."""
    for level, by_kind in sizes.items():
        for kind, changes in by_kind.items():
            if changes:
                yield level, kind, changes


def _rival(level: str, kind: matched.Kind) -> str:
    """The name of the run of an ordinary network."""
    return f"{matched.NAMES[kind].replace(' ', '-')}-as-{level}"


def _job(name: str, settings: Settings, out: Path) -> RunJob:
    label = f"{name.replace('/', '_')}-seed{settings.seed}"
    return RunJob(label, out / label, settings)


def _summary(job: RunJob) -> Summary | None:
    """The summary of a run, if it is finished; raises if it has other settings, or diverged."""
    if not job.is_started:
        return None
    stored = replace(Run(job.path).settings, out=None, threads=None)  # these say where a run was made
    if stored != replace(job.settings, out=None, threads=None):
        raise AlreadyThere(f"{job.path} is a run with other settings; give another --out, or remove it")
    if job.has_diverged:
        raise FloatingPointError(read_json(job.path / FAILED)["error"])
    return Run(job.path).summary


def _pair(settings: Settings, out: Path, sizes: matched.Sizes) -> Pair:
    def summary(name: str) -> Summary:
        return read_json(_job(name, settings, out).path / "summary.json")

    joint = summary("joint")
    alone = {level: summary(f"{level}-alone") for level in joint["levels"]}
    ordinary = {(level, kind): summary(_rival(level, kind)) for level, kind, _ in _each(sizes)}
    return Pair(settings.seed, joint, alone, ordinary)


def alone_settings(settings: Settings, level: str, levels: list[str]) -> Settings:
    """The settings that train a level by itself; what the method does beside choosing levels stays."""
    not_joint: Any = {"distill": None, "part_ways": 0.0, "state": "shared"}
    if level == levels[-1] and hasattr(settings, "nest"):
        changes: Any = {**WITHOUT_LEVELS, "method": _alone_method(settings.method, "plain")}
        return replace(settings, **changes, **not_joint)
    return replace(settings, method=_alone_method(settings.method, f"only({level!r})"), **not_joint)


def _alone_method(method: str, alone: str) -> str:
    """The method's text with `alone` in the place of the part that chooses the levels."""
    match ast.parse(method.strip(), mode="eval").body:
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)) if name in _MULTI_LEVEL:
            return alone
        case ast.Call(
            func=ast.Name(id="compose"), args=[ast.Name(id=name) | ast.Call(func=ast.Name(id=name)), other]
        ) if name in _MULTI_LEVEL:
            return ast.unparse(other) if alone == "plain" else f"compose({alone}, {ast.unparse(other)})"
    raise WrongCall(
        f"--method {method} does not say how to train a level alone; give one of {', '.join(_MULTI_LEVEL)}, or "
        "compose(one of them, another method), which the level alone then has too"
    )


def within_budget(alone: Mapping[str, Settings], joint: Summary, budget: Budget) -> dict[str, Settings]:
    """The settings of each level alone, with as many steps as the budget gives it."""
    if budget == "epochs":
        return dict(alone)
    ranks = launch.processes().num_processes
    lengths = {level: _step_and_epoch(settings, level, ranks) for level, settings in alone.items()}
    together = sum(flops for flops, _ in lengths.values())
    within = {}
    for level, (flops, per_epoch) in lengths.items():
        steps = max(1, round(total_flops(joint) / (together if budget == "sum" else flops)))
        within[level] = replace(alone[level], max_steps=steps, epochs=math.ceil(steps / per_epoch))
    return within


@cache
def _step_and_epoch(settings: Settings, level: str, ranks: int) -> tuple[float, int]:
    """The FLOPs of a step of the level, a mean over batches, and the steps of an epoch."""
    task = build(settings)
    count = len(task.batches)
    flops = [task.flops(level, task.batches.make(0, k)) for k in range(0, count, max(1, count // _COUNTED_BATCHES))]
    return fmean(flops) * settings.accumulate * ranks, len(BatchPlan(task.batches, settings.accumulate, 0, ranks))


def summarize(pairs: Sequence[Pair]) -> list[Row]:
    """A row for each level, trained jointly and alone, and rows for the cost of all levels together."""
    rows = []
    for level in pairs[0].joint["levels"]:
        rows += [_row([pair.joint for pair in pairs], level, "jointly")]
        rows += [_row([pair.alone[level] for pair in pairs], level, "alone")]
    ordinary = [
        _row([pair.ordinary[level, kind] for pair in pairs], level, matched.NAMES[kind], FULL)
        for level, kind in pairs[0].ordinary
    ]
    together = fmean(pair.joint["seconds"] for pair in pairs)
    separately = sum(row.seconds or 0.0 for row in rows)
    return [*rows, *ordinary, _total(rows, "jointly", together), _total(rows, "alone", separately)]


def _row(summaries: Sequence[Summary], level: str, trained: str, name: str | None = None) -> Row:
    """The means over runs; `name` is that of the level in the run, if it is another."""
    own = [summary["levels"][name or level] for summary in summaries]
    scores = tuple(row["test"][summary["score"]] for row, summary in zip(own, summaries, strict=True))
    seconds = None if trained == "jointly" else fmean(summary["seconds"] for summary in summaries)
    updates, flops, latency = (fmean(row[name] for row in own) for name in ("updates", "flops", "latency"))
    return Row(level, trained, scores, updates, flops, seconds, own[0]["parameters"], latency)


def _total(rows: Sequence[Row], trained: str, seconds: float) -> Row:
    own = [row for row in rows if row.trained == trained]
    return Row("all", trained, (), sum(row.updates for row in own), sum(row.flops for row in own), seconds)


def to_table(
    rows: Sequence[Row], pairs: Sequence[Pair], budget: str, sizes: matched.Sizes = MappingProxyType({})
) -> Table:
    first, seeds = pairs[0].joint, ", ".join(str(pair.seed) for pair in pairs)
    means = f"; means ± deviations of {len(pairs)} runs" if len(pairs) > 1 else ""
    scores = f"{first['score']} on the test data, seed{'s' if len(pairs) > 1 else ''} {seeds}{means}."
    return Table(
        title=f"{first['recipe']}: jointly and alone; {_BUDGETS[budget]}",
        head=("level", "trained", first["score"], "updates", "training FLOPs", "time", "parameters", "ms"),
        rows=tuple(_cells(row) for row in rows),
        words=2,
        note=f"{scores} {differences(rows)} This answers: {QUESTIONS[budget]}{matched.describe(sizes)}",
    )


def differences(rows: Sequence[Row]) -> str:
    """A sentence with the mean difference in score between joint and separate training, paired by seed, by level."""
    by_level = {(row.level, row.trained): row.scores for row in rows if row.scores}
    levels = dict.fromkeys(level for level, _ in by_level)
    pairs = [(level, zip(by_level[level, "jointly"], by_level[level, "alone"], strict=True)) for level in levels]
    each = [f"{level} {paired.difference([joint - alone for joint, alone in scores])}" for level, scores in pairs]
    return f"Jointly less alone: {'; '.join(each)}."


def _cells(row: Row) -> tuple[str, ...]:
    mean = f"{fmean(row.scores):.4g}" if row.scores else ""
    deviation = f" ± {stdev(row.scores):.2g}" if len(row.scores) > 1 else ""
    seconds = "" if row.seconds is None else f"{row.seconds:,.0f} s"
    parameters = "" if row.parameters is None else f"{row.parameters:,}"
    latency = "" if row.latency is None else f"{1e3 * row.latency:.3g}"
    counts = (f"{row.updates:,.0f}", f"{row.flops:.3g}", seconds, parameters, latency)
    return row.level, row.trained, mean + deviation, *counts


def to_json(rows: Sequence[Row], pairs: Sequence[Pair], budget: str) -> dict[str, Any]:
    first, seeds = pairs[0].joint, [pair.seed for pair in pairs]
    described = {"recipe": first["recipe"], "budget": budget, "score": first["score"], "seeds": seeds}
    return {**described, "rows": [asdict(row) for row in rows]}
