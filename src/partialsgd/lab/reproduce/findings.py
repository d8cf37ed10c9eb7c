"""The numbers in sentences: how far joint training is ahead or behind, here and in the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from partialsgd.lab.reproduce import paired
from partialsgd.lab.reproduce.numbers import Numbers

_OURS = {"jointly": "jointly trained", "alternating": "by alternating training"}
_OTHERS = {"alone": "the one trained alone", "slimmable": "that of slimmable training"}


def sentences(numbers: Numbers) -> list[str]:
    """A sentence for each comparison that finished runs allow, for each cost, and for each edge of the grid."""
    return [*_sums(numbers), *_compared(numbers), *_costs(numbers), *_edges(numbers)]


def _sums(numbers: Numbers) -> Iterator[str]:
    for row in numbers["sums"]:
        if row.get("jointly_scores") and row.get("alone_scores"):
            difference, doubt = _difference(row["jointly_scores"], row["alone_scores"], numbers["score"])
            yield (
                f"{row['label']}, {row['level']}: for the same total FLOPs the joint run is {difference} separate runs "
                f"on the validation data{doubt}."
            )


def _compared(numbers: Numbers) -> Iterator[str]:
    """The paper's method against each other one, for each network of each ratio."""
    for group, network in dict.fromkeys((line["group"], line["network"]) for line in numbers["lines"]):
        own = [line for line in numbers["lines"] if (line["group"], line["network"]) == (group, network)]
        for ours in (line for line in own if line["trained"] in _OURS):
            for other in (line for line in own if line["trained"] in _OTHERS):
                text = _describe_difference(numbers, ours, other) or _diverged(numbers, ours, other)
                if text:
                    yield f"r = {group}, {network}: {text}."


def _describe_difference(numbers: Numbers, ours: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    if not set(ours["scores"]) & set(other["scores"]):
        return ""
    difference, doubt = _difference(ours["scores"], other["scores"], numbers["score"])
    text = f"{_OURS[ours['trained']]} it is {difference} {_OTHERS[other['trained']]}, of as many epochs{doubt}"
    if set(ours["scores"]) & set(other["equal_flops"]):
        difference, doubt = _difference(ours["scores"], other["equal_flops"], numbers["score"])
        text += f"; {difference} it at equal FLOPs{doubt}"
    if gone := [f"{line['diverged']} {line['trained']}" for line in (ours, other) if line["diverged"]]:
        text += f"; diverged and left out: {', '.join(gone)}"
    if ours["paper"] and other["paper"]:
        printed = float(ours["paper"].split(" ")[0]) - float(other["paper"].split(" ")[0])
        text += f" (paper: {abs(printed):.2f} {'ahead' if printed >= 0 else 'behind'} at equal epochs)"
    return text


def _diverged(numbers: Numbers, *lines: Mapping[str, Any]) -> str:
    """A sentence for two lines of which one has no score, because all of its runs diverged."""
    reached = {line["trained"]: fmean(line["scores"].values()) for line in lines if line["scores"]}
    diverged = {line["trained"]: line["diverged"] for line in lines if line["diverged"] and not line["scores"]}
    parts = [f"{trained} it reaches {numbers['score']} {score:.2f}" for trained, score in reached.items()]
    parts += [f"{trained}, every run has diverged ({runs})" for trained, runs in diverged.items()]
    return "; ".join(parts) if diverged else ""


def _difference(ours: Mapping[str, float], other: Mapping[str, float], score: str) -> tuple[str, str]:
    """Two pieces of a sentence: the mean difference over common seeds, and a remark if it may be chance."""
    difference = paired.difference([ours[seed] - other[seed] for seed in ours if seed in other])
    points = _points(difference.mean, score)
    if difference.pairs < 2:
        has_more = len(ours) > 1 or len(other) > 1
        return points, ", with the one seed that both have" if has_more else ", by one seed"
    return points, "" if difference.is_clear else f", which {difference.pairs} seeds cannot tell from chance"


def _points(difference: float, score: str) -> str:
    unit = score if score == "BLEU" else "points"
    return f"{abs(difference):.2f} {unit} {'ahead of' if difference >= 0 else 'behind'}"


def _costs(numbers: Numbers) -> Iterator[str]:
    for row in numbers["costs"]:
        if row["alone_flops"]:
            flops, seconds = (row[f"joint_{unit}"] / row[f"alone_{unit}"] for unit in ("flops", "seconds"))
            yield (
                f"{row['label']}: the joint run took {flops:.2f} of the FLOPs of the separate runs together, and "
                f"{seconds:.2f} of their time, each with whatever ran beside it."
            )


def _edges(numbers: Numbers) -> Iterator[str]:
    """Chosen cells at an edge of the grid: better ones may lie outside."""
    cells = [row for row in numbers["grid"] if not row["earlier"]]
    chosen = [row for row in cells if row["chosen"]]
    rates, warm_ups = ({row[key] for row in cells} for key in ("lr", "warm_up"))
    outermost = {min(rates), max(rates)} if len(rates) > 1 else set()
    if rows := [row["row"] for row in chosen if row["lr"] in outermost]:
        names = ", ".join(rows)
        yield f"The chosen learning rate is the outermost of the grid for {names}: better ones may lie beyond."
    if len(warm_ups) > 1 and chosen and all(row["warm_up"] == max(warm_ups) for row in chosen):
        yield f"Every row chose the longest warm-up of the grid, {max(warm_ups)} steps: longer ones may be better."
