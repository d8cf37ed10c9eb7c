"""What the numbers say in words: how far joint training is ahead or behind, here and in the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import fmean, stdev
from typing import Any

from partialsgd.lab.reproduce.numbers import Found

_STUDENT = {2: 12.71, 3: 4.31, 4: 3.19, 5: 2.78}
"""Standard errors that a mean difference must exceed to be called one, at 5 %, by seeds; beyond these a little less."""
_MANY = 2.58
_OURS = {"jointly": "jointly trained", "alternating": "by alternating training"}
_OTHERS = {
    "alone": "the one trained alone",
    "slimmable": "that of slimmable training",
    "distilled from full": "the one distilled from full",
    "SVD of full at half time": "the one that starts as the SVD of full at half time",
}


def sentences(found: Found) -> list[str]:
    """One for each comparison that the finished runs allow, one for each cost, and what the grid leaves open."""
    return [*_compared(found), *_costs(found), *_edges(found)]


def _compared(found: Found) -> Iterator[str]:
    """The paper's own method beside each other one, for each network of each ratio."""
    for group, network in dict.fromkeys((line["group"], line["network"]) for line in found["lines"]):
        own = [line for line in found["lines"] if (line["group"], line["network"]) == (group, network)]
        for ours in (line for line in own if line["trained"] in _OURS):
            for other in (line for line in own if line["trained"] in _OTHERS):
                said = _apart_in_words(found, ours, other) or _diverged(found, ours, other)
                if said:
                    yield f"r = {group}, {network}: {said}."


def _apart_in_words(found: Found, ours: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    if not set(ours["scores"]) & set(other["scores"]):
        return ""
    apart, doubt = _apart(ours["scores"], other["scores"], found["score"])
    said = f"{_OURS[ours['trained']]} it is {apart} {_OTHERS[other['trained']]}, of as many epochs{doubt}"
    if set(ours["scores"]) & set(other["equal_flops"]):
        apart, doubt = _apart(ours["scores"], other["equal_flops"], found["score"])
        said += f"; {apart} it at equal FLOPs{doubt}"
    if gone := [f"{line['diverged']} {line['trained']}" for line in (ours, other) if line["diverged"]]:
        said += f"; diverged and left out: {', '.join(gone)}"
    if ours["paper"] and other["paper"]:
        said += f" (paper: {_direction(_printed(ours['paper']) - _printed(other['paper']))} at equal epochs)"
    return said


def _diverged(found: Found, ours: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Where no run of one of the two has a score there is nothing to subtract, and much to say."""
    said = []
    for line in (ours, other):
        if line["diverged"] and not line["scores"]:
            said.append(f"{line['trained']}, every run has diverged ({line['diverged']})")
        elif line["scores"]:
            said.append(f"{line['trained']} it reaches {found['score']} {fmean(line['scores'].values()):.2f}")
    return "; ".join(said) if any(line["diverged"] and not line["scores"] for line in (ours, other)) else ""


def _apart(ours: Mapping[str, float], other: Mapping[str, float], score: str) -> tuple[str, str]:
    """How far ahead, seed by seed with those that both have, and what is to be said if that may be chance."""
    differences = [ours[seed] - other[seed] for seed in ours if seed in other]
    seeds, difference = len(differences), fmean(differences)
    if seeds < 2:
        has_more = len(ours) > 1 or len(other) > 1
        return _points(difference, score), ", with the one seed that both have" if has_more else ", by one seed"
    is_clear = abs(difference) > _STUDENT.get(seeds, _MANY) * stdev(differences) / math.sqrt(seeds)
    return _points(difference, score), "" if is_clear else f", which {seeds} seeds cannot tell from chance"


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
                f"{row['label']}: the joint run took {flops:.2f} of the FLOPs of the separate runs together, and "
                f"{seconds:.2f} of their time, each with whatever ran beside it."
            )


def _edges(found: Found) -> Iterator[str]:
    """A best cell with no neighbour beyond it: a better one may lie outside the grid."""
    cells = [row for row in found["grid"] if not row["earlier"]]
    chosen = [row for row in cells if row["chosen"]]
    rates, warm_ups = ({row[key] for row in cells} for key in ("lr", "warm_up"))
    outermost = {min(rates), max(rates)} if len(rates) > 1 else set()
    if rows := [row["row"] for row in chosen if row["lr"] in outermost]:
        told = ", ".join(rows)
        yield f"The chosen learning rate is the outermost of the grid for {told}: better ones may lie beyond."
    if len(warm_ups) > 1 and chosen and all(row["warm_up"] == max(warm_ups) for row in chosen):
        yield f"Every row chose the longest warm-up of the grid, {max(warm_ups)} steps: longer ones may be better."
