"""Small networks beside ordinary ones of the same number of parameters or the same latency.

The embeddings of a small network are most of its parameters, and a core keeps them: another network with as many
parameters, or as fast, may be the better choice, whatever the FLOPs say.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.progress import track

from partialsgd.lab.recipes import build
from partialsgd.lab.reproduce import tables
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.training.settings import Settings
from partialsgd.nested.switch import FULL
from studies import pages, results
from studies.results import RESULTS, Record
from studies.worth.plans import Plan
from studies.worth.regime import Regime

FILE = "worth-latencies.jsonl"
TURNS = 9


def networks(plans: Mapping[str, Plan | Regime]) -> Iterator[tuple[Plan, str]]:
    """The rows that train one translation network alone, each of them once, with the epochs of the first plan."""
    known = [plan for plan in plans.values() if isinstance(plan, Plan) and plan.score == "BLEU"]
    for plan in known:
        if plan.base.epochs == known[0].base.epochs:
            for row in (*(f"core-{ratio.replace('/', '_')}" for ratio in plan.ratios), *plan.rivals):
                yield plan, row
            if plan is known[0]:
                yield plan, FULL


def measure(plans: Mapping[str, Plan | Regime], folder: Path = RESULTS) -> None:
    """Time every network on the same sentences with as many tokens each, in turns, and store the medians."""
    tasks: dict[str, Any] = {}
    for plan, row in networks(plans):
        settings = {each.name: each for each in plan.rows(RunFolder(Path("none"), plan.experiment()))}[row].make
        made = settings(RunFolder(Path("none"), plan.experiment()), 0)
        assert made is not None  # a network alone depends on no other run
        tasks[f"{plan.name}/{row}"] = build(_on_one_thread(made))
    extracted = {name: task.network.extract(FULL, example=task.example()).eval() for name, task in tasks.items()}
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in track(range(TURNS), "latencies"):
        for name, task in tasks.items():
            seconds[name].append(task.latency(extracted[name]))
    about = {"torch": torch.__version__, "python": platform.python_version(), "date": _today()}
    results.write(
        folder / FILE,
        [
            {"network": name, "median": median(each), "least": min(each), "largest": max(each), **about}
            for name, each in seconds.items()
        ],
    )


def _on_one_thread(settings: Settings) -> Settings:
    torch.set_num_threads(1)
    return replace(settings, threads=1)


def _today() -> str:
    return datetime.now(tz=timezone.utc).date().isoformat()


def section(stored: list[tuple[Plan | Regime, RunFolder]], folder: Path = RESULTS) -> str:
    """A row for each network: what it costs, and what it reaches alone and in the joint run."""
    latencies = {record["network"]: record for record in results.read(folder / FILE)}
    runs = {plan.name: (plan, each) for plan, each in stored if isinstance(plan, Plan)}
    rows = []
    for plan, row in networks({name: plan for name, (plan, _) in runs.items()}):
        latency = latencies.get(f"{plan.name}/{row}")
        alone = runs[plan.name][1].scored(row)
        if latency is not None and alone:
            rows.append(_cells(plan, row, runs[plan.name][1], latency))
    head = ("network", "parameters", "milliseconds a sentence", "test BLEU alone", "jointly", "seeds")
    if not rows:
        return "No network is stored yet."
    about = next(iter(latencies.values()))
    return f"{pages.table(head, rows)}\n\nLatencies on one thread, torch {about['torch']}, {about['date']}."


def _cells(plan: Plan, row: str, folder: RunFolder, latency: Record) -> tuple[str, ...]:
    alone = [summary for _, summary in folder.scored(row)]
    level, _, ratio = row.partition("-")
    jointly = folder.scored(f"joint-{ratio}") if ratio else []
    spread = " – ".join(f"{1e3 * latency[name]:.1f}" for name in ("least", "largest"))
    return (
        _says(plan, row),
        f"{alone[0]['levels'][FULL]['parameters']:,}",
        f"{1e3 * latency['median']:.1f} ({spread})",
        tables.spread([summary["levels"][FULL]["test"][plan.score] for summary in alone]),
        tables.spread([summary["levels"][level]["test"][plan.score] for _, summary in jointly]) if jointly else "–",
        str(len(alone)),
    )


def _says(plan: Plan, row: str) -> str:
    if row in plan.rivals:
        return "ordinary, " + ", ".join(f"{name} {value}" for name, value in plan.rivals[row].items())
    if row == FULL:
        return f"the whole network, d_model {getattr(plan.base, 'd_model', '?')}"
    axis = "width" if getattr(plan.base, "nest", "") == "width" else "rank"
    return f"core by {axis}, r = {row.partition('-')[2].replace('_', '/')}"
