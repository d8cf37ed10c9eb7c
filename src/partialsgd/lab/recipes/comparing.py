"""Is it worth it? All levels trained at once, against each level trained alone."""

from __future__ import annotations

import ast
import math
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.console import Console

from partialsgd.export.files import write_json
from partialsgd.lab.recipes import build, comparison
from partialsgd.lab.recipes.comparison import Pair, Summary
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import launch, loop
from partialsgd.lab.training.batch_plan import BatchPlan
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings, require_at_least

Budget: TypeAlias = Literal["epochs", "updates", "flops"]

_CHOOSERS = ("alternating", "slimmable", "sandwich")
"""The methods that train several levels."""

_COUNTED = 64  # batches over which the FLOPs of a step are averaged


def compare(settings: Settings, *, budget: Budget = "epochs", seeds: int = 1) -> list[comparison.Row]:
    """Train jointly and alone, `seeds` times each, in the directory `settings.out`; runs that are there are kept.

    Jointly: the settings as they are. A smaller level alone: the same family from the same start, of which nothing
    outside the level moves. The whole network alone: not nested, with the start of an ordinary network.
    """
    require_at_least("seeds", seeds, 1)
    if getattr(settings, "nest", "") == "none":
        raise WrongCall("--nest none has one level, and nothing to compare it with; choose another")
    if settings.probe is not None:
        raise WrongCall("--probe is for one training: the whole network alone has no core to measure; leave it out")
    launch.processes()
    default = f"runs/compare-{settings.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
    out = Path(launch.from_main(settings.out or default))
    settings = loop.pin(settings)
    _instead(settings.method, "plain")  # refused now, not after the joint training
    launch.console().print(f"The runs are made in {out}; with --out {out} the same call goes on there", highlight=False)
    pairs = [_pair(replace(settings, seed=settings.seed + k), budget, out) for k in range(seeds)]
    rows = comparison.rows(pairs)
    if launch.processes().is_main_process:
        shown = comparison.as_markdown(rows, pairs, budget)
        out.joinpath("compare.md").write_text(shown, encoding="utf-8")
        write_json(out / "compare.json", comparison.as_json(rows, pairs, budget))
        Console().print(comparison.table(rows, pairs, budget))
        launch.console().print(f"The runs and the table are in {out}", highlight=False)
    return rows


def _pair(settings: Settings, budget: Budget, out: Path) -> Pair:
    """One seed."""
    joint = _summary(settings, out / f"joint-seed{settings.seed}")
    levels = list(joint["levels"])
    alone: dict[str, Summary] = {}
    for level in levels:
        wanted = within(alone_at(settings, level, levels), level, joint, budget)
        alone[level] = _summary(wanted, out / f"{level.replace('/', '_')}-alone-seed{settings.seed}")
    return Pair(settings.seed, joint, alone)


def alone_at(settings: Settings, level: str, levels: list[str]) -> Settings:
    """The settings with which a level is trained by itself; what the method does beside choosing levels stays."""
    if level == levels[-1] and hasattr(settings, "nest"):
        changes: Any = {"nest": "none", "method": _instead(settings.method, "plain")}
        return replace(settings, **changes)
    return replace(settings, method=_instead(settings.method, f"only({level!r})"))


def _instead(method: str, alone: str) -> str:
    """The method's text with another one in the place of that which chooses the levels."""
    tree = ast.parse(method.strip(), mode="eval").body
    if _name(tree) in _CHOOSERS:
        return alone
    if isinstance(tree, ast.Call) and _name(tree) == "compose" and len(tree.args) == 2:
        first, second = tree.args
        if _name(first) in _CHOOSERS:
            return ast.unparse(second) if alone == "plain" else f"compose({alone}, {ast.unparse(second)})"
    raise WrongCall(
        f"--method {method}: it cannot be told what a level alone is to be trained with; give one of "
        f"{', '.join(_CHOOSERS)}, or compose(one of them, another method), which both then have"
    )


def _name(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    return called.id if isinstance(called, ast.Name) else ""


def within(settings: Settings, level: str, joint: Summary, budget: Budget) -> Settings:
    """The settings with as many steps as the budget gives a level alone."""
    if budget == "epochs":
        return settings
    if budget == "updates":
        return replace(settings, max_steps=max(1, joint["levels"][level]["updates"]))
    total = sum(row["flops"] for row in joint["levels"].values())
    per_step, per_epoch = _work(settings, level)
    steps = max(1, round(total / per_step))
    return replace(settings, max_steps=steps, epochs=math.ceil(steps / per_epoch))


def _work(settings: Settings, level: str) -> tuple[float, int]:
    """FLOPs of a step at a level, on average over some batches, and the steps of an epoch."""
    task = build(settings)
    ranks = launch.processes().num_processes
    count = len(task.batches)
    chosen = range(0, count, max(1, count // _COUNTED))
    found = [task.flops(level, task.batches.make(0, index)) for index in chosen]
    plan = BatchPlan(task.batches, settings.accumulate, 0, ranks)
    return sum(found) / len(found) * settings.accumulate * ranks, len(plan)


def _summary(settings: Settings, path: Path) -> Summary:
    """Of the run at a path, which is trained, or goes on, if it has not ended yet."""
    launch.console().rule(f"{path.name}", align="left")
    run = Run(path)
    if not (path / "config.json").exists():
        shutil.rmtree(path / ".being_written", ignore_errors=True)  # a kill before the first file
        loop.train(replace(settings, out=str(path)), show=False)
    elif _without_place(run.settings) != _without_place(settings):
        raise FileExistsError(f"{path} is a run with other settings; give another --out, or remove it")
    elif run.summary is None:
        loop.resume(run, show=False)
    summary = run.summary
    assert summary is not None  # the end of a run is its summary
    return summary


def _without_place(settings: Settings) -> Settings:
    """Where a run is made does not say which one it is."""
    return replace(settings, out=None, threads=None)
