"""The table at the top of docs/which_size.md: what to do in each case, and what the stored runs let one expect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

from partialsgd.lab.reproduce.paired import Difference
from studies import pages, which_size
from studies.results import RESULTS
from studies.trained_start import page as trained_start
from studies.trained_start.train import FILE
from studies.trained_start.ways import APART, JOINTLY, LOW_RANK, OWN_HALF, WIDTH
from studies.worth.page import plain_pairs

HEAD = ("you have, and want both networks", "do", "steps", "learning rate", "core, less alone", "full, less alone")


class Trained(NamedTuple):
    """Runs of `studies.trained_start`."""

    axis: str
    length: int
    way: str


@final
@dataclass(frozen=True)
class Advice:
    """One case."""

    case: str
    do: str
    steps: str
    runs: tuple[str, str] | Trained
    """The stored runs that show what to expect: a plan and a ratio of `studies.worth`, or runs from a trained start."""
    unit: str


_TWICE, _SAME = "twice those of one network", "the full network's"
ADVICE = (
    Advice(
        "a Transformer, not trained yet",
        '`LowRank(1/4, init="zero")`, `alternating()`',
        _TWICE,
        ("multi30k-rank", "1/4"),
        "BLEU",
    ),
    Advice("the same, by width", "`Width(1/4)`, `alternating()`", _TWICE, ("multi30k-width", "1/4"), "BLEU"),
    Advice(
        "the same, the smallest core",
        '`LowRank(1/32, init="zero")`, `alternating()`',
        _TWICE,
        ("multi30k-rank", "1/32"),
        "BLEU",
    ),
    Advice(
        "the same, twice the time",
        "one run or two, whichever is easier",
        _TWICE,
        ("multi30k-longer", "1/32"),
        "BLEU",
    ),
    Advice(
        "a convolutional network, not trained yet",
        "`Width(1/2)`, `alternating()`",
        _TWICE,
        ("cifar10-width", "1/2"),
        "points",
    ),
    Advice(
        "a trained network, by width",
        '`Width(1/4, order="norm")`, `alternating()`',
        "800",
        Trained(WIDTH, 400, JOINTLY),
        "bits",
    ),
    Advice(
        "a trained network, by rank",
        '`LowRank(1/8, full="own")`, `alternating(lr={"full": 0.5})`',
        "800",
        Trained(LOW_RANK, 400, OWN_HALF),
        "bits",
    ),
    Advice(
        "a trained network that must lose nothing, by rank",
        '`LowRank(1/8, full="own")`, then `.part_ways()`, `alternating(distill="cached")`',
        "200",
        Trained(LOW_RANK, 100, APART),
        "bits",
    ),
    Advice("the same, by width", 'the same with `Width(1/4, order="norm")`', "200", Trained(WIDTH, 100, APART), "bits"),
)


def sections(folder: Path = RESULTS) -> str:
    """The table of cases whose runs are stored, and below it those in which a joint run is the wrong choice."""
    return f"{pages.table(HEAD, list(_rows(folder)), words=4)}\n\n{when_not()}"


def _rows(folder: Path) -> Iterator[tuple[str, ...]]:
    scratch: dict[tuple[str, ...], dict[str, Difference]] = {}
    for pair in plain_pairs(folder):
        scratch.setdefault((pair.plan.name, pair.ratio), {})[pair.level] = pair.difference
    trained = trained_start.shown(folder / FILE.name)
    for advice in ADVICE:
        if isinstance(advice.runs, Trained):
            found, rate = trained_start.differences(trained, *advice.runs), trained_start.rates(trained, *advice.runs)
        else:
            found, rate = scratch.get(advice.runs, {}), _SAME
        if len(found) == 2:
            expected = (f"{found[level]} {advice.unit}" for level in ("core", "full"))
            yield advice.case, advice.do, advice.steps, rate, *expected


def when_not() -> str:
    """In how many of the stored reproductions the network alone is ahead, for the other two budgets."""
    half, of_half = which_size.alone_is_ahead("scores")
    one, of_one = which_size.alone_is_ahead("equal_flops")
    return (
        "Every difference is at the same total FLOPs; of BLEU and points more is better, of bits less. Train the "
        "networks separately if you can pay for half only: with as many epochs jointly as for each alone, the network "
        f"alone is ahead in {half} of {of_half} cases of the paper's Tables 1a and 2a. If you need one network only, "
        f"train it alone: with all FLOPs of the joint run it is ahead in {one} of {of_one}."
    )
