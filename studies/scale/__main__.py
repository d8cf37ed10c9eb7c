"""`python -m studies.scale [--rounds 5]`: measure links and steps on this machine (it needs root), and store them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

from studies import results
from studies.scale import measure
from studies.scale.page import FILE


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.scale", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="steps of each kind that are timed")
    parser.add_argument("--workers", type=int, nargs="+", default=measure.WORKERS, help="numbers of workers")
    parser.add_argument("--results", type=Path, default=FILE, help="the file that the figures are stored in")
    options = parser.parse_args(arguments)
    about = {"date": date.today().isoformat(), "torch": str(torch.__version__)}
    for record in measure.measure(options.rounds, options.workers):
        results.put(options.results, {**record, **about}, key=["rate", "workers"])
        print(record, file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
