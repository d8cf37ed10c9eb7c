"""`python -m studies.deaths [--kills 20]`: kill processes under torchrun and replicas under torchft, and store what
came out. The kills under torchrun are stored launch by launch, and go on where they were stopped."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import torch

from studies import results
from studies.assault.targets import COMMANDS, differences, fingerprint
from studies.deaths import torchft, torchrun
from studies.deaths.page import FILE

_AT_ONCE = 4
"""Kills in one launch; then it may come to its end, and another one begins."""
_REPLICAS = 3


def under_torchrun(folder: Path, kills: int, seed: int, earlier: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """`partialsgd train images` on two ranks. A rank is killed at a moment that is uniform over the life of the ranks,
    and torchrun starts both anew; afterwards the run is compared with one that was left alone. It goes on after the
    launches of an earlier record."""
    command, random = COMMANDS["images"].split(), Random(seed)
    whole = folder / "whole"
    alone = torchrun.launch("partialsgd", [*command, "--out", str(whole)], log=folder / "log", kills=[], random=random)
    if alone.code:
        raise RuntimeError(f"the training that is to be attacked failed: {alone.output[-2000:]}")
    expected = fingerprint(whole)
    done, launches, lost, different = (int(earlier.get(key, 0)) for key in ("kills", "launches", "lost", "different"))
    while done < kills:
        random = Random(f"{seed}, launch {launches}")
        place, launches = folder / f"run{launches}", launches + 1
        moments = [_at(random.uniform(0, alone.life)) for _ in range(min(_AT_ONCE, kills - done))]
        arguments = [*command, "--out", str(place)]
        ended = torchrun.launch("partialsgd", arguments, log=folder / "log", kills=moments, random=random)
        done += ended.kills
        lost += ended.code != 0
        different += ended.code == 0 and bool(differences(place, expected))
        found = {"kills": done, "launches": launches, "lost": lost, "different": different}
        yield {**found, "undisturbed": round(alone.seconds, 1)}


def under_torchft(folder: Path, kills: int, seed: int, earlier: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Three replicas of alternating training. One is killed at a random moment and started again, while the others go
    on; at the end all are compared with each other, and with one process that saw the same batches. It is one
    training, which begins anew."""
    found = torchft.run(folder, _REPLICAS, kills, Random(seed))
    yield {**found, "different": int(not found["equal"]) + int(not found["agree"])}


STUDIES: dict[str, Callable[[Path, int, int, Mapping[str, Any]], Iterator[dict[str, Any]]]] = {
    "torchrun": under_torchrun,
    "torchft": under_torchft,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    failures = 0
    for name in options.only or STUDIES:
        about = {"date": date.today().isoformat(), "torch": str(torch.__version__), "seed": options.seed}
        earlier = unfinished(results.read(options.results), {"under": name, **about}, options.kills)
        began = time.monotonic() - earlier.get("seconds", 0.0)
        with tempfile.TemporaryDirectory() as folder:
            for found in STUDIES[name](Path(folder), options.kills, options.seed, earlier):
                record = {"under": name, **found, **about, "seconds": round(time.monotonic() - began, 1)}
                results.put(options.results, record, key=["under"])  # so far
                print(record, file=sys.stderr, flush=True)
        failures += record["lost"] + record["different"]
    return 1 if failures else 0


def unfinished(records: Sequence[Mapping[str, Any]], about: Mapping[str, Any], kills: int) -> Mapping[str, Any]:
    """The record of the same study that was stopped before so many kills; an empty one if there is none."""
    same = [each for each in records if all(each[key] == about[key] for key in ("under", "torch", "seed"))]
    return next((each for each in same if each["kills"] < kills), {})


def _at(moment: float) -> torchrun.Moment:
    return lambda seconds: seconds >= moment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.deaths", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills under each of the two")
    parser.add_argument("--only", nargs="+", choices=STUDIES, help="only these")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random moments")
    parser.add_argument("--results", type=Path, default=FILE, help="the file that the figures are stored in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
