"""The table of cases in docs/which_size.md and the README: what to do, and what the stored runs let one expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, final

from partialsgd.lab.reproduce.paired import Difference
from studies import pages, which_size
from studies.results import RESULTS
from studies.trained_start import page as trained_start
from studies.trained_start.train import FILE
from studies.trained_start.ways import APART, JOINTLY, KEPT, LOW_RANK, OWN_HALF, WIDTH
from studies.worth.page import plain_pairs

HEAD = ("you have", "do", "steps", "learning rate", "core better by", "full network better by", "seeds")


class Scratch(NamedTuple):
    """Runs of `studies.worth`."""

    plan: str
    ratio: str


class Trained(NamedTuple):
    """Runs of `studies.trained_start`."""

    axis: str
    length: int
    way: str


@final
@dataclass(frozen=True)
class Advice:
    """One case, and the stored runs that show what to expect of it."""

    case: str
    do: str
    runs: Scratch | Trained
    unit: str = "bits"


ADVICE = (
    Advice(
        "a Transformer, not trained yet",
        '`LowRank(1/4, init="zero")`, `alternating()`',
        Scratch("multi30k-rank", "1/4"),
        "BLEU",
    ),
    Advice("the same, by width", "`Width(1/4)`, `alternating()`", Scratch("multi30k-width", "1/4"), "BLEU"),
    Advice(
        "the same, the smallest core",
        '`LowRank(1/32, init="zero")`, `alternating()`',
        Scratch("multi30k-rank", "1/32"),
        "BLEU",
    ),
    Advice("the same, twice the time", "one run or two", Scratch("multi30k-longer", "1/32"), "BLEU"),
    Advice(
        "a convolutional network, not trained yet",
        "`Width(1/2)`, `alternating()`",
        Scratch("cifar10-width", "1/2"),
        "points",
    ),
    Advice(
        "a trained network, by width",
        '`Width(1/4, order="norm")`, `alternating()`',
        Trained(WIDTH, 400, JOINTLY),
    ),
    Advice(
        "a trained network, by rank",
        '`LowRank(1/8, full="own")`, `alternating(lr={"full": 0.5})`',
        Trained(LOW_RANK, 400, OWN_HALF),
    ),
    Advice(
        "a trained network and little time, by width",
        '`Width(1/4, order="norm")`, `.part_ways()`, `alternating(distill="cached", lr={"full": …})`',
        Trained(WIDTH, 100, APART),
    ),
    Advice(
        "a trained network that is good enough",
        'keep it, and train `nested.extract("core")` alone',
        Trained(WIDTH, 100, KEPT),
    ),
)


def sections(folder: Path = RESULTS) -> str:
    """The table of the cases whose runs are stored, and below it those in which a joint run is the wrong choice."""
    return f"{pages.table(HEAD, list(_rows(folder)), words=4)}\n\n{when_not()}"


def _rows(folder: Path) -> Iterator[tuple[str, ...]]:
    scratch: dict[Scratch, dict[str, Difference]] = {}
    for pair in plain_pairs(folder):
        scratch.setdefault(Scratch(pair.plan.name, pair.ratio), {})[pair.level] = pair.difference
    trained = trained_start.shown(folder / FILE.name)
    for advice in ADVICE:
        if isinstance(advice.runs, Scratch):
            found = scratch.get(advice.runs, {})
        else:  # of losses less is better
            losses = trained_start.differences(trained, *advice.runs)
            found = {level: replace(each, mean=-each.mean) for level, each in losses.items()}
        if len(found) < 2:
            continue
        how = ("twice those of one network", "the full network's")
        if isinstance(advice.runs, Trained):
            how = trained_start.steps_and_rate(trained, *advice.runs)
        yield advice.case, advice.do, *how, *_expected(found, advice.unit)


def _expected(found: Mapping[str, Difference], unit: str) -> tuple[str, ...]:
    by_level = (f"{found[level]} {unit}" for level in ("core", "full"))
    return (*by_level, str(min(each.pairs for each in found.values())))


def when_not() -> str:
    """In how many of the stored reproductions the network alone is ahead, for the other two budgets."""
    half, of_half = which_size.alone_is_ahead("scores")
    one, of_one = which_size.alone_is_ahead("equal_flops")
    return (
        "Measured with small networks on Multi30k (BLEU), a fifth of CIFAR-10 (points of accuracy) and characters of "
        "text (bits each), with the 95 % interval over the seeds. Better than each network alone, for the same total "
        "FLOPs, answers: “I want both networks; one run or two?” Two other questions, from the paper's Tables 1a and "
        "2a. “How much do I lose if I pay for one run in place of two?” With as many epochs jointly as for each "
        f"network alone, the network alone is ahead in {half} of {of_half} cases. “I want one network only.” With all "
        f"FLOPs of the joint run, the network alone is ahead in {one} of {of_one}."
    )
