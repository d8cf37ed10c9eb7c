"""The cost of the training loop relative to a bare loop, of the input pipeline, and of starting a command."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, final

import torch
from rich.console import Console
from torch import nn

from benchmarks.figures import Figure
from benchmarks.harness import Times, Track, estimate
from partialsgd._util.malloc import keep_freed_memory
from partialsgd.lab.recipes import build
from partialsgd.lab.recipes.translation.settings import PRESETS
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import launch, loop
from partialsgd.lab.training.method_text import parse_method
from partialsgd.lab.training.settings import Settings
from partialsgd.lab.training.task import Batch, Task

SUMMARY = "training by the recipes ÷ a bare loop, the input pipeline's share, and the time to the first step"

SLOWER = 1 / 0.97
"""Seconds of our step ÷ the bare loop's, for 0.97 of its throughput."""


def measure(track: Track) -> list[Figure]:
    torch.set_num_threads(track.threads)
    laptop = replace(PRESETS["laptop"], nest="none", method="plain", threads=track.threads, size=4000)
    iwslt14 = replace(
        PRESETS["iwslt14"],
        preset="laptop",
        nest="none",
        method="plain",
        threads=track.threads,
        size=4000,
        max_tokens=1000,
    )
    return [
        *_throughput(track, "laptop preset", laptop, repeat=5),
        *_throughput(track, "iwslt14 preset, 1,000 tokens a batch", iwslt14, repeat=1),
        *_commands(track),
    ]


def _throughput(track: Track, name: str, settings: Settings, repeat: int) -> list[Figure]:
    """Step by step: our loop asks for the learning rate once a step, and there the bare loop takes its step.

    Both train the same model with the same batches; the bare loop is handed its batch.
    """
    keep_freed_memory()
    steps = (track.warm_up + track.rounds) * repeat
    ours, theirs = build(settings), build(settings)
    watched = Watched(ours, Bare(theirs))
    with tempfile.TemporaryDirectory() as folder:
        run = Run.new(replace(settings, out=f"{folder}/run", max_steps=steps + 1, checkpoint_every=10**9))
        here = launch.make_accelerator(settings, run.path)
        method = parse_method(settings.method)
        loop.fit(run, run.settings, watched, method, here, Console(quiet=True))
    times = watched.times(track, repeat)
    what = f"training by the recipe ÷ a bare loop, {name}"
    return [
        Figure(what, times.ratio("ours", "bare"), SLOWER, medians=times.medians("ours", "bare")),
        Figure(
            f"the input pipeline's share of a step, {name}", times.ratio("input", "ours"), 0.02, medians=times.medians()
        ),
    ]


@final
class Bare:
    """The loop that a person would write: forward, loss, backward, step."""

    def __init__(self, task: Task) -> None:
        self._model, self._optimizer = task.network.model.train(), task.optimizers[0]
        self._largest = self._optimizer.param_groups[0]["lr"]

    def step(self, batch: Batch, rate: float) -> float:
        start = perf_counter()
        self._optimizer.param_groups[0]["lr"] = rate * self._largest
        self._optimizer.zero_grad()
        logits = self._model(**{name: value for name, value in batch.items() if name != "labels"}).logits
        labels = batch["labels"].flatten()
        nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100, label_smoothing=0.1).backward()
        self._optimizer.step()
        return perf_counter() - start


@final
class Watched:
    """A task that lets the bare loop take its step between two of ours, on the batch that is ours next."""

    def __init__(self, task: Task, bare: Bare) -> None:
        self._task, self._bare, self._made = task, bare, 0.0
        self._next: Batch = None
        self._since: float | None = None
        self.batches = self
        self.seconds: dict[str, list[float]] = {"ours": [], "bare": [], "input": []}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def __len__(self) -> int:
        return len(self._task.batches)

    def units(self, epoch: int, index: int) -> int:
        return self._task.batches.units(epoch, index)

    def make(self, epoch: int, index: int) -> Batch:
        start = perf_counter()
        self._next = self._task.batches.make(epoch, index)
        self._made = perf_counter() - start
        return self._next

    def rate(self, t: int, total: int) -> float:
        """Our loop asks once a step: what lies between two questions is ours."""
        if self._since is not None:
            self.seconds["ours"].append(perf_counter() - self._since)
            self.seconds["input"].append(self._made)
        rate = self._task.learning_rate(t, total)
        taken = self._bare.step(self._next, rate)
        if t < total - 1:
            self.seconds["bare"].append(taken)
        self._since = perf_counter()
        return rate

    def times(self, track: Track, repeat: int) -> Times:
        """Medians over `repeat` steps are a round."""

        def rounds(every: list[float]) -> list[float]:
            after = every[track.warm_up * repeat :]
            return [median(after[k * repeat : (k + 1) * repeat]) for k in range(track.rounds)]

        return Times({name: rounds(every) for name, every in self.seconds.items()})


def _commands(track: Track) -> list[Figure]:
    """Seconds of whole commands, written as a share of what they may take."""
    first = [_first_step() for _ in range(5)]
    figures = [Figure("the first training step after its start, ÷ 15 s beyond imports", estimate(first), 1.0)]
    for words in (["--help"], ["methods"]):
        taken = [_seconds([sys.executable, "-m", "partialsgd", *words]) for _ in range(track.rounds)]
        figures.append(Figure(f"partialsgd {' '.join(words)}, ÷ 1 s", estimate(taken), 1.0))
    return figures


def _first_step() -> float:
    imports = _seconds([sys.executable, "-c", "import torch, transformers"])
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/run"
        command = [sys.executable, "-m", "partialsgd", "train", "--out", out]
        start = perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            metrics = Path(out) / "metrics.jsonl"
            while not metrics.exists() or metrics.stat().st_size == 0:
                sleep(0.02)
                if process.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended before its first step")
            taken = perf_counter() - start
            process.kill()
    return (taken - imports) / 15.0


def _seconds(command: Sequence[str]) -> float:
    start = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start
