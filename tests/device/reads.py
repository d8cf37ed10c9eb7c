"""How often a step makes the host wait for the device, for every method and optimizer.

`python -m tests.device.reads` prints the table, with the lines of code that read.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from partialsgd.testing.runs import Run
from tests.device.cases import METHODS, OPTIMIZERS, TRIED, problem_for
from tests.device.limits import FIRST_COUNTED, OPTIONS, STEPS, limit_of
from tests.device.pretended import on_device, watch


@dataclass
class Trained:
    """A training on the device: its tensors at the end, and what each step read."""

    tensors: dict[str, Tensor]
    reads: list[Counter[tuple[str, str]]] = field(default_factory=list)
    late: list[Counter[tuple[str, str]]] = field(default_factory=list)
    uploads: list[Counter[tuple[str, str]]] = field(default_factory=list)

    @property
    def most(self) -> int:
        """The largest number of reads in a step."""
        return max(counter.total() for counter in self.reads[FIRST_COUNTED:])

    @property
    def sites(self) -> str:
        return written(self.reads)


def written(counters: Sequence[Counter[tuple[str, str]]]) -> str:
    """The lines of code, each with its operation and with how often it ran in the step in which it ran most."""
    most: Counter[tuple[str, str]] = Counter()
    for counter in counters[FIRST_COUNTED:]:
        most |= counter
    return ", ".join(f"{site} ({what}{f' × {n}' if n > 1 else ''})" for (what, site), n in sorted(most.items()))


@cache
def trained(case: str, optimizer: str, option: str = "") -> Trained:
    """Train on the device and count. The batch is moved outside the count, by the user's code."""
    options = dict(OPTIONS[option][1]) if option else {}
    meter = options.pop("meter", None)
    problem = on_device(problem_for(case))
    run = Run(problem, OPTIMIZERS[optimizer], METHODS[case], False, meter, options)
    result = Trained({})
    for t in range(STEPS):
        with watch() as traffic:
            run.step(t)
        result.reads.append(_of_library(traffic.reads))
        result.late.append(_of_library(traffic.late))
        result.uploads.append(_of_library(traffic.uploads))
    result.tensors = {name: tensor.cpu() for name, tensor in run.tensors().items()}
    return result


def _of_library(counter: Mapping[tuple[str, str], int]) -> Counter[tuple[str, str]]:
    """Leave out the batches, which the problem itself moves to the device."""
    return Counter({key: count for key, count in counter.items() if not key[1].startswith("testing/")})


def table() -> Iterator[tuple[str, str, int, Trained]]:
    """(method and option, optimizers, limit, training): one row for the optimizers that read at the same lines."""
    optimizers_of = {case: [optimizer for other, optimizer in TRIED if other == case] for case in METHODS}
    rows = [(case, "", case, limit_of(case)) for case in METHODS]
    rows += [(case, option, f"{case}, {option}", limit) for option, (case, _, limit) in OPTIONS.items()]
    for case, option, name, limit in rows:
        by_sites: dict[str, list[str]] = {}
        for optimizer in OPTIMIZERS if option else optimizers_of[case]:
            by_sites.setdefault(trained(case, optimizer, option).sites, []).append(optimizer)
        for optimizers in by_sites.values():
            alike = "every one" if len(optimizers) == len(OPTIMIZERS) else ", ".join(optimizers)
            yield name, alike, limit, trained(case, optimizers[0], option)


def main(arguments: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(prog="python -m tests.device.reads", description=__doc__).parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{'method':<42} {'optimizer':<24} limit reads  where the host reads")
    for name, optimizers, limit, result in table():
        mark = " " if result.most <= limit else "!"
        print(f"{name:<42} {optimizers:<24} {limit:>5} {result.most:>4}{mark}  {result.sites}", flush=True)
        for kind, counters in (("to the host, not waited for", result.late), ("to the device", result.uploads)):
            if sites := written(counters):
                print(f"{'':<80} copies {kind}: {sites}")


if __name__ == "__main__":
    main()
