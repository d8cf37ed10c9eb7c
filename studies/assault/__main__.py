"""`python -m studies.assault [--minutes 20]`: attack trainings, files and steps, and store which guarantees held.

It is a study, not a benchmark: it measures no speed, its figures are stored beside the other results, and
`python -m studies.write` writes them into docs/reliability.md. It is not a test either: it is random and takes minutes;
`tests/studies/test_assault.py` runs each attack for a moment.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from rich.console import Console

from studies import results
from studies.assault import damage, interrupts, kills
from studies.assault.page import FILE
from studies.assault.processes import ForkServer
from studies.assault.targets import Arena, Tally

_EXAMPLES = 12


class Attack(NamedTuple):
    run: Callable[[Arena, Tally], Iterator[None]]
    share: float
    """Its share of the time, if it does not end before."""


ATTACKS = {
    "Ctrl-C at a line of a step": Attack(interrupts.ctrl_c, 0.12),
    "Ctrl-C at a line of torch in a step": Attack(interrupts.ctrl_c_in_torch, 0.04),
    "kill at an operation of a save": Attack(kills.kills_in_a_save, 0.06),
    "kill at an operation of a run's end": Attack(kills.kills_in_a_life, 0.2),
    "link at a path that is written": Attack(damage.symbolic_links, 0.06),
    "full disk": Attack(kills.full_disk, 0.06),
    "hostile setting": Attack(damage.hostile_settings, 0.14),
    "hostile model file": Attack(damage.hostile_models, 0.04),
    "damaged file": Attack(damage.mutated_files, 0.14),
    "damaged file, only read": Attack(damage.mutated_reads, 0.06),
    "kill at a random moment": Attack(kills.random_kills, 0.12),
}
"""The attacks in their order; those that never end come last, and have the time that the others leave."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.getLogger("partialsgd").setLevel(logging.ERROR)  # of every checkpoint that a kill left half written
    console, began = Console(stderr=True), time.monotonic()
    chosen = {name: each for name, each in ATTACKS.items() if not options.only or name in options.only}
    failures = 0
    with tempfile.TemporaryDirectory() as folder, ForkServer() as server:
        left = sum(attack.share for attack in chosen.values())
        for name, attack in chosen.items():
            remaining = began + 60 * options.minutes - time.monotonic()
            seconds = max(1.0, remaining * attack.share / left)
            left -= attack.share
            record = _attack(name, attack, Arena(server, Path(folder), Random(options.seed)), seconds)
            results.put(options.results, record, key=["attack"])
            failures += record["failures"]
            outcomes = "; ".join(f"{count:,} {outcome}" for outcome, count in record["outcomes"].items())
            console.print(f"{name}: {outcomes}", highlight=False, markup=False, soft_wrap=True)
            for example in record["examples"]:
                console.print(f"  {example}", highlight=False, markup=False, soft_wrap=True)
    return 1 if failures else 0


def _attack(name: str, attack: Attack, arena: Arena, seconds: float) -> results.Record:
    """Attempts until they end or the time is over."""
    tally, began, is_whole = Tally(), time.monotonic(), False
    attempts = attack.run(arena, tally)
    while time.monotonic() - began < seconds and not is_whole:
        is_whole = next(attempts, "end") == "end"
    return {
        "attack": name,
        "what": (attack.run.__doc__ or "").splitlines()[0],
        "attempts": tally.outcomes.total(),
        "is_whole": is_whole,
        "outcomes": dict(tally.outcomes.most_common()),
        "failures": len(tally.failures),
        "examples": list(dict.fromkeys(tally.failures))[:_EXAMPLES],
        "seconds": round(time.monotonic() - began, 1),
        "date": date.today().isoformat(),
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.assault", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="time for all attacks together")
    parser.add_argument("--only", nargs="+", default=[], choices=ATTACKS, metavar="ATTACK", help="only these attacks")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random choices")
    parser.add_argument("--results", type=Path, default=FILE, help="the file that the figures are stored in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
