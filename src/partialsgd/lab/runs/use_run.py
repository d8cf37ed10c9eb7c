"""What can be done with a run: score its levels, translate with them, see what they cost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.console import Console
from rich.table import Table
from torch import Tensor

from partialsgd.lab.recipes import build
from partialsgd.lab.runs import final_scores as closing
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.launch import processes
from partialsgd.lab.training.settings import Settings
from partialsgd.lab.training.task import Numbers, Split, Task
from partialsgd.nested import Nested
from partialsgd.nested.example_inputs import as_call

Checkpoint: TypeAlias = Literal["best", "last"]

_BYTES = 1 << 14  # of text that is translated together, at most


def open_family(run: Run, checkpoint: Checkpoint = "best") -> tuple[Task, Nested]:
    """The task that the run's settings describe, and its network with the weights of a checkpoint."""
    place = weights(run, checkpoint)
    task = build(_by_itself(run.settings))
    run.require_data(task.digest())
    closing.fill(task.network, place)
    task.network.to(processes().device).eval()
    return task, task.network


def _by_itself(settings: Settings) -> Settings:
    """The runs that a training started with or learnt from have nothing to say about what came of it."""
    changes: Any = {name: None for name in ("start", "teacher") if hasattr(settings, name)}
    return replace(settings, **changes)


def weights(run: Run, checkpoint: Checkpoint) -> Path:
    """The directory of a checkpoint."""
    place = run.best if checkpoint == "best" else run.last
    if not place.is_dir():
        raise FileNotFoundError(
            f"{run.path} has no weights yet, for they are written after the first evaluation: "
            f"partialsgd resume {run.path} goes on with the training"
        )
    return place


def require_level(network: Nested, level: str) -> None:
    if level not in network.levels:
        raise WrongCall(f"--level: there is no level {level!r} in this run; there are {', '.join(network.levels)}")


def evaluate(
    run: Run, levels: Sequence[str] = (), *, split: Split = "test", checkpoint: Checkpoint = "best"
) -> dict[str, Numbers]:
    """The numbers of each level on a split, as they are published."""
    task, network = open_family(run, checkpoint)
    for level in levels:
        require_level(network, level)
    return {level: task.scores(level, split) for level in network.levels if level in levels or not levels}


def scores_table(found: Mapping[str, Numbers]) -> Table:
    """A row for each number, a column for each level."""
    shown = Table("")
    for level in found:
        shown.add_column(level, justify="right")
    for name in next(iter(found.values())):
        shown.add_row(name, *(f"{numbers[name]:.4g}" for numbers in found.values()))
    return shown


def translate(
    run: Run, chunks: Iterable[Sequence[str]], level: str, *, beam: int | None = None, checkpoint: Checkpoint = "best"
) -> Iterator[str]:
    """Each line in the other language, in order; the lines of a chunk are translated together."""
    if run.settings.recipe != "translation":
        raise WrongCall(f"{run.path} is a run of the recipe {run.settings.recipe}, and only translation translates")
    if beam is not None and beam < 1:
        raise WrongCall(f"--beam must be at least 1, got {beam}")
    from partialsgd.lab.recipes.translation.scores import translate as translated

    network, tokenizer, settings = _translator(run, checkpoint)
    require_level(network, level)
    with network.at(level):
        for chunk in chunks:
            yield from translated(network.model, tokenizer, chunk, beam=beam or settings.beam, lenpen=settings.lenpen)


def signature(run: Run) -> str | None:
    """How the BLEU of a translation was computed."""
    settings: Any = run.settings
    if settings.recipe != "translation":
        return None
    from partialsgd.lab.recipes.translation import scores

    return f"BLEU: {scores.signature(settings.target)}"


def _translator(run: Run, checkpoint: Checkpoint) -> tuple[Nested, Any, Any]:
    """The family and the tokenizer that the run keeps: the corpus is not read."""
    from partialsgd.lab.recipes.translation import earlier

    network, tokenizer = earlier.family(run, weights(run, checkpoint))
    return network.to(processes().device).eval(), tokenizer, run.settings


def arriving(handle: int) -> Iterator[list[str]]:
    """The lines of a file, a pipe or a terminal: as many at a time as are there, so that each is answered at once."""
    rest = b""
    while data := os.read(handle, _BYTES):
        *whole, rest = (rest + data).split(b"\n")
        if whole:
            yield [line.decode().rstrip("\r") for line in whole]
    if rest:
        yield [rest.decode()]


def profile(run: Run, console: Console) -> None:
    """Parameters, FLOPs in both conventions, and the latency of each level by itself."""
    task, network = open_family(run)
    example = closing.example_of(task)
    shown = Table()
    for name in ("level", "parameters", "share", "forward", "training", "paper", "latency"):
        shown.add_column(name, justify="left" if name == "level" else "right")
    for row in network.profile(example).rows:
        latency = task.seconds(network.extract(row.level, example=example).eval())
        counts = (f"{count:.3g}" for count in (row.forward, row.training, row.multiply_adds))
        shown.add_row(row.level, f"{row.parameters:,}", f"{row.share:.1%}", *counts, f"{1e3 * latency:.3g} ms")
    console.print(shown)
    console.print(f"forward, training: FLOPs of a pass over {_shapes(example)}, as torch counts them", highlight=False)
    console.print("paper: multiply-adds of the forward pass, as the paper counts them", highlight=False)
    console.print("latency: of one example, by the level taken out", highlight=False)


def _shapes(example: Any) -> str:
    args, kwargs = as_call(example)
    named = [("an input of", value) for value in args] + list(kwargs.items())
    return ", ".join(f"{name} {'×'.join(map(str, x.shape))}" for name, x in named if isinstance(x, Tensor))
