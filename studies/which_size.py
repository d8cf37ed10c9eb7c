"""The generated blocks of docs/which_size.md, from the stored reproductions of Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import fmean
from typing import Literal, TypeAlias

from partialsgd.lab.reproduce import numbers, tables
from partialsgd.lab.reproduce.numbers import Numbers
from studies import pages, reproductions
from studies.reproductions import About

Stored: TypeAlias = list[tuple[About, Numbers]]


@cache
def translations() -> Stored:
    """The stored reproductions in which joint and separate training are compared at equal totals, Table 1a first."""
    found = []
    for file, about in reproductions.stored().items():
        with reproductions.unpacked(file) as (plan, folder):
            collected = numbers.collect(plan, folder)
        if collected["sums"]:
            found.append((about, collected))
    return found


def equal_totals() -> str:
    """Every comparison at the same total FLOPs."""
    head = ("data and axis", "r", "network", "seeds", "alone", "jointly", "jointly less alone", "loss, less alone")
    rows = [
        (
            f"{_data(about)}, {_axis(collected)}",
            row["label"].removeprefix("r = "),
            row["level"],
            str(len(row["alone_scores"])),
            *(tables.spread(row[f"{trained}_scores"].values()) for trained in ("alone", "jointly")),
            *(str(tables.paired_difference(row, name)) for name in ("scores", "losses")),
        )
        for about, collected in translations()
        for row in collected["sums"]
    ]
    lower = sum(tables.paired_difference(row, "losses").mean < 0 for _, each in translations() for row in each["sums"])
    return f"{pages.table(head, rows)}\n\nThe joint run has the lower validation loss in {lower} of {len(rows)} rows."


def sizes() -> str:
    """Return the costs and scores of each ratio in the joint run."""
    head = ("data and axis", "network", "parameters", "test BLEU jointly", "test BLEU alone, as many epochs")
    return pages.table(head, list(_sizes()))


def _sizes() -> Iterator[tuple[str, ...]]:
    for (data, ratio, network), lines in _lines_by_network():
        if "jointly" in lines and lines["jointly"]["scores"]:
            scores = (tables.spread(lines[trained]["scores"].values()) for trained in ("jointly", "alone"))
            yield data, f"{network}, r = {ratio}", f"{lines['jointly']['parameters']:,.0f}", *scores


def _lines_by_network() -> Iterator[tuple[tuple[str, str, str], dict[str, Numbers]]]:
    """The lines of each network by how it was trained; the network is named by data, ratio and level."""
    for about, collected in translations():
        by_network: dict[tuple[str, str, str], dict[str, Numbers]] = {}
        for line in collected["lines"]:
            name = (f"{_data(about)}, {_axis(collected)}", line["group"], line["network"])
            by_network.setdefault(name, {})[line["trained"]] = line
        yield from by_network.items()


def alone_is_ahead(budget: Literal["scores", "equal_flops"]) -> tuple[int, int]:
    """In how many comparisons of the mean score, over common seeds, the network alone is ahead; and of how many.

    "scores": with as many epochs as the joint run. "equal_flops": with all of its FLOPs.
    """
    ahead = []
    for _, lines in _lines_by_network():
        alone, jointly = lines.get("alone", {}).get(budget, {}), lines.get("jointly", {}).get("scores", {})
        if common := alone.keys() & jointly.keys():
            ahead.append(fmean(alone[seed] for seed in common) > fmean(jointly[seed] for seed in common))
    return sum(ahead), len(ahead)


def rates() -> str:
    """The learning rate that each row of the tables uses, chosen by validation."""
    head = ("data and axis", "row", "learning rate", "warm-up")
    rows = []
    for about, collected in translations():
        shown = [row for row in collected["grid"] if row["chosen"]]
        better = {row["row"]: row for row in collected["other_cells"] if row["shown"]}
        for row in shown:
            cell = better.get(row["row"], row)
            rows.append((f"{_data(about)}, {_axis(collected)}", row["row"], f"{cell['lr']:g}", str(cell["warm_up"])))
    return pages.table(head, rows)


def _data(about: About) -> str:
    return str(about["says"]).partition(": ")[2]


def _axis(collected: Numbers) -> str:
    return "rank" if collected["experiment"].startswith("table1") else "width"
