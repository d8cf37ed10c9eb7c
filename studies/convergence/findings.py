"""Sentences on each claim of the paper, made of the numbers of the stored runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from partialsgd.meters.criteria import Criteria
from studies.convergence import numbers
from studies.convergence.images import IMAGES
from studies.convergence.numbers import C_ALIGN_2, C_NORM_2, C_SIM_2, COSINE, GROUP, Spread, above, spread
from studies.convergence.runs import Run, Runs
from studies.convergence.settings import SETTINGS, SWITCHING

PLACES = {"of every hidden layer": ("dropout", "plain"), "inside the blocks": ("dropout_inner", "plain_inner")}
PARTS = {None: "the whole network", GROUP: "the narrowed layers"}


def dropout(runs: Runs) -> list[str]:
    sentences = []
    for where, (dropped, plain) in PLACES.items():
        for large in (False, True):
            with_it, without = (spread(runs[name], COSINE, large=large) for name in (dropped, plain))
            batch = f"over {IMAGES.large} examples" if large else "on the batch of the step, as the paper measures"
            sentences.append(
                f"**Figure 3, neurons {where}, {batch}**: the cosine is {with_it} with dropout and {without} without, "
                f"higher with dropout in {_count(*above(with_it, without))}: {_agrees(*above(with_it, without))}."
            )
    sentences += [_bounded(where, runs[dropped]) for where, (dropped, _) in PLACES.items()]
    return sentences


def _bounded(where: str, runs: Sequence[Run]) -> str:
    sim, align, negative = (
        _second_half(runs, lambda c: c.squared.c_sim),
        _second_half(runs, lambda c: c.squared.c_align),
        _second_half(runs, lambda c: c.inner),
    )
    below = sum(value < 0 for value in negative)
    return (
        f"**Figure 2, neurons {where}**: under dropout c_sim² is {spread(runs, C_SIM_2)} and c_align² "
        f"{spread(runs, C_ALIGN_2)} in the median, at most {max(sim):.3g} and {max(align):.3g}; "
        f"{below} of {len(negative)} alignments are negative, "
        + ("so no bound holds at every step, as Criterion 3 asks." if below else "so a bound holds at every step.")
    )


def _second_half(runs: Sequence[Run], of: Callable[[Criteria], float]) -> list[float]:
    return [
        of(criteria)
        for run in runs
        for t, criteria in zip(run.measured["t"], run.criteria(), strict=True)
        if t >= max(run.measured["t"]) / 2
    ]


def alternating(runs: Runs) -> list[str]:
    sentences = []
    for group, of in PARTS.items():
        for letter, quantity in (("a", C_NORM_2), ("c", C_ALIGN_2)):
            a, b = (spread(runs[name], quantity, group=group) for name in ("period_1", "standard"))
            sentences.append(
                f"**Figure 4{letter}, {of}**: {quantity.name} is {a} with alternating training and {b} with full steps "
                f"only, lower with alternating in {_count(*above(b, a))}: {_agrees(*above(b, a))}."
            )
    a, b = (spread(runs[name], C_SIM_2) for name in ("period_1", "standard"))
    below = {text: sum(v <= 1 for v in s.values) for text, s in (("alternating", a), ("full steps only", b))}
    told = ", ".join(f"{text} {k} of {len(a.values)}" for text, k in below.items())
    nearer = sum(abs(x - 1) < abs(y - 1) for x, y in zip(a.values, b.values, strict=True))
    sentences.append(
        f"**Figure 4b**: c_sim² is {a} with alternating training and {b} with full steps only; its median is at most 1 "
        f"in ({told}) seeds, and single steps reach {_largest(runs['period_1']):.3g} and "
        f"{_largest(runs['standard']):.3g}. Nearer to 1 with alternating in {_count(nearer, len(a.values))}."
    )
    full, core = (numbers.reached(runs["period_1"], level) for level in ("full", "core"))
    sentences.append(
        f"After as many steps, and so epochs, the full network has a loss of {full} with alternating training (half of "
        f"its steps are the core's) and {numbers.reached(runs['standard'], 'full')} without, the core {core} and "
        f"{numbers.reached(runs['standard'], 'core')}."
    )
    return sentences


def _largest(runs: Sequence[Run]) -> float:
    return max(_second_half(runs, lambda c: c.squared.c_sim))


def switching(runs: Runs) -> list[str]:
    """The paper argues that switching at every step aligns most; here it is compared with each other period."""
    sentences = []
    for group, of in PARTS.items():
        for quantity, is_high in ((COSINE, True), (C_NORM_2, False)):
            by = {name: spread(runs[name], quantity, group=group, level="core") for name in SWITCHING}
            order = sorted(by, key=lambda name: numbers.mean(by[name].values), reverse=is_high)
            listed = ", ".join(f"{SETTINGS[name].period} ({by[name]})" for name in order)
            first, *others = SWITCHING
            sentences.append(
                f"**{quantity.name} of {of}**, from the {'highest' if is_high else 'lowest'}: {listed}. Switching at "
                f"every step is {'above' if is_high else 'below'}: {_beaten(by, first, others, is_high)}."
            )
    return sentences


def _beaten(by: Mapping[str, Spread], first: str, others: Sequence[str], is_high: bool) -> str:
    """The other periods, by the number of seeds in which the first is better."""
    counts = {name: above(by[first], by[name]) if is_high else above(by[name], by[first]) for name in others}
    groups: dict[tuple[int, int], list[str]] = {}
    for name in sorted(counts, key=lambda name: -counts[name][0]):
        groups.setdefault(counts[name], []).append(SETTINGS[name].period)
    return "; ".join(f"{', '.join(names)} in {_count(*count)}" for count, names in groups.items())


def _count(k: int, n: int) -> str:
    return f"all {n} seeds" if k == n else f"none of {n} seeds" if k == 0 else f"{k} of {n} seeds"


def _agrees(k: int, n: int) -> str:
    return "as the paper says" if k == n else "not as the paper says" if k == 0 else "undecided"
