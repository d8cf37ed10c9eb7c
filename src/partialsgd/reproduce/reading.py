"""What the numbers say in words: how far joint training is ahead or behind, here and in the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, variance
from typing import Any

from partialsgd.reproduce.numbers import Found

_STUDENT = {2: 4.30, 3: 2.78, 4: 2.45, 5: 2.31}
"""Standard errors that a difference must exceed to be called one, at 5 %, by seeds; beyond these a little less."""
_MANY = 2.23


def sentences(found: Found) -> list[str]:
    """One for each comparison that the finished runs allow, one for each cost, and what the grid leaves open."""
    return [*_compared(found), *_costs(found), *_edges(found), *_elsewhere(found)]


def _compared(found: Found) -> Iterator[str]:
    for group in dict.fromkeys(line["group"] for line in found["lines"]):
        for network in dict.fromkeys(line["network"] for line in found["lines"]):
            own = [line for line in found["lines"] if (line["group"], line["network"]) == (group, network)]
            pair = _pair(own)
            if pair is not None:
                yield _sentence(found["score"], group, network, *pair)


def _pair(lines: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The paper's own method and what it compares it with."""
    ours = next((line for line in lines if line["trained"] in ("jointly", "alternating")), None)
    other = next((line for line in lines if line["trained"] in ("alone", "slimmable")), None)
    if ours is None or other is None or not set(ours["scores"]) & set(other["scores"]):
        return None
    return ours, other


def _sentence(score: str, group: str, network: str, ours: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    apart, doubt = _apart(ours["scores"], other["scores"], score)
    trained = {"jointly": "jointly trained"}.get(ours["trained"], f"by {ours['trained']} training")
    beside = {"alone": "the one trained alone"}.get(other["trained"], f"that of {other['trained']} training")
    said = f"r = {group}, {network}: {trained} it is {apart} {beside}, of as many epochs{doubt}"
    if set(ours["scores"]) & set(other["equal_flops"]):
        apart, doubt = _apart(ours["scores"], other["equal_flops"], score)
        said += f"; {apart} it at equal FLOPs{doubt}"
    if gone := [f"{line['diverged']} {line['trained']}" for line in (ours, other) if line["diverged"]]:
        said += f"; diverged and left out: {', '.join(gone)}"
    if ours["paper"] and other["paper"]:
        said += f" (paper: {_direction(_printed(ours['paper']) - _printed(other['paper']))} at equal epochs)"
    return said + "."


def _apart(ours: Mapping[str, float], other: Mapping[str, float], score: str) -> tuple[str, str]:
    """How far ahead with the seeds that both have, and what is to be said if the seeds differ by as much."""
    seeds = [seed for seed in ours if seed in other]
    first, second = [ours[seed] for seed in seeds], [other[seed] for seed in seeds]
    difference = fmean(first) - fmean(second)
    if len(seeds) < 2:
        return _points(difference, score), ", by one seed"
    error = math.sqrt((variance(first) + variance(second)) / len(seeds))
    is_clear = abs(difference) > _STUDENT.get(len(seeds), _MANY) * error
    return _points(difference, score), "" if is_clear else ", no more than the seeds differ"


def _points(difference: float, score: str) -> str:
    unit = score if score == "BLEU" else "points"
    return f"{abs(difference):.2f} {unit} {'ahead of' if difference >= 0 else 'behind'}"


def _direction(difference: float) -> str:
    return f"{abs(difference):.2f} {'ahead' if difference >= 0 else 'behind'}"


def _printed(text: str) -> float:
    return float(text.split(" ")[0])


def _costs(found: Found) -> Iterator[str]:
    for row in found["costs"]:
        if row["alone_flops"]:
            flops, seconds = (row[f"joint_{unit}"] / row[f"alone_{unit}"] for unit in ("flops", "seconds"))
            yield (
                f"{row['label']}: the joint run took {flops:.2f} of the FLOPs and {seconds:.2f} of the time of the "
                "separate runs together."
            )


def _edges(found: Found) -> Iterator[str]:
    """A best cell with no neighbour beyond it: a better one may lie outside the grid."""
    rates = {row["lr"] for row in found["grid"]}
    outermost = {min(rates), max(rates)} if len(rates) > 1 else set()
    rows = [row["row"] for row in found["grid"] if row["chosen"] and row["lr"] in outermost]
    if rows:
        told = ", ".join(rows)
        yield f"The chosen learning rate is the outermost of the grid for {told}: better ones may lie beyond."


def _elsewhere(found: Found) -> Iterator[str]:
    """Whole runs at cells that were not chosen, for better or worse: how much the comparisons owe to the tuning."""
    shown = {(row["row"], row["level"]): row["scores"] for row in found["elsewhere"] if row["chosen"]}
    for row in found["elsewhere"]:
        chosen = shown.get((row["row"], row["level"]), {})
        if row["chosen"] or not set(row["scores"]) & set(chosen):
            continue
        apart, doubt = _apart(row["scores"], chosen, found["score"])
        yield (
            f"{_named(found, row)}: at learning rate {row['lr']:g} and warm-up {row['warm_up']}, which the grid of "
            f"short runs has not chosen, it is {apart} what is shown{doubt}."
        )


def _named(found: Found, row: Mapping[str, Any]) -> str:
    """As the table names it; the name of the row where the table does not have it."""
    lines = [line for line in found["lines"] if line["row"] == row["row"]]
    own = [line for line in lines if line["network"] == row["level"]] or lines  # trained alone, any network is "full"
    names = {f"{line['network']} {line['trained']}": line["group"] for line in own}
    if len(names) != 1:
        return f"{row['row']}, {row['level']}"
    ((name, group),) = names.items()
    return name if len(own) > 1 else f"r = {group}, {name}"
