"""The command `partialsgd translate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

if TYPE_CHECKING:
    from partialsgd.lab.runs.run import Run

_BYTES = 1 << 14  # the most text that is translated in one batch


@final
@dataclass(frozen=True, kw_only=True)
class Translate:
    """Translate the lines of the standard input with one level of a run.

    $ partialsgd translate runs/r < text.en > text.de
    $ echo "three days" | partialsgd translate runs/r --level core
    """

    run: Path
    """The run directory."""
    level: str = "full"
    """The level that translates."""
    beam: int | None = None
    """Hypotheses of the beam search; by default the number in the run's settings."""
    checkpoint: Literal["best", "last"] = "best"
    """The weights that were best on the validation data, or the last ones."""

    def __call__(self) -> None:
        from partialsgd.lab.runs.run import Run

        if isinstance(sys.stdout, TextIOWrapper):  # a replacement for it may have no encoding
            sys.stdout.reconfigure(encoding="utf-8")
        try:
            for line in translate_lines(self, Run.open(self.run), read_available_lines(sys.stdin.fileno())):
                print(line, flush=True)
        except UnicodeDecodeError as error:
            raise ValueError(f"the standard input is not UTF-8: {error}") from error


COMMANDS = {"translate": Translate}


def translate_lines(options: Translate, run: Run, chunks: Iterable[Sequence[str]]) -> Iterator[str]:
    """Translate lines in order; those of a chunk are translated together. The corpus is not read."""
    from partialsgd.lab.recipes.translation import model, scores
    from partialsgd.lab.runs import use_run
    from partialsgd.lab.training.errors import WrongCall
    from partialsgd.lab.training.launch import processes

    settings: Any = run.settings
    if settings.recipe != "translation":
        raise WrongCall(f"{run.path} is a run of the recipe {settings.recipe}; only runs of translation can translate")
    if options.beam is not None and options.beam < 1:
        raise WrongCall(f"--beam must be at least 1, got {options.beam}")
    network, tokenizer = model.load_model(run, use_run.weights(run, options.checkpoint))
    network.to(processes().device).eval()
    use_run.require_level(network, options.level)
    search = {"beam": options.beam or settings.beam, "lenpen": settings.lenpen}
    with network.at(options.level):
        for chunk in chunks:
            yield from scores.translate(network.model, tokenizer, chunk, **search)


def read_available_lines(descriptor: int) -> Iterator[list[str]]:
    """Read a file, a pipe or a terminal: as many lines at a time as are available, so that each is answered at once."""
    rest = b""
    while data := os.read(descriptor, _BYTES):
        *complete, rest = (rest + data).split(b"\n")
        if complete:
            yield [line.decode().rstrip("\r") for line in complete]
    if rest:
        yield [rest.decode()]
