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
    return [*_compared(found), *_costs(found), *_edges(found)]


def _compared(found: Found) -> Iterator[str]:
    for group in dict.fromkeys(line["group"] for line in found["lines"]):
        for network in dict.fromkeys(line["network"] for line in found["lines"]):
            own = [line for line in found["lines"] if (line["group"], line["network"]) == (group, network)]
            pair = _pair(own)
            if pair is not None:
                yield _sentence(found, group, network, *pair)


def _pair(lines: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The paper's own method and what it compares it with."""
    ours = next((line for line in lines if line["trained"] in ("jointly", "alternating")), None)
    other = next((line for line in lines if line["trained"] in ("alone", "slimmable")), None)
    if ours is None or other is None or not set(ours["scores"]) & set(other["scores"]):
        return None
    return ours, other


def _sentence(found: Found, group: str, network: str, ours: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    apart, doubt = _apart(ours["scores"], other["scores"], found["score"])
    trained = {"jointly": "jointly trained"}.get(ours["trained"], f"by {ours['trained']} training")
    beside = {"alone": "the one trained alone"}.get(other["trained"], f"that of {other['trained']} training")
    said = f"r = {group}, {network}: {trained} it is {apart} {beside}, of as many epochs{doubt}"
    if set(ours["scores"]) & set(other["equal_flops"]):
        apart, doubt = _apart(ours["scores"], other["equal_flops"], found["score"])
        said += f"; {apart} it at equal FLOPs{doubt}"
    said += "".join(_elsewhere(found, network, ours, other))
    if gone := [f"{line['diverged']} {line['trained']}" for line in (ours, other) if line["diverged"]]:
        said += f"; diverged and left out: {', '.join(gone)}"
    if ours["paper"] and other["paper"]:
        said += f" (paper: {_direction(_printed(ours['paper']) - _printed(other['paper']))} at equal epochs)"
    return said + "."


def _elsewhere(found: Found, network: str, ours: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """How the comparison falls with whole runs at cells that the grid has not chosen, for better or worse."""
    for cell in (cell for cell in found["elsewhere"] if not cell["chosen"]):
        at = f"at learning rate {cell['lr']:g} and warm-up {cell['warm_up']}, which the grid has not chosen for it"
        is_its = cell["level"] == network or other["trained"] == "alone"  # alone, any network is its level "full"
        if cell["row"] == other["row"] and is_its and set(ours["scores"]) & set(cell["scores"]):
            apart, doubt = _apart(ours["scores"], cell["scores"], found["score"])
            yield f"; {apart} the one {at}{doubt}"
        if cell["row"] == ours["row"] and cell["level"] == network and set(cell["scores"]) & set(other["scores"]):
            apart, doubt = _apart(cell["scores"], other["scores"], found["score"])
            yield f"; {at}, {apart} the other{doubt}"


def _apart(ours: Mapping[str, float], other: Mapping[str, float], score: str) -> tuple[str, str]:
    """How far ahead with the seeds that both have, and what is to be said if the seeds differ by as much."""
    seeds = [seed for seed in ours if seed in other]
    first, second = [ours[seed] for seed in seeds], [other[seed] for seed in seeds]
    difference = fmean(first) - fmean(second)
    if len(seeds) < 2:
        has_more = len(ours) > 1 or len(other) > 1
        return _points(difference, score), ", with the one seed that both have" if has_more else ", by one seed"
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
                f"{row['label']}: the joint run took {flops:.2f} of the FLOPs of the separate runs together, and "
                f"{seconds:.2f} of their time, each with whatever ran beside it."
            )


def _edges(found: Found) -> Iterator[str]:
    """A best cell with no neighbour beyond it: a better one may lie outside the grid."""
    rates = {row["lr"] for row in found["grid"] if not row["earlier"]}
    outermost = {min(rates), max(rates)} if len(rates) > 1 else set()
    rows = [row["row"] for row in found["grid"] if row["chosen"] and row["lr"] in outermost]
    if rows:
        told = ", ".join(rows)
        yield f"The chosen learning rate is the outermost of the grid for {told}: better ones may lie beyond."
